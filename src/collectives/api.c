/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of covey.h: arguments are checked, an operation is planned, then posted or run. */
#include "algo.h"
#include "calls.h"
#include "device.h"
#include "distance.h"
#include "gpu.h"
#include "handle.h"
#include "plan.h"
#include "reduce.h"

struct call { /* one call of a collective, before it is an operation */
	const struct cvy_op_kind *kind;
	const void *send;
	void *recv;
	size_t count;
	int dtype, redop, root;
	struct CUstream_st *stream;
};

static int refuse(struct covey_group *group, const char *what, const char *why)
{
	return cvy_fail(group->box, COVEY_ERR_INVAL, group->engine->rank, group->engine->epoch, "%s: %s", what, why);
}

static int reduces(const struct cvy_op_kind *kind)
{
	return kind == &cvy_op_allreduce || kind == &cvy_op_reduce || kind == &cvy_op_reduce_scatter;
}

/* Does this rank read the send buffer, write the receive buffer? */
static int sends(const struct call *c, int rank)
{
	return c->root == rank || (c->kind != &cvy_op_broadcast && c->kind != &cvy_op_scatter);
}

static int receives(const struct call *c, int rank)
{
	return c->root == rank || (c->kind != &cvy_op_reduce && c->kind != &cvy_op_gather);
}

/* On the device: the buffers are there. A barrier has none, its stream says so. */
static int on_device(struct covey_group *group, const struct call *c)
{
	if (!group->device)
		return 0;
	return cvy_device_holds(group->device, c->recv) || cvy_device_holds(group->device, c->send) ||
	       (c->stream && !c->send && !c->recv);
}

static int check(struct covey_group *group, const struct call *c, size_t *bytes)
{
	size_t elem = cvy_dtype_bytes(c->dtype), most;
	int err = cvy_handle_check_op(group);

	if (err)
		return err;
	if (c->stream && !on_device(group, c))
		return cvy_fail(group->box, COVEY_ERR_UNSUPPORTED, -1, 0,
				"%s: a stream needs buffers in memory of the device that the group was joined with "
				"(device, COVEY_DEVICE), and the form that does not start a work",
				c->kind->name);
	if (!elem)
		return refuse(group, c->kind->name, "unknown datatype; see enum covey_dtype");
	if (reduces(c->kind) && !cvy_redop_known(c->redop))
		return refuse(group, c->kind->name, "unknown operation; see enum covey_redop");
	if (__builtin_mul_overflow(c->count, elem * (size_t)(group->engine->size + 1), &most))
		return refuse(group, c->kind->name, "count is too large");
	if (c->root < 0 || c->root >= group->config.max_ranks)
		return refuse(group, c->kind->name, "root is not a rank of the group");
	if (cvy_in_parts(c->kind) && group->engine->layout.stride / (size_t)group->engine->size < CVY_PART_MIN)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"%s: slot_bytes %zu is too small for %d ranks: at least %zu is needed", c->kind->name,
				group->engine->layout.slot_bytes, group->engine->size,
				(size_t)group->engine->size * CVY_PART_MIN / 2);
	*bytes = c->count * elem;
	if (*bytes && ((!c->recv && receives(c, group->engine->rank)) || (!c->send && sends(c, group->engine->rank))))
		return refuse(group, c->kind->name, "a buffer is NULL");
	return 0;
}

static int make(struct covey_group *group, const struct call *c, struct cvy_op **out)
{
	static uint8_t nothing[1]; /* NULL is welcome where no bytes move, but not to memcpy */
	struct cvy_op *op;
	size_t bytes = 0;
	int err = check(group, c, &bytes);

	if (err)
		return err;
	op = cvy_op_new(group->engine, c->kind);
	if (!op) {
		cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for an operation");
		return COVEY_ERR_NOMEM;
	}
	op->send = c->send ? c->send : nothing;
	op->recv = c->recv ? c->recv : nothing;
	op->count = c->count;
	op->elem = cvy_dtype_bytes(c->dtype);
	op->bytes = bytes;
	op->dtype = c->dtype;
	op->redop = c->redop;
	op->root = c->root;
	op->ticks = 1;
	if (op->kind->plan)
		op->kind->plan(group->engine, op, group->engine->size);
	cvy_op_sign(op, group->engine->on_loss);
	*out = op;
	return 0;
}

static int start_op(struct covey_group *group, struct cvy_op *op, struct covey_work **out)
{
	struct covey_work *work = out ? cvy_work_of(group, op) : NULL;
	int err;

	if (!work) {
		cvy_op_put(op);
		return out ? cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a work")
			   : cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "work is NULL");
	}
	err = cvy_engine_post(group->engine, op);
	if (err) {
		covey_work_free(work);
		return err;
	}
	*out = work;
	return 0;
}

/* The first operations are followed by a look at how near the cores are: all come out of it together. */
static int measured(struct covey_group *group, const struct call *c, int err)
{
	if (__atomic_load_n(&group->engine->distance.asked, __ATOMIC_RELAXED) < CVY_DISTANCE_TRIES &&
	    c->kind->op_class == CVY_OP_ALL && !cvy_calls_open())
		cvy_distance_measure(group->engine);
	return err;
}

static int gpu_kind(const struct cvy_op_kind *kind)
{
	static const struct {
		const struct cvy_op_kind *kind;
		int gpu;
	} kinds[] = {
		{ &cvy_op_allreduce, CVY_GPU_ALLREDUCE },
		{ &cvy_op_allgather, CVY_GPU_ALLGATHER },
		{ &cvy_op_reduce_scatter, CVY_GPU_REDUCE_SCATTER },
		{ &cvy_op_alltoall, CVY_GPU_ALLTOALL },
		{ &cvy_op_broadcast, CVY_GPU_BROADCAST },
		{ &cvy_op_reduce, CVY_GPU_REDUCE },
		{ &cvy_op_gather, CVY_GPU_GATHER },
		{ &cvy_op_scatter, CVY_GPU_SCATTER },
		{ &cvy_op_barrier, CVY_GPU_BARRIER },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].kind == kind)
			return kinds[i].gpu;
	return -1;
}

static int rooted(int kind)
{
	return kind == CVY_GPU_BROADCAST || kind == CVY_GPU_REDUCE || kind == CVY_GPU_GATHER || kind == CVY_GPU_SCATTER;
}

/* Do results overwrite inputs that the operation would need once more? */
static int overwrites(const struct call *c, int kind, size_t bytes, int rank)
{
	if (kind == CVY_GPU_REDUCE_SCATTER)
		return c->recv == (const uint8_t *)c->send + (size_t)rank * bytes;
	return c->send == c->recv && (kind == CVY_GPU_ALLREDUCE || kind == CVY_GPU_REDUCE);
}

static int run_on_device(struct covey_group *group, const struct call *c, struct covey_result *result)
{
	struct cvy_gpu_call call = { .send = c->send, .recv = c->recv, .dtype = c->dtype, .redop = c->redop };
	size_t bytes = 0;
	int err = check(group, c, &bytes);

	if (err)
		return err;
	call.kind = gpu_kind(c->kind);
	if (c->kind == &cvy_op_alltoall && c->send == c->recv && bytes)
		return cvy_fail(group->box, COVEY_ERR_UNSUPPORTED, -1, 0, "alltoall: in place is for host memory only");
	call.bytes = bytes;
	call.root = rooted(call.kind) ? c->root : -1;
	call.size = group->engine->size;
	call.in_place = overwrites(c, call.kind, bytes, group->engine->rank);
	return cvy_device_run(group->device, &call, c->stream, result);
}

static int run(struct covey_group *group, const struct call *c, struct covey_result *result)
{
	struct cvy_asked asked = { c->kind, c->send, c->recv, c->count, c->dtype, c->redop, c->root };
	struct cvy_op *op = NULL;
	uint32_t plans = 0;
	int err;

	if (group && !group->forked && on_device(group, c))
		return run_on_device(group, c, result);
	if (group && !group->forked && !c->stream) {
		if (cvy_engine_again(group->engine, &asked, result, &err))
			return measured(group, c, err);
		plans = __atomic_load_n(&group->engine->plans, __ATOMIC_RELAXED);
	}
	err = make(group, c, &op);
	if (err || !group)
		return cvy_calls_failed(err);
	op->asked = asked;
	op->planned = plans;
	return measured(group, c, cvy_engine_run(group->engine, op, result));
}

static int start(struct covey_group *group, const struct call *c, struct covey_work **work)
{
	struct cvy_op *op = NULL;
	int err = make(group, c, &op);

	return err ? err : start_op(group, op, work);
}

int covey_set_on_loss(struct covey_group *group, int on_loss)
{
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (on_loss != COVEY_ON_LOSS_CONTINUE && on_loss != COVEY_ON_LOSS_FAIL)
		return refuse(group, "on_loss", "must be COVEY_ON_LOSS_CONTINUE or COVEY_ON_LOSS_FAIL");
	group->engine->on_loss = on_loss;
	return 0;
}

int covey_explain(struct covey_group *group, char *text, size_t bytes)
{
	int err = cvy_handle_check(group);
	char *all = NULL;
	size_t n = 0;
	FILE *to;

	if (err)
		return err;
	if (!text || !bytes)
		return refuse(group, "explain", "text is NULL");
	to = open_memstream(&all, &n);
	if (to) {
		pthread_mutex_lock(&group->engine->lock);
		cvy_plan_explain(group->engine, to);
		pthread_mutex_unlock(&group->engine->lock);
	}
	if (!to || fclose(to)) {
		free(all);
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a table");
	}
	snprintf(text, bytes, "%s", all);
	free(all);
	return 0;
}

int covey_allreduce(const void *send, void *recv, size_t count, int dtype, int redop, struct covey_group *group,
		    struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_allreduce, send, recv, count, dtype, redop, 0, stream };

	return run(group, &c, result);
}

int covey_allreduce_start(const void *send, void *recv, size_t count, int dtype, int redop, struct covey_group *group,
			  struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_allreduce, send, recv, count, dtype, redop, 0, stream };

	return start(group, &c, work);
}

int covey_broadcast(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
		    struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_broadcast, send, recv, count, dtype, 0, root, stream };

	return run(group, &c, result);
}

int covey_broadcast_start(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			  struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_broadcast, send, recv, count, dtype, 0, root, stream };

	return start(group, &c, work);
}

int covey_allgather(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
		    struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_allgather, send, recv, count, dtype, 0, 0, stream };

	return run(group, &c, result);
}

int covey_allgather_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			  struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_allgather, send, recv, count, dtype, 0, 0, stream };

	return start(group, &c, work);
}

int covey_alltoall(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
		   struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_alltoall, send, recv, count, dtype, 0, 0, stream };

	return run(group, &c, result);
}

int covey_alltoall_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			 struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_alltoall, send, recv, count, dtype, 0, 0, stream };

	return start(group, &c, work);
}

int covey_barrier(struct covey_group *group, struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { .kind = &cvy_op_barrier, .dtype = COVEY_UINT8, .stream = stream };

	return run(group, &c, result);
}

int covey_barrier_start(struct covey_group *group, struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { .kind = &cvy_op_barrier, .dtype = COVEY_UINT8, .stream = stream };

	return start(group, &c, work);
}

/* ---- alltoallv ---- */

struct callv {
	struct call c;
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls;
};

/* bytes from the start of an in-place buffer that results may overwrite */
static size_t extent(const struct callv *v, int size, size_t elem)
{
	size_t end = 0;

	for (int r = 0; r < size; r++)
		if (v->sendcounts[r] && v->senddispls[r] + v->sendcounts[r] > end)
			end = v->senddispls[r] + v->sendcounts[r];
	return end * elem;
}

/* Bytes of all blocks and where they begin can be counted. */
static int countable(const struct callv *v, int size)
{
	size_t most = SIZE_MAX / 16 / (size_t)size;

	for (int r = 0; r < size; r++)
		if (v->sendcounts[r] > most || v->senddispls[r] > most || v->recvcounts[r] > most ||
		    v->recvdispls[r] > most)
			return 0;
	return 1;
}

static int makev(struct covey_group *group, const struct callv *v, struct cvy_op **out)
{
	struct cvy_op *op;
	int err = cvy_handle_check_op(group), size;

	if (err)
		return err;
	size = group->engine->size;
	if (!v->sendcounts || !v->senddispls || !v->recvcounts || !v->recvdispls)
		return refuse(group, "alltoallv", "counts or displacements are NULL");
	for (int r = 0; r < size; r++)
		if ((v->sendcounts[r] && !v->c.send) || (v->recvcounts[r] && !v->c.recv))
			return refuse(group, "alltoallv", "a buffer is NULL");
	if (!countable(v, size))
		return refuse(group, "alltoallv", "a count or displacement is too large");
	err = make(group, &v->c, &op);
	if (err)
		return err;
	op->input_bytes = v->c.send == v->c.recv ? extent(v, size, op->elem) : 0;
	err = cvy_alltoallv_plan(group->engine, op, size, v->sendcounts, v->senddispls, v->recvcounts, v->recvdispls);
	if (err) {
		cvy_op_put(op);
		return cvy_fail(group->box, err, -1, 0, "no memory for the counts");
	}
	*out = op;
	return 0;
}

int covey_alltoallv(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
		    const size_t *recvcounts, const size_t *recvdispls, int dtype, struct covey_group *group,
		    struct CUstream_st *stream, struct covey_result *result)
{
	struct callv v = { { &cvy_op_alltoallv, send, recv, 0, dtype, 0, 0, stream },
			   sendcounts,
			   senddispls,
			   recvcounts,
			   recvdispls };
	struct cvy_op *op = NULL;
	int err = makev(group, &v, &op);

	return err ? cvy_calls_failed(err) : cvy_engine_run(group->engine, op, result);
}

int covey_alltoallv_start(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
			  const size_t *recvcounts, const size_t *recvdispls, int dtype, struct covey_group *group,
			  struct CUstream_st *stream, struct covey_work **work)
{
	struct callv v = { { &cvy_op_alltoallv, send, recv, 0, dtype, 0, 0, stream },
			   sendcounts,
			   senddispls,
			   recvcounts,
			   recvdispls };
	struct cvy_op *op = NULL;
	int err = makev(group, &v, &op);

	return err ? err : start_op(group, op, work);
}

/* ---- reduce, reduce_scatter, gather, scatter ---- */

int covey_reduce(const void *send, void *recv, size_t count, int dtype, int redop, int root, struct covey_group *group,
		 struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_reduce, send, recv, count, dtype, redop, root, stream };

	return run(group, &c, result);
}

int covey_reduce_start(const void *send, void *recv, size_t count, int dtype, int redop, int root,
		       struct covey_group *group, struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_reduce, send, recv, count, dtype, redop, root, stream };

	return start(group, &c, work);
}

int covey_reduce_scatter(const void *send, void *recv, size_t recvcount, int dtype, int redop,
			 struct covey_group *group, struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_reduce_scatter, send, recv, recvcount, dtype, redop, 0, stream };

	return run(group, &c, result);
}

int covey_reduce_scatter_start(const void *send, void *recv, size_t recvcount, int dtype, int redop,
			       struct covey_group *group, struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_reduce_scatter, send, recv, recvcount, dtype, redop, 0, stream };

	return start(group, &c, work);
}

int covey_gather(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
		 struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_gather, send, recv, count, dtype, 0, root, stream };

	return run(group, &c, result);
}

int covey_gather_start(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
		       struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_gather, send, recv, count, dtype, 0, root, stream };

	return start(group, &c, work);
}

int covey_scatter(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
		  struct CUstream_st *stream, struct covey_result *result)
{
	struct call c = { &cvy_op_scatter, send, recv, count, dtype, 0, root, stream };

	return run(group, &c, result);
}

int covey_scatter_start(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			struct CUstream_st *stream, struct covey_work **work)
{
	struct call c = { &cvy_op_scatter, send, recv, count, dtype, 0, root, stream };

	return start(group, &c, work);
}

/* ---- allgatherv ---- */

struct callg {
	struct call c;
	const size_t *counts, *displs;
};

/* What is wrong with the counts, NULL: nothing. Their sum is what the signature shows as count. */
static const char *check_counts(const struct callg *g, const struct cvy_engine *e, size_t *sum)
{
	size_t most = SIZE_MAX / 16 / (size_t)e->size;

	if (!g->counts || !g->displs)
		return "counts or displacements are NULL";
	*sum = 0;
	for (int r = 0; r < e->size; r++) {
		if (g->counts[r] > most || g->displs[r] > most)
			return "a count or displacement is too large";
		*sum += g->counts[r];
	}
	if (g->c.count != g->counts[e->rank])
		return "sendcount is not recvcounts[own rank]";
	if ((*sum && !g->c.recv) || (g->c.count && !g->c.send))
		return "a buffer is NULL";
	return NULL;
}

static int makeg(struct covey_group *group, const struct callg *g, struct cvy_op **out)
{
	static uint8_t nothing[1];
	struct callg call = *g;
	const char *wrong;
	size_t sum = 0;
	int err = cvy_handle_check_op(group);

	if (err)
		return err;
	wrong = check_counts(g, group->engine, &sum);
	if (wrong)
		return refuse(group, "allgatherv", wrong);
	call.c.send = g->c.send ? g->c.send : nothing;
	call.c.recv = g->c.recv ? g->c.recv : nothing;
	call.c.count = 0;
	err = make(group, &call.c, out);
	if (err)
		return err;
	(*out)->count = sum;
	err = cvy_allgatherv_plan(group->engine, *out, group->engine->size, g->counts, g->displs);
	if (err) {
		cvy_op_put(*out);
		return cvy_fail(group->box, err, -1, 0, "no memory for the counts");
	}
	cvy_op_sign(*out, group->engine->on_loss);
	return 0;
}

int covey_allgatherv(const void *send, size_t sendcount, void *recv, const size_t *recvcounts, const size_t *recvdispls,
		     int dtype, struct covey_group *group, struct CUstream_st *stream, struct covey_result *result)
{
	struct callg g = { { &cvy_op_allgatherv, send, recv, sendcount, dtype, 0, 0, stream }, recvcounts, recvdispls };
	struct cvy_op *op = NULL;
	int err = makeg(group, &g, &op);

	return err ? cvy_calls_failed(err) : cvy_engine_run(group->engine, op, result);
}

int covey_allgatherv_start(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
			   const size_t *recvdispls, int dtype, struct covey_group *group, struct CUstream_st *stream,
			   struct covey_work **work)
{
	struct callg g = { { &cvy_op_allgatherv, send, recv, sendcount, dtype, 0, 0, stream }, recvcounts, recvdispls };
	struct cvy_op *op = NULL;
	int err = makeg(group, &g, &op);

	return err ? err : start_op(group, op, work);
}
