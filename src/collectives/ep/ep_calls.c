/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey_dispatch* and covey_combine*: whole, and in two phases. A handle keeps no state of an operation besides the posted
 * operation itself, so a redo in a new view needs nothing from here.
 */
#include "calls.h"
#include "clock.h"
#include "ep.h"
#include "handle.h"

/* Takes @call over, also if it fails. */
static int post(struct covey_ep *ep, int which, struct cvy_ep_call *call, int timeout_ms)
{
	struct cvy_engine *e = cvy_handle_engine(ep->group);
	struct cvy_op *op = cvy_op_new(e, which == CVY_EP_DISPATCHES ? &cvy_op_dispatch : &cvy_op_combine);
	int err, on_loss;

	if (!op) {
		cvy_ep_call_free(call);
		return cvy_ep_fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
	}
	op->priv = call;
	__atomic_add_fetch(&ep->refs, 1, __ATOMIC_RELAXED);
	op->behind = ep->behind;
	op->rounds = 1;
	op->ticks = 1;
	op->dtype = ep->dtype;
	op->count = (size_t)ep->sign;
	if (!timeout_ms)
		timeout_ms = cvy_engine_late_ms(e);
	if (timeout_ms > 0)
		op->timeout_ns = (uint64_t)timeout_ms * CVY_MS;
	/* a deadline on all ranks or on none; the same for active_ranks and smooth */
	op->detail = (uint64_t)(timeout_ms > 0) | (uint64_t)(call->active != NULL) << 1;
	op->partial = op->detail != 0;
	op->detail |= (uint64_t)(which == CVY_EP_DISPATCHES && call->dispatch.smooth != NULL) << 2;
	pthread_mutex_lock(cvy_engine_lock(e));
	on_loss = cvy_site(e)->on_loss;
	pthread_mutex_unlock(cvy_engine_lock(e));
	cvy_op_sign(op, on_loss);
	err = cvy_engine_post(e, op);
	if (err) {
		cvy_op_put(op);
		return err;
	}
	ep->sent[which] = op;
	ep->last = op->seq;
	return 0;
}

static int receive(struct covey_ep *ep, int which, uint64_t deadline_ns, struct covey_result *result)
{
	struct cvy_op *op;
	int err;

	if (!ep)
		return COVEY_ERR_INVAL;
	if (cvy_handle_check(ep->group) == COVEY_ERR_FORKED) /* only the parent steps it */
		return COVEY_ERR_FORKED;
	op = ep->sent[which];
	if (!op) {
		err = cvy_handle_check(ep->group);
		return err ? err : cvy_ep_refuse(ep->group, "nothing was sent");
	}
	if (!cvy_op_decided(op)) {
		err = cvy_engine_wait(cvy_handle_engine(ep->group), op, deadline_ns ? deadline_ns : CVY_NEVER);
		if (err)
			return err;
	}
	err = op->result.status;
	if (result)
		*result = op->result;
	ep->sent[which] = NULL;
	cvy_op_put(op);
	return err;
}

/* @args: of the operation that @which names. */
static int begin(struct covey_ep *ep, int which, const void *args, struct CUstream_st *stream, int phases,
		 struct covey_result *result)
{
	int dispatches = which == CVY_EP_DISPATCHES, err;
	struct covey_dispatch_args d;
	struct covey_combine_args c;
	struct cvy_ep_call *call;

	if (!ep)
		return COVEY_ERR_INVAL;
	err = dispatches ? cvy_ep_check_dispatch(ep, args, stream, &d) : cvy_ep_check_combine(ep, args, stream, &c);
	if (err)
		return err;
	if (stream)
		return dispatches ? cvy_ep_device_dispatch(ep, &d, stream, phases, result)
				  : cvy_ep_device_combine(ep, &c, stream, phases, result);
	call = cvy_ep_call_new(ep, which);
	if (call && dispatches)
		call->dispatch = d;
	else if (call)
		call->combine = c;
	if (!call ||
	    cvy_ep_active_open(call, dispatches ? d.active_ranks : c.active_ranks, dispatches ? d.waited : c.waited)) {
		cvy_ep_call_free(call);
		return cvy_ep_fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
	}
	return post(ep, which, call, dispatches ? d.timeout_ms : c.timeout_ms);
}

static int end(struct covey_ep *ep, int which, uint64_t deadline_ns, struct covey_result *result)
{
	int err = ep ? cvy_ep_device_receive(ep, which, result) : COVEY_ERR_INVAL;

	return err == CVY_EP_NOT_SENT ? receive(ep, which, deadline_ns, result) : err;
}

/* Grouped, it would wait last, after the combine that needs the dispatched rows. The halves say when to wait. */
static int whole(struct covey_ep *ep, int which, const void *args, struct CUstream_st *stream,
		 struct covey_result *result)
{
	int err;

	if (ep && cvy_calls_open())
		return cvy_calls_failed(cvy_ep_refuse(ep->group, "in grouped calls: use the _send and _recv forms"));
	err = begin(ep, which, args, stream, CVY_EP_BOTH_PHASES, result);
	return err || stream ? err : receive(ep, which, 0, result);
}

#define CALLS(name, which) \
	COVEY_API int covey_##name##_send(struct covey_ep *ep, const struct covey_##name##_args *args, \
					  struct CUstream_st *stream) \
	{ \
		return begin(ep, which, args, stream, CVY_EP_SEND_PHASE, NULL); \
	} \
	COVEY_API int covey_##name##_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result) \
	{ \
		return end(ep, which, deadline_ns, result); \
	} \
	COVEY_API int covey_##name(struct covey_ep *ep, const struct covey_##name##_args *args, \
				   struct CUstream_st *stream, struct covey_result *result) \
	{ \
		return whole(ep, which, args, stream, result); \
	}

CALLS(dispatch, CVY_EP_DISPATCHES)
CALLS(combine, CVY_EP_COMBINES)
