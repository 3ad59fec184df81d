/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA for the mesh: a device when it opens, and a connection for each pair of ranks that uses RDMA. A build without
 * RDMA headers says so and offers none.
 */
#ifndef CVY_RDMA_H
#define CVY_RDMA_H

#include "mesh.h"

/* Opens the device of the settings. UNSUPPORTED and @why: there is no usable one, and mesh->rdma stays NULL. */
int cvy_rdma_open(struct cvy_mesh *mesh, const struct cvy_config *config, char *why, size_t bytes);
void cvy_rdma_close(struct cvy_mesh *mesh);
void cvy_rdma_forget(struct cvy_mesh *mesh); /* in a forked child: closes descriptors */

/* The parts of a welcome to @peer: the address to connect to, and the cookie that a request must show. */
void cvy_rdma_welcome(struct cvy_peer *peer, struct cvy_welcome *welcome);
/* Begins to connect; cvy_peer_rdma_up or cvy_peer_rdma_failed follows. */
int cvy_rdma_dial(struct cvy_peer *peer, const struct cvy_welcome *welcome, const char **why);
void cvy_rdma_hang_up(struct cvy_peer *peer); /* ends a connection in the making; engine's lock held */
/* The connection that was made becomes the data path. 0: there is none. */
int cvy_rdma_link(struct cvy_peer *peer, struct cvy_link *link);
/* A request for the key of a region, or the answer: ASK and KEY. */
void cvy_rdma_frame(struct cvy_peer *peer, const struct cvy_wire *head, const uint8_t *body);

#endif
