/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The right value of every byte. A rank's input is a function of rank and position, scattered so that a block at the
 * wrong place shows. A result is compared byte by byte, so all ranks hold the same bits. Both buffers lie between
 * guards, and a byte written there counts as wrong. A lost rank contributes nothing: its blocks are zero, and
 * reductions are of the contributors in the outcome.
 */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

#define GUARD ((size_t)4096)
#define GUARD_BYTE 0xa5
#define UNTOUCHED 0x5a /* of a result that was not written */
#define SUM_MOST 127
#define PROD_MOST 2

static size_t guarded_bytes(size_t bytes)
{
	return (bytes + 3 * GUARD - 1) / GUARD * GUARD;
}

static char *guarded(const struct perf_job *job, size_t bytes, bool registered)
{
	size_t all = guarded_bytes(bytes);
	void *base = NULL;

	if (registered ? covey_mem_alloc(job->group, all, &base) : !(base = aligned_alloc(GUARD, all)))
		return NULL;
	memset(base, GUARD_BYTE, GUARD);
	return (char *)base + GUARD;
}

int perf_buffers_open(struct perf_job *job, size_t bytes)
{
	job->room = bytes;
	job->send = guarded(job, bytes, job->opt.registered && !job->device);
	job->recv = guarded(job, bytes, false);
	if (!job->send || !job->recv)
		return COVEY_ERR_NOMEM;
	return job->device ? perf_device_buffers(job, job->send - GUARD, job->recv - GUARD, guarded_bytes(bytes)) : 0;
}

void perf_buffers_close(struct perf_job *job)
{
	if (job->send && (!job->opt.registered || job->opt.device)) /* a registered buffer is freed with the group */
		free(job->send - GUARD);
	if (job->recv)
		free(job->recv - GUARD);
	job->send = job->recv = NULL;
}

/* From 1 on: zeros are copied faster than data. */
static int value_of(const struct perf_job *job, const struct perf_row *row, int rank, size_t at)
{
	uint64_t mixed = ((uint64_t)at + 1) * UINT64_C(0x9e3779b97f4a7c15) +
			 (uint64_t)rank * UINT64_C(0xbf58476d1ce4e5b9) + job->opt.seed * UINT64_C(0x94d049bb133111eb);
	int most = SUM_MOST / job->size;

	if (row->redop >= 0 && perf_redops[row->redop].kind == PERF_PROD)
		most = PROD_MOST;
	else if (most < 2)
		most = 2;
	return 1 + (int)((mixed >> 33) % (uint64_t)most);
}

static size_t blocks(const struct perf_job *job, bool many)
{
	return many ? (size_t)job->size : 1;
}

void perf_fill(struct perf_job *job, const struct perf_row *row, const struct operation_call *call)
{
	const struct operation *op = job->opt.op;
	const struct perf_type *type = &perf_types[row->type];
	size_t n = call->count * blocks(job, op->send_blocks),
	       out = call->count * blocks(job, op->recv_blocks) * type->bytes;
	char *send = (char *)(uintptr_t)call->send;

	memset(call->recv, UNTOUCHED, out);
	for (size_t i = 0; i < n; i++)
		perf_put(type, send + i * type->bytes, value_of(job, row, job->rank, i));
	/* Bytes behind the result must be unchanged. */
	if (call->recv == job->recv)
		memset((char *)call->recv + out, GUARD_BYTE, GUARD);
}

/* The input that an element of the result is of, by its rank and its place there; PERF_ALL: those of all, reduced. */
struct origin {
	int rank;
	size_t at;
};

/* For element @i of block @block; false: this rank receives nothing. */
static bool origin_of(const struct operation *op, const struct operation_call *c, size_t block, size_t i,
		      struct origin *out)
{
	const int rank[] = { [OP_OF_ALL] = PERF_ALL,
			     [OP_OF_ROOT] = c->root,
			     [OP_OF_BLOCK] = (int)block,
			     [OP_OF_BEFORE] = (c->rank + c->size - 1) % c->size };

	if (op->no_data || (op->to_root && c->rank != c->root))
		return false;
	*out = (struct origin){ rank[op->of], op->send_blocks ? (size_t)c->rank * c->count + i : i };
	return true;
}

/* False: any value is right there. */
static bool expected(const struct perf_job *job, const struct perf_row *row, const struct operation_call *call,
		     size_t block, size_t i, void *want)
{
	const struct perf_type *type = &perf_types[row->type];
	struct origin origin;
	int values[COVEY_MAX_RANKS], n = 0;

	if (!origin_of(job->opt.op, call, block, i, &origin))
		return false;
	if (origin.rank != PERF_ALL) {
		if (covey_mask_has(&job->mask, origin.rank))
			perf_put(type, want, value_of(job, row, origin.rank, origin.at));
		else
			memset(want, 0, type->bytes);
		return true;
	}
	for (int r = 0; r < job->size; r++)
		if (covey_mask_has(&job->mask, r))
			values[n++] = value_of(job, row, r, origin.at);
	perf_fold(type, &perf_redops[row->redop], values, n, want);
	return true;
}

int64_t perf_wrong(struct perf_job *job, const struct perf_row *row, const struct operation_call *call)
{
	const struct operation *op = job->opt.op;
	size_t bytes = perf_types[row->type].bytes, all = blocks(job, op->recv_blocks);
	const char *recv = call->recv;
	int64_t wrong = 0;

	for (size_t b = 0; b < all; b++) {
		for (size_t i = 0; i < call->count; i++) {
			char want[8];

			if (expected(job, row, call, b, i, want))
				wrong += memcmp(recv + (b * call->count + i) * bytes, want, bytes) != 0;
		}
	}
	if (recv == job->recv) /* else it lies within the data sent */
		for (size_t i = 0; i < GUARD; i++)
			wrong += (unsigned char)recv[all * call->count * bytes + i] != GUARD_BYTE;
	for (size_t i = 0; i < GUARD; i++)
		wrong += (unsigned char)job->send[(ptrdiff_t)i - (ptrdiff_t)GUARD] != GUARD_BYTE ||
			 (unsigned char)job->recv[(ptrdiff_t)i - (ptrdiff_t)GUARD] != GUARD_BYTE;
	return wrong;
}

/* Changes one bit, if something is received at all. */
void perf_spoil(const struct perf_job *job, const struct perf_row *row, const struct operation_call *call)
{
	size_t bytes = call->count * blocks(job, job->opt.op->recv_blocks) * perf_types[row->type].bytes;

	if (bytes)
		((char *)call->recv)[bytes / 2] ^= 1;
}
