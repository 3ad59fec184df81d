/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives of covey.h whose blocks differ in size: counts are checked, then as in api.c. A device gets the
 * counts as bytes in the arguments of its launch, so that a captured graph has them too.
 */
#include "algo.h"
#include "call.h"
#include "calls.h"
#include "device.h"
#include "device_work.h"
#include "gpu.h"
#include "reduce.h"

/* ---- on a device ---- */

static int launch(struct covey_group *group, const struct cvy_call *c, struct cvy_gpu_uneven *u,
		  struct covey_result *result)
{
	u->call.send = c->send;
	u->call.recv = c->recv;
	u->call.dtype = c->dtype;
	u->call.root = -1;
	u->call.size = group->here->size;
	return cvy_device_run(group->device, &u->call, c->stream, result);
}

/* The size of a group with devices: it has no ranks above these. */
static int size_of(const struct covey_group *group)
{
	return group->here->size < CVY_GPU_RANKS ? group->here->size : CVY_GPU_RANKS;
}

static uint64_t most_of(const uint64_t *bytes, int n)
{
	uint64_t most = 0;

	for (int r = 0; r < n; r++)
		if (bytes[r] > most)
			most = bytes[r];
	return most;
}

/* ---- alltoallv ---- */

struct callv {
	struct cvy_call c;
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls;
};

/* Elements from the start of a buffer to the end of the last of its blocks. */
static size_t end_of(const size_t *counts, const size_t *displs, int size)
{
	size_t end = 0;

	for (int r = 0; r < size; r++)
		if (counts[r] && displs[r] + counts[r] > end)
			end = displs[r] + counts[r];
	return end;
}

/* Do the bytes and offsets of all blocks fit a size_t? */
static int countable(const struct callv *v, int size)
{
	size_t most = SIZE_MAX / 16 / (size_t)size;

	for (int r = 0; r < size; r++)
		if (v->sendcounts[r] > most || v->senddispls[r] > most || v->recvcounts[r] > most ||
		    v->recvdispls[r] > most)
			return 0;
	return 1;
}

struct extent { /* of a block: in elements of its buffer, or in memory */
	uintptr_t at, end;
	int rank, received;
};

static int by_place(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

/* Refuses overlapping blocks of a receive buffer: the result there would depend on chance. */
static int check_apart(struct covey_group *group, const char *what, const size_t *counts, const size_t *displs)
{
	int size = group->here->size, n = 0, sorted = 1;
	struct extent *b, few[16];

	for (int r = 1; sorted && r < size; r++)
		sorted = displs[r] >= displs[r - 1] + counts[r - 1];
	if (sorted)
		return 0;
	b = size > (int)(sizeof(few) / sizeof(few[0])) ? malloc((size_t)size * sizeof(*b)) : few;
	if (!b)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "%s: no memory to compare %d blocks", what, size);
	for (int r = 0; r < size; r++)
		if (counts[r])
			b[n++] = (struct extent){ displs[r], displs[r] + counts[r], r, 1 };
	qsort(b, (size_t)n, sizeof(*b), by_place);
	for (int i = 1; i < n; i++) {
		if (b[i].at >= b[i - 1].end)
			continue;
		cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch,
			 "%s: the block of rank %d in recv, elements %zu to %zu, stands over that of rank %d, which "
			 "begins at %zu",
			 what, b[i - 1].rank, (size_t)b[i - 1].at, (size_t)b[i - 1].end - 1, b[i].rank,
			 (size_t)b[i].at);
		sorted = -1;
		break;
	}
	if (b != few)
		free(b);
	return sorted < 0 ? COVEY_ERR_INVAL : 0;
}

/* Do the two buffers meet, from the first to the last of their bytes? Mostly not; then no block need be looked at. */
static int buffers_meet(const struct callv *v, int size, size_t elem)
{
	uintptr_t send = (uintptr_t)v->c.send, recv = (uintptr_t)v->c.recv;
	size_t sent = end_of(v->sendcounts, v->senddispls, size);
	size_t received = end_of(v->recvcounts, v->recvdispls, size);

	return send < recv + received * elem && recv < send + sent * elem;
}

/* Does a received block stand over a sent one? Its bytes would be overwritten before all have read them. */
static int check_sent(struct covey_group *group, const struct callv *v, size_t elem)
{
	int size = group->here->size, n = 0, meet = 0;
	struct extent *x, few[32];
	uintptr_t end[2] = { 0, 0 }; /* of the blocks before: sent, received */

	if (!buffers_meet(v, size, elem))
		return 0;
	x = 2 * size > (int)(sizeof(few) / sizeof(few[0])) ? malloc(2 * (size_t)size * sizeof(*x)) : few;
	if (!x)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "alltoallv: no memory to compare %d blocks",
				2 * size);
	for (int r = 0; r < size; r++) {
		uintptr_t send = (uintptr_t)v->c.send + v->senddispls[r] * elem;
		uintptr_t recv = (uintptr_t)v->c.recv + v->recvdispls[r] * elem;

		if (v->sendcounts[r])
			x[n++] = (struct extent){ send, send + v->sendcounts[r] * elem, r, 0 };
		if (v->recvcounts[r])
			x[n++] = (struct extent){ recv, recv + v->recvcounts[r] * elem, r, 1 };
	}
	qsort(x, (size_t)n, sizeof(*x), by_place);
	for (int i = 0; i < n && !meet; i++) {
		meet = x[i].at < end[!x[i].received];
		if (x[i].end > end[x[i].received])
			end[x[i].received] = x[i].end;
	}
	if (x != few)
		free(x);
	return meet ? cvy_call_refuse(group, "alltoallv",
				      "a block of recv stands over one of send, and the call is not in place")
		    : 0;
}

/* This rank must send itself as much as it expects from itself; in place every block is replaced where it is. */
static int check_blocks(struct covey_group *group, const struct callv *v)
{
	int own = group->here->rank;

	if (v->sendcounts[own] != v->recvcounts[own])
		return cvy_fail(group->box, COVEY_ERR_INVAL, own, group->here->epoch,
				"alltoallv: rank %d sends %zu elements to itself and expects %zu of itself", own,
				v->sendcounts[own], v->recvcounts[own]);
	for (int r = 0; v->c.send == v->c.recv && r < group->here->size; r++)
		if (v->sendcounts[r] && v->recvcounts[r] && v->senddispls[r] != v->recvdispls[r])
			return cvy_fail(group->box, COVEY_ERR_INVAL, own, group->here->epoch,
					"alltoallv: in place, and the block for rank %d stands at element %zu but that "
					"of rank %d at %zu",
					r, v->senddispls[r], r, v->recvdispls[r]);
	if (v->c.send != v->c.recv && cvy_dtype_bytes(v->c.dtype)) {
		int err = check_sent(group, v, cvy_dtype_bytes(v->c.dtype));

		if (err)
			return err;
	}
	return check_apart(group, "alltoallv", v->recvcounts, v->recvdispls);
}

static int checkv(struct covey_group *group, const struct callv *v)
{
	const void *send = NULL, *recv = NULL; /* those that are used */
	int err = cvy_handle_check_op(group), size;

	if (err || !group)
		return err;
	size = group->here->size;
	if (!v->sendcounts || !v->senddispls || !v->recvcounts || !v->recvdispls)
		return cvy_call_refuse(group, "alltoallv", "counts or displacements are NULL");
	for (int r = 0; r < size; r++) {
		if ((v->sendcounts[r] && !v->c.send) || (v->recvcounts[r] && !v->c.recv))
			return cvy_call_refuse(group, "alltoallv", "a buffer is NULL");
		send = v->sendcounts[r] ? v->c.send : send;
		recv = v->recvcounts[r] ? v->c.recv : recv;
	}
	err = cvy_call_memory(group, "alltoallv", v->c.stream, send, recv);
	if (err)
		return err;
	if (!countable(v, size))
		return cvy_call_refuse(group, "alltoallv", "a count or displacement is too large");
	return check_blocks(group, v);
}

static int makev(struct covey_group *group, const struct cvy_call *c, struct cvy_op **out)
{
	const struct callv *v = (const void *)c;
	struct cvy_op *op;
	int err = checkv(group, v), size;

	if (err || !group)
		return err;
	size = group->here->size;
	err = cvy_call_make(group, &v->c, &op);
	if (err)
		return err;
	op->input_bytes = v->c.send == v->c.recv ? end_of(v->sendcounts, v->senddispls, size) * op->elem : 0;
	err = cvy_alltoallv_plan(group->engine, op, size, v->sendcounts, v->senddispls, v->recvcounts, v->recvdispls);
	if (err) {
		cvy_op_put(op);
		return cvy_fail(group->box, err, -1, 0, "no memory for the counts");
	}
	*out = op;
	return 0;
}

static int launchv(struct covey_group *group, const void *arg, struct covey_result *result)
{
	const struct callv *v = arg;
	struct cvy_gpu_uneven u = { .call.kind = CVY_GPU_ALLTOALLV };
	const size_t elem = cvy_dtype_bytes(v->c.dtype);
	size_t none;
	int size, err = checkv(group, v);

	if (!err)
		err = cvy_call_check(group, &v->c, &none);
	if (err)
		return err;
	size = size_of(group);
	for (int r = 0; r < size; r++) {
		u.send[r] = v->sendcounts[r] * elem;
		u.send_at[r] = v->senddispls[r] * elem;
		u.recv[r] = v->recvcounts[r] * elem;
		u.recv_at[r] = v->recvdispls[r] * elem;
	}
	u.call.bytes = most_of(u.send, size);
	return launch(group, &v->c, &u, result);
}

static const struct cvy_call_form alltoallv = { makev, launchv };

/* ---- allgatherv ---- */

struct callg {
	struct cvy_call c;
	const size_t *counts, *displs;
};

/* Does the block of rank @r in recv overlap the input? The own one may be where the input is. */
static int stands_over(const struct callg *g, int r, int own)
{
	size_t elem = cvy_dtype_bytes(g->c.dtype);
	uintptr_t send = (uintptr_t)g->c.send, recv = (uintptr_t)g->c.recv + g->displs[r] * elem;

	if (!g->c.count || !g->counts[r] || (own && send == recv))
		return 0;
	return send < recv + g->counts[r] * elem && recv < send + g->c.count * elem;
}

/* The fault of the counts, NULL: none. The signature shows their sum as count. */
static const char *check_counts(const struct callg *g, const struct cvy_engine *e, size_t *sum)
{
	size_t most = SIZE_MAX / 16 / (size_t)cvy_site(e)->size;

	if (!g->counts || !g->displs)
		return "counts or displacements are NULL";
	*sum = 0;
	for (int r = 0; r < cvy_site(e)->size; r++) {
		if (g->counts[r] > most || g->displs[r] > most)
			return "a count or displacement is too large";
		*sum += g->counts[r];
	}
	if (g->c.count != g->counts[cvy_site(e)->rank])
		return "sendcount is not recvcounts[own rank]";
	if ((*sum && !g->c.recv) || (g->c.count && !g->c.send))
		return "a buffer is NULL";
	for (int r = 0; r < cvy_site(e)->size; r++)
		if (stands_over(g, r, r == cvy_site(e)->rank))
			return "send and recv overlap: in place is send == recv + recvdispls[own rank]";
	return NULL;
}

static int checkg(struct covey_group *group, const struct callg *g, size_t *sum)
{
	const char *wrong;
	int err = cvy_handle_check_op(group);

	if (err || !group)
		return err;
	wrong = check_counts(g, group->engine, sum);
	if (wrong)
		return cvy_call_refuse(group, "allgatherv", wrong);
	err = cvy_call_memory(group, "allgatherv", g->c.stream, g->c.count ? g->c.send : NULL, *sum ? g->c.recv : NULL);
	return err ? err : check_apart(group, "allgatherv", g->counts, g->displs);
}

static int makeg(struct covey_group *group, const struct cvy_call *c, struct cvy_op **out)
{
	static uint8_t nothing[1];
	const struct callg *g = (const void *)c;
	struct callg call = *g;
	size_t sum = 0;
	int err = checkg(group, g, &sum);

	if (err || !group)
		return err;
	call.c.send = g->c.send ? g->c.send : nothing;
	call.c.recv = g->c.recv ? g->c.recv : nothing;
	call.c.count = 0;
	err = cvy_call_make(group, &call.c, out);
	if (err)
		return err;
	(*out)->count = sum;
	err = cvy_allgatherv_plan(group->engine, *out, group->here->size, g->counts, g->displs);
	if (err) {
		cvy_op_put(*out);
		return cvy_fail(group->box, err, -1, 0, "no memory for the counts");
	}
	cvy_op_sign(*out, group->here->on_loss);
	return 0;
}

static int launchg(struct covey_group *group, const void *arg, struct covey_result *result)
{
	const struct callg *g = arg;
	struct cvy_gpu_uneven u = { .call.kind = CVY_GPU_ALLGATHERV };
	const size_t elem = cvy_dtype_bytes(g->c.dtype);
	struct cvy_call c = g->c;
	size_t sum = 0, none;
	int err = checkg(group, g, &sum);

	if (err || !group)
		return err;
	c.count = 0; /* the buffers were checked here already */
	err = cvy_call_check(group, &c, &none);
	if (err)
		return err;
	for (int r = 0; r < size_of(group); r++) {
		u.send[r] = g->c.count * elem;
		u.recv[r] = g->counts[r] * elem;
		u.recv_at[r] = g->displs[r] * elem;
	}
	u.call.bytes = most_of(u.recv, size_of(group));
	return launch(group, &c, &u, result);
}

static const struct cvy_call_form allgatherv = { makeg, launchg };

/* ---- calls ---- */

/* A collective: its blocking form and its start, of the arguments in the first parentheses; then its count. */
#define CALL(name, call, arguments, count, ...) \
	int covey_##name(EACH arguments, int dtype, struct covey_group *group, struct CUstream_st *stream, \
			 struct covey_result *result) \
	{ \
		struct call c = { { &cvy_op_##name, send, recv, count, dtype, 0, 0, stream }, __VA_ARGS__ }; \
		return cvy_call_run(group, &name, &c.c, result); \
	} \
	int covey_##name##_start(EACH arguments, int dtype, struct covey_group *group, struct CUstream_st *stream, \
				 struct covey_work **work) \
	{ \
		struct call c = { { &cvy_op_##name, send, recv, count, dtype, 0, 0, stream }, __VA_ARGS__ }; \
		return cvy_call_start(group, &name, &c.c, work); \
	}
#define EACH(...) __VA_ARGS__

CALL(alltoallv, callv,
     (const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv, const size_t *recvcounts,
      const size_t *recvdispls),
     0, sendcounts, senddispls, recvcounts, recvdispls)
CALL(allgatherv, callg,
     (const void *send, size_t sendcount, void *recv, const size_t *recvcounts, const size_t *recvdispls), sendcount,
     recvcounts, recvdispls)
