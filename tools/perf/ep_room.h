/* SPDX-License-Identifier: Apache-2.0 */
/* One row of dispatch and combine on device memory: its buffers. Shared by ep_device.c and ep_check.c. */
#ifndef PERF_EP_ROOM_H
#define PERF_EP_ROOM_H

#include "device.h"
#include "ep_code.h"

#define PERF_PARTS 16

struct perf_room {
	struct perf_pair pair;
	void *part[PERF_PARTS]; /* device memory */
	int parts;
	int bins; /* of rows: the local experts, or with COMPACT and HT one */
	/* bin_rows: kept for a bin; where bins stand close, for all */
	size_t bin_rows, all_rows, row_bytes, groups;
	/* host memory: outputs of a dispatch; of one bin its rows and the input of combine */
	int32_t *src_info, *recv_experts, *flat, *triplets; /* flat: with FLAT; triplets: with WIN */
	int64_t *range;
	uint8_t *rows;
	float *scales;
	uint16_t *y;
};

static inline bool perf_room_once(const struct perf_job *job)
{
	return perf_once(job->opt.preset);
}

static inline bool perf_room_flat(const struct perf_job *job)
{
	return job->opt.preset == COVEY_EP_FLAT;
}

static inline int perf_room_owner(const struct perf_job *job, int id)
{
	return id / ((job->opt.experts + job->size - 1) / job->size);
}

/* Experts of the token that rank @at owns. */
static inline int perf_room_experts_at(const struct perf_job *job, int source, int token, int at)
{
	int n = 0;

	for (int k = 0; k < job->opt.topk; k++)
		n += perf_room_owner(job, perf_ep_expert(&job->opt, source, token, k)) == at;
	return n;
}

/* ep_check.c: both add to *wrong; the first also makes the input of combine. */
int perf_room_check_dispatch(struct perf_job *job, struct perf_room *room, int64_t *wrong);
int perf_room_check_combine(struct perf_job *job, struct perf_room *room, int64_t *wrong);

#endif
