/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build without the headers of libibverbs and libmlx5: to open a NIC fails, and the error says why. The other calls
 * are never reached, since they take a NIC.
 */
#include "queues.h"

#define NONE COVEY_ERR_UNSUPPORTED

#pragma GCC diagnostic ignored "-Wunused-parameter"

int cvy_nic_open(const struct cvy_nic_args *args, struct cvy_nic **out)
{
	return cvy_fail(args->box, NONE, -1, 0,
			"no mlx5 queues: this libcovey was built without libibverbs and libmlx5 (libibverbs-dev)");
}

void cvy_nic_close(struct cvy_nic *nic)
{
}

const char *cvy_nic_name(const struct cvy_nic *nic)
{
	return "none";
}

int cvy_nic_reserve(struct cvy_nic *nic, unsigned pairs, uint32_t depth, int registers)
{
	return NONE;
}

int cvy_region_open(struct cvy_nic *nic, void *at, size_t bytes, int dmabuf_fd, struct cvy_region **out)
{
	return NONE;
}

void cvy_region_close(struct cvy_region *region)
{
}

int cvy_pair_open(struct cvy_nic *nic, const struct cvy_pair_args *args, struct cvy_queue_pair **out)
{
	return NONE;
}

void cvy_pair_name(const struct cvy_queue_pair *pair, struct cvy_pair_name *name)
{
	*name = (struct cvy_pair_name){ 0 };
}

int cvy_pair_connect(struct cvy_queue_pair *pair, const struct cvy_pair_name *far)
{
	return NONE;
}

void cvy_pair_queue(const struct cvy_queue_pair *pair, struct cvy_queue *queue)
{
	*queue = (struct cvy_queue){ 0 };
}

int cvy_pair_check(struct cvy_queue_pair *pair, int rank)
{
	return NONE;
}

uint64_t cvy_pair_status(const struct cvy_queue_pair *pair)
{
	return 0;
}

int cvy_pair_idle(const struct cvy_queue_pair *pair)
{
	return 1;
}

int cvy_pair_stop(struct cvy_queue_pair *pair)
{
	return NONE;
}

void cvy_pair_close(struct cvy_queue_pair *pair)
{
}

size_t cvy_pair_bytes(const struct cvy_queue_pair *pair)
{
	return 0;
}
