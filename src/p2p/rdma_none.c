/* SPDX-License-Identifier: Apache-2.0 */
/* A build without the headers of libibverbs and librdmacm: every request of the mesh is refused. */
#include <stdio.h>

#include "rdma.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

int cvy_rdma_open(struct cvy_mesh *mesh, const struct cvy_config *config, char *why, size_t bytes)
{
	snprintf(why, bytes, "this libcovey was built without RDMA (libibverbs and librdmacm headers)");
	return COVEY_ERR_UNSUPPORTED;
}

void cvy_rdma_close(struct cvy_mesh *mesh)
{
}

void cvy_rdma_forget(struct cvy_mesh *mesh)
{
}

void cvy_rdma_welcome(struct cvy_peer *peer, struct cvy_welcome *welcome)
{
}

int cvy_rdma_dial(struct cvy_peer *peer, const struct cvy_welcome *welcome, const char **why)
{
	*why = "built without RDMA";
	return COVEY_ERR_UNSUPPORTED;
}

void cvy_rdma_hang_up(struct cvy_peer *peer)
{
}

int cvy_rdma_link(struct cvy_peer *peer, struct cvy_link *link)
{
	return 0;
}

void cvy_rdma_frame(struct cvy_peer *peer, const struct cvy_wire *head, const uint8_t *body)
{
}

int cvy_verbs_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line)
{
	return link->ops->signal(link, offset);
}

const struct cvy_transport cvy_transport_verbs = { .name = "verbs" };
