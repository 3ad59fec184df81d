/* SPDX-License-Identifier: Apache-2.0 */
/* covey_send and covey_recv: arguments are checked, an operation is made, then posted or waited for. */
#include "algo.h"
#include "call.h"
#include "calls.h"
#include "clock.h"
#include "device_message.h"
#include "device_work.h"
#include "handle.h"
#include "pair.h"
#include "reduce.h"

struct message { /* one call, before it is an operation */
	const void *send;
	void *recv;
	int sending;
	size_t count;
	int dtype, peer, tag;
	struct CUstream_st *stream;
};

static int refuse(struct covey_group *group, const struct message *m, const char *why)
{
	return cvy_fail(group->box, COVEY_ERR_INVAL, m->peer, group->here->epoch, "%s: %s",
			m->sending ? "send" : "recv", why);
}

static int check(struct covey_group *group, const struct message *m, size_t *bytes)
{
	size_t elem = cvy_dtype_bytes(m->dtype);
	int err = cvy_handle_check_op(group);

	if (err || !group)
		return err;
	if (!elem)
		return refuse(group, m, "unknown datatype; see enum covey_dtype");
	if (__builtin_mul_overflow(m->count, elem, bytes) || *bytes > SIZE_MAX / 2)
		return refuse(group, m, "count is too large");
	if (m->peer < 0 || m->peer >= group->config.max_ranks)
		return refuse(group, m, "peer is not a rank of the group");
	if (m->tag < 0 && (m->sending || m->tag != COVEY_TAG_ANY))
		return refuse(group, m, "tag must be 0 or more; a receive may say COVEY_TAG_ANY");
	if (*bytes && !(m->sending ? m->send : m->recv))
		return refuse(group, m, "the buffer is NULL");
	return cvy_call_memory(group, m->sending ? "send" : "recv", m->stream, *bytes ? m->send : NULL,
			       *bytes ? m->recv : NULL);
}

static int make(struct covey_group *group, const struct message *m, struct cvy_op **out)
{
	static uint8_t nothing[1]; /* NULL is allowed if no bytes move, but not for memcpy */
	size_t bytes = 0;
	int err = check(group, m, &bytes);
	struct cvy_op *op;

	if (err || !group)
		return err;
	op = cvy_pair_op(group->engine, m->sending, m->tag);
	if (!op)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a message");
	op->send = m->send ? m->send : nothing;
	op->recv = m->recv ? m->recv : nothing;
	op->count = m->count;
	op->elem = cvy_dtype_bytes(m->dtype);
	op->dtype = m->dtype;
	op->bytes = bytes;
	op->root = m->peer;
	*out = op;
	return 0;
}

static struct cvy_device_message on_device(const struct message *m)
{
	return (struct cvy_device_message){ .sending = m->sending,
					    .at = m->sending ? (void *)(uintptr_t)m->send : m->recv,
					    .peer = m->peer,
					    .tag = m->tag,
					    .grouped = cvy_calls_open(),
					    .stream = m->stream };
}

static int run_on_device(struct covey_group *group, const struct message *m, struct covey_result *result)
{
	struct cvy_device_message x = on_device(m);
	int err = check(group, m, &x.bytes);

	x.result = result;
	if (!err)
		err = cvy_device_message(group->device, &x);
	return err ? cvy_calls_failed(err) : 0;
}

static int start_on_device(struct covey_group *group, const struct message *m, struct covey_work **out)
{
	struct cvy_device_message x = on_device(m);
	struct covey_work *work = NULL;
	int err = check(group, m, &x.bytes);

	if (err)
		return cvy_calls_failed(err);
	if (!out)
		return cvy_calls_failed(refuse(group, m, "work is NULL"));
	err = cvy_device_work_new(group, m->sending ? "send" : "recv", m->stream, &work);
	if (err || !work)
		return cvy_calls_failed(err);
	work->is_message = 1;
	x.receipt = work->receipt;
	err = cvy_device_message(group->device, &x);
	if (err) {
		covey_work_free(work);
		return cvy_calls_failed(err);
	}
	cvy_device_message_known(group->device, &x, &work->outcome);
	*out = work;
	return 0;
}

static int run(struct covey_group *group, const struct message *m, struct covey_result *result)
{
	struct cvy_op *op = NULL;
	int err;

	if (group && !group->forked && m->stream && group->device)
		return run_on_device(group, m, result);
	err = make(group, m, &op);
	if (!op)
		return cvy_calls_failed(err);
	if (cvy_calls_open())
		return cvy_calls_add(group->engine, op, result, cvy_pair_post);
	err = cvy_pair_post(group->engine, op);
	if (!err) {
		cvy_engine_wait(group->engine, op, CVY_NEVER);
		err = op->result.status;
		if (result)
			*result = op->result;
	}
	cvy_op_put(op);
	return err;
}

static int start(struct covey_group *group, const struct message *m, struct covey_work **out)
{
	struct covey_work *work;
	struct cvy_op *op = NULL;
	int err;

	if (group && !group->forked && m->stream && group->device)
		return start_on_device(group, m, out);
	err = make(group, m, &op);
	if (err || !op)
		return err;
	if (!out) {
		cvy_op_put(op);
		return refuse(group, m, "work is NULL");
	}
	work = cvy_work_of(group, op);
	if (!work) {
		cvy_op_put(op);
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a work");
	}
	op->posted_ns = cvy_now_ns();
	err = cvy_pair_post(group->engine, op);
	if (err) {
		covey_work_free(work);
		return err;
	}
	cvy_engine_kick(group->engine);
	*out = work;
	return 0;
}

/* A call: its blocking form and its start. */
#define CALL(name, sending, buffer, ...) \
	int covey_##name(buffer, size_t count, int dtype, int peer, int tag, struct covey_group *group, \
			 struct CUstream_st *stream, struct covey_result *result) \
	{ \
		struct message m = { __VA_ARGS__, sending, count, dtype, peer, tag, stream }; \
		return run(group, &m, result); \
	} \
	int covey_##name##_start(buffer, size_t count, int dtype, int peer, int tag, struct covey_group *group, \
				 struct CUstream_st *stream, struct covey_work **work) \
	{ \
		struct message m = { __VA_ARGS__, sending, count, dtype, peer, tag, stream }; \
		return start(group, &m, work); \
	}

CALL(send, 1, const void *buf, buf, NULL)
CALL(recv, 0, void *buf, NULL, buf)
