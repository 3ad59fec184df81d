/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation of a member, chosen by the step alone, and checked element by element against the right result of its
 * contributors. Element i of rank r for destination d is (r + 1) * (1 to 61, from i, d and the step): small integers,
 * so that sums are exact, and different in every step, so that no left-over bytes pass.
 */
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define BLOCKS CHAOS_MAX_RANKS
#define VALUES 61 /* a prime */
#define STRIDE 7
#define INVERSE 35 /* of STRIDE modulo VALUES */

static size_t shift(const struct chaos_member *m, int to)
{
	return (size_t)((m->step * 3 + (uint64_t)to * 5) % VALUES * INVERSE % VALUES);
}

const float *chaos_inputs(const struct chaos_member *m, int to)
{
	return m->inputs + shift(m, to);
}

float chaos_value(const struct chaos_member *m, int rank, int to, size_t i)
{
	return (float)(rank + 1) * (float)((i + shift(m, to)) % VALUES * STRIDE % VALUES + 1);
}

/* One sequence for all: from another beginning it is that of another step and destination. */
int chaos_inputs_make(struct chaos_member *m, size_t bytes)
{
	size_t count = bytes / sizeof(float) + VALUES;

	m->inputs = malloc(count * sizeof(float));
	for (size_t i = 0; i < count && m->inputs; i++)
		m->inputs[i] = (float)(i % VALUES * STRIDE % VALUES + 1);
	return m->inputs ? 0 : -1;
}

static void fill(const struct chaos_member *m, float *at, int to, size_t count)
{
	const float *in = chaos_inputs(m, to);

	for (size_t i = 0; i < count; i++)
		at[i] = (float)(m->rank + 1) * in[i];
}

/* @count elements must be @weight times what all ranks' inputs for @to are a multiple of. */
static int expect(struct chaos_member *m, const char *what, const float *got, float weight, int to, size_t count)
{
	const float *in = chaos_inputs(m, to);

	for (size_t i = 0; i < count; i++)
		if (got[i] != weight * in[i])
			return chaos_bad_bytes(m, what, i, got[i], weight * in[i]);
	return 0;
}

int chaos_expect_block(struct chaos_member *m, const char *what, const float *got, int r, int to, size_t count)
{
	return expect(m, what, got, m->record.mask >> r & 1 ? (float)(r + 1) : 0, to, count);
}

static uint64_t checksum(const float *data, size_t count)
{
	uint64_t sum = count, word;
	uint32_t last = 0;

	for (size_t i = 0; i + 1 < count; i += 2) {
		memcpy(&word, data + i, sizeof(word));
		sum += word * (2 * i + 1);
	}
	if (count % 2)
		memcpy(&last, data + count - 1, sizeof(last));
	return sum + last;
}

size_t chaos_elements(const struct chaos_member *m)
{
	return m->crew->bytes[m->random % (uint64_t)m->crew->sizes] / sizeof(float);
}

static bool in_place(const struct chaos_member *m)
{
	return !m->crew->plain && (m->random >> 20) % 3 == 0;
}

/* Started and waited for, or as one call: drawn for each rank, so that both meet in one operation. */
bool chaos_in_two(const struct chaos_member *m)
{
	return !m->crew->plain && ((m->random >> 44) + (uint64_t)m->rank) % 4 == 0;
}

int chaos_started(struct chaos_member *m, int err, struct covey_result *result)
{
	if (!err)
		err = covey_work_wait(m->work, 0, result);
	covey_work_free(m->work);
	m->work = NULL;
	return err;
}

/*
 * Sends to the right and receives from the left, beside a barrier whose outcome is logged. Messages with a removed or
 * missing rank fail; received ones are whole and of this step.
 */
static int run_messages(struct chaos_member *m)
{
	int right = (m->rank + 1) % m->size, left = (m->rank + m->size - 1) % m->size;
	struct covey_result result = { 0 }, sent = { 0 }, got = { 0 };
	int tag = (int)(m->step % INT32_MAX), err, code;
	size_t count = chaos_elements(m);

	fill(m, m->send, right, count);
	memset(m->recv, 1, count * sizeof(float));
	chaos_begin(m, CHAOS_W_MESSAGES);
	covey_group_start(); /* the end returns any refusal of the calls */
	covey_send(m->send, count, COVEY_FLOAT32, right, tag, m->group, NULL, &sent);
	covey_recv(m->recv, count, COVEY_FLOAT32, left, tag, m->group, NULL, &got);
	covey_barrier(m->group, NULL, &result);
	err = covey_group_end();
	if (err == COVEY_ERR_PEER && (sent.status == err || got.status == err))
		err = result.status;
	code = chaos_end(m, err, &result);
	if (code || m->record.status || got.status)
		return code;
	return expect(m, "message", m->recv, (float)(left + 1), m->rank, count);
}

static int choose(const struct chaos_member *m)
{
	uint64_t nth = (m->random >> 32) % (uint64_t)__builtin_popcount(m->crew->work);
	int op = OP_ALLREDUCE;

	for (;; op++)
		if (m->crew->work >> op & 1 && !nth--)
			return op;
}

/* Elements of the result that are the same on all ranks; the gaps between blocks are filled, too. */
static size_t uniform(const struct chaos_member *m, const struct chaos_call *c)
{
	const struct operation *o = &operation_table[c->op];
	size_t blocks = o->recv_blocks ? (size_t)m->size : 1;

	return o->send_blocks || o->to_root || o->no_data ? 0 : (c->count + (o->uneven ? CHAOS_CALL_GAP : 0)) * blocks;
}

static int run(struct chaos_member *m, int op)
{
	const struct operation *o = &operation_table[op];
	struct chaos_call c = { .op = op,
				.count = operation_has_blocks(o) ? chaos_elements(m) / BLOCKS + 1 : chaos_elements(m),
				.dtype = COVEY_FLOAT32,
				.redop = COVEY_SUM,
				.root = (int)((m->random >> 24) % (uint64_t)m->size),
				.more_at = -1,
				.in_place = in_place(m) };
	struct chaos_blocks u = chaos_call_lay_out(m, &c);
	struct covey_result result = { 0 };
	int err, code;

	if (op == CHAOS_W_MESSAGES)
		return run_messages(m);
	chaos_call_fill(m, &c, &u);
	chaos_begin(m, op);
	err = chaos_call_make(m, &c, &u, &result);
	code = chaos_end(m, err, &result);
	/* Of these LOST is for overwritten inputs: else it would be a fault of the library. */
	if (!code && err == COVEY_ERR_LOST && !c.in_place && o->reduces && !o->send_blocks)
		return chaos_member_fail(m, "an operation that is not in place", err);
	if (code || m->record.status)
		return code;
	if (uniform(m, &c))
		m->record.checksum = checksum(m->recv, uniform(m, &c));
	return chaos_call_check(m, &c, &u);
}

int chaos_work(struct chaos_member *m)
{
	int op = choose(m);
	struct chaos_mistake mistake;
	int code;

	if (chaos_mistake_draw(m, &mistake))
		return chaos_mistake_work(m, &mistake);
	if (op == CHAOS_W_DISPATCH)
		return m->crew->mix.handles && chaos_draw(m, 3, 4) ? chaos_handles_work(m) : chaos_ep_work(m);
	code = chaos_block_take(m, chaos_elements(m) * sizeof(float));
	if (!code)
		code = run(m, op);
	if (!code)
		code = chaos_block_give(m);
	if (!code)
		chaos_put(m);
	return code;
}
