/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of covey.h: arguments are checked, an operation is planned, then posted or run. */
#include "covey_admin.h"
#include "algo.h"
#include "call.h"
#include "calls.h"
#include "device.h"
#include "device_explain.h"
#include "device_work.h"
#include "gpu.h"
#include "handle.h"
#include "plan.h"
#include "reduce.h"

int cvy_call_refuse(struct covey_group *group, const char *what, const char *why)
{
	return cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch, "%s: %s", what, why);
}

int cvy_call_unsupported(struct covey_group *group, const char *what, const char *why)
{
	cvy_fail(group->box, COVEY_ERR_UNSUPPORTED, group->here->rank, group->here->epoch, "%s: %s", what, why);
	return COVEY_ERR_UNSUPPORTED;
}

static int reduces(const struct cvy_op_kind *kind)
{
	return kind == &cvy_op_allreduce || kind == &cvy_op_reduce || kind == &cvy_op_reduce_scatter;
}

/* Does this rank read the send buffer, write the receive buffer? */
static int sends(const struct cvy_call *c, int rank)
{
	return c->root == rank || (c->kind != &cvy_op_broadcast && c->kind != &cvy_op_scatter);
}

static int receives(const struct cvy_call *c, int rank)
{
	return c->root == rank || (c->kind != &cvy_op_reduce && c->kind != &cvy_op_gather);
}

int cvy_call_memory(struct covey_group *group, const char *what, const struct CUstream_st *stream, const void *send,
		    const void *recv)
{
	const int on_device = stream != NULL;

	if (!group->device)
		return !on_device ? 0
				  : cvy_call_unsupported(group, what,
							 "a stream needs a group that was joined with a device "
							 "(device, COVEY_DEVICE)");
	if ((!send || cvy_device_holds(group->device, send) == on_device) &&
	    (!recv || cvy_device_holds(group->device, recv) == on_device))
		return 0;
	return cvy_call_refuse(group, what,
			       on_device ? "with a stream all buffers are memory of the device"
					 : "a buffer is memory of the device: give a stream; the default stream is "
					   "COVEY_STREAM_DEFAULT");
}

/*
 * Do the received bytes overlap the sent ones, other than in place? The input would be overwritten before it is read,
 * or before an operation that is executed again reads it.
 */
static int stands_over(const struct covey_group *group, const struct cvy_call *c, size_t bytes)
{
	size_t all = bytes * (size_t)group->here->size, own = bytes * (size_t)group->here->rank;
	int to_one = c->kind == &cvy_op_reduce_scatter || c->kind == &cvy_op_scatter;
	int from_one = c->kind == &cvy_op_allgather || c->kind == &cvy_op_gather;
	uintptr_t send = (uintptr_t)c->send, recv = (uintptr_t)c->recv;

	if (!bytes || !send || !recv || !sends(c, group->here->rank) || !receives(c, group->here->rank))
		return 0;
	if (to_one ? recv == send + own : from_one ? send == recv + own : send == recv)
		return 0;
	if (c->kind == &cvy_op_alltoall)
		to_one = from_one = 1;
	return send < recv + (from_one ? all : bytes) && recv < send + (to_one ? all : bytes);
}

int cvy_call_check(struct covey_group *group, const struct cvy_call *c, size_t *bytes)
{
	size_t elem = cvy_dtype_bytes(c->dtype), most;
	int err = cvy_handle_check_op(group), sending, receiving;

	if (err || !group)
		return err;
	if (!elem)
		return cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch,
				"%s: unknown datatype %d; see enum covey_dtype", c->kind->name, c->dtype);
	if (reduces(c->kind) && !cvy_redop_known(c->redop))
		return cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch,
				"%s: unknown operation %d; see enum covey_redop", c->kind->name, c->redop);
	if (__builtin_mul_overflow(c->count, elem * (size_t)(group->here->size + 1), &most))
		return cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch,
				"%s: count %zu is too large: %d blocks of so many elements have more than 2^64 bytes",
				c->kind->name, c->count, group->here->size);
	if (c->root < 0 || c->root >= group->here->size)
		return cvy_fail(group->box, COVEY_ERR_INVAL, group->here->rank, group->here->epoch,
				"%s: root %d is no rank of the group, which has size %d", c->kind->name, c->root,
				group->here->size);
	if (cvy_in_parts(c->kind) && group->here->layout.stride / (size_t)group->here->size < CVY_PART_MIN)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"%s: slot_bytes %zu is too small for %d ranks: at least %zu is needed", c->kind->name,
				group->here->layout.slot_bytes, group->here->size,
				(size_t)group->here->size * CVY_PART_MIN / 2);
	*bytes = c->count * elem;
	sending = *bytes && sends(c, group->here->rank);
	receiving = *bytes && receives(c, group->here->rank);
	if ((receiving && !c->recv) || (sending && !c->send))
		return cvy_call_refuse(group, c->kind->name, "a buffer is NULL");
	err = cvy_call_memory(group, c->kind->name, c->stream, sending ? c->send : NULL, receiving ? c->recv : NULL);
	if (err)
		return err;
	if (stands_over(group, c, *bytes))
		return cvy_call_refuse(group, c->kind->name,
				       "send and recv overlap and are not in place: covey.h says where each operation "
				       "has its input then");
	return 0;
}

int cvy_call_make(struct covey_group *group, const struct cvy_call *c, struct cvy_op **out)
{
	static uint8_t nothing[1]; /* NULL is allowed if no bytes move, but not for memcpy */
	struct cvy_op *op;
	size_t bytes = 0;
	int err = cvy_call_check(group, c, &bytes);

	if (err || !group)
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
		op->kind->plan(group->engine, op, group->here->size);
	cvy_op_sign(op, group->here->on_loss);
	*out = op;
	return 0;
}

/* Posts it as a work; takes over the caller's reference. */
static int post(struct covey_group *group, struct cvy_op *op, struct covey_work **out)
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

/* Do results overwrite inputs that the operation would need again? */
static int overwrites(const struct cvy_call *c, int kind, size_t bytes, int rank)
{
	if (kind == CVY_GPU_REDUCE_SCATTER)
		return c->recv == (const uint8_t *)c->send + (size_t)rank * bytes;
	return c->send == c->recv && (kind == CVY_GPU_ALLREDUCE || kind == CVY_GPU_REDUCE);
}

static int run_on_device(struct covey_group *group, const void *arg, struct covey_result *result)
{
	const struct cvy_call *c = arg;
	struct cvy_gpu_call call = { .send = c->send, .recv = c->recv, .dtype = c->dtype, .redop = c->redop };
	size_t bytes = 0;
	int err = cvy_call_check(group, c, &bytes);

	if (err)
		return err;
	call.kind = gpu_kind(c->kind);
	call.bytes = bytes;
	call.root = rooted(call.kind) ? c->root : -1;
	/* No packets: a rank that runs ahead would overwrite unread data. (Others of a root have signals.) */
	if (!bytes && (call.root < 0 || call.kind == CVY_GPU_REDUCE))
		call.kind = CVY_GPU_BARRIER;
	call.size = group->here->size;
	call.in_place = overwrites(c, call.kind, bytes, group->here->rank);
	return cvy_device_run(group->device, &call, c->stream, result);
}

static int on_device(const struct covey_group *group, const struct cvy_call *c)
{
	return group && !group->forked && c->stream && group->device;
}

/* As cvy_call_run(); the last call made again is not checked and planned again. */
static int run(struct covey_group *group, const struct cvy_call *c, struct covey_result *result)
{
	struct cvy_asked asked = { c->kind, c->send, c->recv, c->count, c->dtype, c->redop, c->root };
	struct cvy_op *op = NULL;
	uint32_t plans = 0;
	int err;

	if (on_device(group, c))
		return cvy_calls_failed(run_on_device(group, c, result));
	if (group && !group->forked && !c->stream) {
		if (!cvy_calls_open() && cvy_engine_again(group->engine, &asked, result, &err))
			return err;
		plans = __atomic_load_n(&group->here->plans, __ATOMIC_RELAXED);
	}
	err = cvy_call_make(group, c, &op);
	if (err || !group)
		return cvy_calls_failed(err);
	op->asked = asked;
	op->planned = plans;
	return cvy_calls_run(group->engine, op, result);
}

int cvy_call_run(struct covey_group *group, const struct cvy_call_form *form, const struct cvy_call *c,
		 struct covey_result *result)
{
	struct cvy_op *op = NULL;
	int err;

	if (on_device(group, c))
		return cvy_calls_failed(form->launch(group, c, result));
	err = form->make(group, c, &op);
	return err || !group ? cvy_calls_failed(err) : cvy_calls_run(group->engine, op, result);
}

int cvy_call_start(struct covey_group *group, const struct cvy_call_form *form, const struct cvy_call *c,
		   struct covey_work **work)
{
	struct cvy_op *op = NULL;
	int err;

	if (on_device(group, c)) {
		const struct cvy_device_launch l = { c->kind->name, c->stream, form->launch, c };

		return cvy_device_work_start(group, &l, work);
	}
	err = form->make(group, c, &op);
	return err || !group ? err : post(group, op, work);
}

static const struct cvy_call_form even = { cvy_call_make, run_on_device };

int covey_set_on_loss(struct covey_group *group, int on_loss)
{
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (on_loss != COVEY_ON_LOSS_CONTINUE && on_loss != COVEY_ON_LOSS_FAIL)
		return cvy_call_refuse(group, "on_loss", "must be COVEY_ON_LOSS_CONTINUE or COVEY_ON_LOSS_FAIL");
	cvy_engine_set_on_loss(group->engine, on_loss);
	return 0;
}

int covey_set_slice(struct covey_group *group, int ms)
{
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (ms < 0)
		return cvy_call_refuse(group, "slice", "must be 0 or more");
	cvy_engine_set_slice(group->engine, ms);
	return 0;
}

int covey_explain(struct covey_group *group, char *text, size_t bytes)
{
	int err = cvy_handle_check(group);
	struct covey_view view;
	char *all = NULL;
	size_t n = 0;
	FILE *to;

	if (err)
		return err;
	if (!text || !bytes)
		return cvy_call_refuse(group, "explain", "text is NULL");
	err = covey_view(group, &view);
	if (err)
		return err;
	to = open_memstream(&all, &n);
	if (to) {
		cvy_plan_explain(group->engine, to);
		if (group->device) {
			cvy_device_explain(group->device, to);
			cvy_device_ep_forms(view.size, view.max_ranks, to);
		}
	}
	if (!to || fclose(to)) {
		free(all);
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a table");
	}
	snprintf(text, bytes, "%s", all);
	free(all);
	return 0;
}

/* A collective: its blocking form and its start, of the arguments in the first parentheses. */
#define CALL(name, arguments, ...) \
	int covey_##name(EACH arguments, struct covey_group *group, struct CUstream_st *stream, \
			 struct covey_result *result) \
	{ \
		struct cvy_call c = { &cvy_op_##name, __VA_ARGS__, stream }; \
		return run(group, &c, result); \
	} \
	int covey_##name##_start(EACH arguments, struct covey_group *group, struct CUstream_st *stream, \
				 struct covey_work **work) \
	{ \
		struct cvy_call c = { &cvy_op_##name, __VA_ARGS__, stream }; \
		return cvy_call_start(group, &even, &c, work); \
	}
#define EACH(...) __VA_ARGS__
#define BUFFERS const void *send, void *recv, size_t count, int dtype

CALL(allreduce, (BUFFERS, int redop), send, recv, count, dtype, redop, 0)
CALL(broadcast, (BUFFERS, int root), send, recv, count, dtype, 0, root)
CALL(allgather, (BUFFERS), send, recv, count, dtype, 0, 0)
CALL(alltoall, (BUFFERS), send, recv, count, dtype, 0, 0)
CALL(reduce, (BUFFERS, int redop, int root), send, recv, count, dtype, redop, root)
CALL(reduce_scatter, (BUFFERS, int redop), send, recv, count, dtype, redop, 0)
CALL(gather, (BUFFERS, int root), send, recv, count, dtype, 0, root)
CALL(scatter, (BUFFERS, int root), send, recv, count, dtype, 0, root)

int covey_barrier(struct covey_group *group, struct CUstream_st *stream, struct covey_result *result)
{
	struct cvy_call c = { .kind = &cvy_op_barrier, .dtype = COVEY_UINT8, .stream = stream };

	return run(group, &c, result);
}

int covey_barrier_start(struct covey_group *group, struct CUstream_st *stream, struct covey_work **work)
{
	struct cvy_call c = { .kind = &cvy_op_barrier, .dtype = COVEY_UINT8, .stream = stream };

	return cvy_call_start(group, &even, &c, work);
}
