/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory: a store into the own window reaches every peer of this host, so there is nothing to put, signal or
 * poll. Only its end needs code: the view becomes inaccessible addresses.
 */
#include "mesh.h"

static void shm_fence(struct cvy_link *link)
{
	cvy_mesh_unview(link->mesh, link->rank);
}

static void shm_close(struct cvy_link *link)
{
	link->state = NULL;
}

const struct cvy_transport cvy_transport_shm = {
	.name = "shm",
	.fence = shm_fence,
	.close = shm_close,
};

void cvy_shm_open(struct cvy_link *link)
{
	link->ops = &cvy_transport_shm;
	link->state = NULL;
}
