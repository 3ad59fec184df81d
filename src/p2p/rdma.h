/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mesh asks of RDMA: a device when it opens, a connection for each pair whose data is to go that way. Built
 * without RDMA headers it says so and offers nothing.
 */
#ifndef CVY_RDMA_H
#define CVY_RDMA_H

#include "mesh.h"

/* Opens the device of the settings. UNSUPPORTED and @why: there is none to use, and mesh->rdma stays NULL. */
int cvy_rdma_open(struct cvy_mesh *mesh, const struct cvy_config *config, char *why, size_t bytes);
void cvy_rdma_close(struct cvy_mesh *mesh);
void cvy_rdma_forget(struct cvy_mesh *mesh); /* in a forked child: closes descriptors */

/* The parts of a welcome to @peer: where to connect to, and the cookie that a request must show. */
void cvy_rdma_welcome(struct cvy_peer *peer, struct cvy_welcome *welcome);
/* Begins to connect; ends with cvy_peer_rdma_up or cvy_peer_rdma_failed, later. */
int cvy_rdma_dial(struct cvy_peer *peer, const struct cvy_welcome *welcome, const char **why);
void cvy_rdma_hang_up(struct cvy_peer *peer); /* a connection that is being made; engine's lock held */
/* The connection that was made becomes the data path. 0: there is none. */
int cvy_rdma_link(struct cvy_peer *peer, struct cvy_link *link);
/* Of a region, asked for or given: ASK and KEY. */
void cvy_rdma_frame(struct cvy_peer *peer, const struct cvy_wire *head, const uint8_t *body);

#endif
