/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation of a member, chosen by the step alone, and checked element by element against the right result of its
 * contributors. Element i of rank r for destination d is (r + 1) * (1 to 61, from i, d and the step): small integers,
 * so that sums are exact, and different in every step, so that no left-over bytes pass.
 */
#include <stdlib.h>
#include <string.h>

#include "work.h"

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

/* Sums of the contributors. */
static int expect_sum(struct chaos_member *m, const char *what, const float *got, int to, size_t count)
{
	float weight = 0;

	for (int r = 0; r < BLOCKS; r++)
		weight += (float)(m->record.mask >> r & 1) * (float)(r + 1);
	return expect(m, what, got, weight, to, count);
}

int chaos_expect_block(struct chaos_member *m, const char *what, const float *got, int r, int to, size_t count)
{
	return expect(m, what, got, m->record.mask >> r & 1 ? (float)(r + 1) : 0, to, count);
}

/* The result is for the root alone: elsewhere not a byte is touched. */
static int expect_untouched(struct chaos_member *m, const char *what, size_t count)
{
	return expect(m, what, m->recv, 0, 0, count);
}

static uint64_t checksum(const float *data, size_t count)
{
	uint64_t sum = count;
	uint32_t word;

	for (size_t i = 0; i < count; i++) {
		memcpy(&word, data + i, sizeof(word));
		sum += (uint64_t)word * (2 * i + 1);
	}
	return sum;
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

#define AT(host) chaos_there(m, host)

/* The call on a device: launched, or captured and replayed, and waited for. */
#define LAUNCH(m, ...) chaos_device_end(m, chaos_device_begin(m) ? COVEY_ERR_IO : covey_##__VA_ARGS__, &result)

/* The call, with the arguments before the stream; the outcome in `result`. */
#define CALL(m, name, ...) \
	((m)->device ? LAUNCH(m, name(__VA_ARGS__, (m)->group, chaos_stream(m), &result)) \
	 : chaos_in_two(m) \
		 ? chaos_started(m, covey_##name##_start(__VA_ARGS__, (m)->group, NULL, &(m)->work), &result) \
		 : covey_##name(__VA_ARGS__, (m)->group, NULL, &result))

static int run_allreduce(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	size_t count = chaos_elements(m);
	float *from = in_place(m) ? m->recv : m->send;
	int err, code;

	fill(m, from, 0, count);
	chaos_begin(m, CHAOS_W_ALLREDUCE);
	err = CALL(m, allreduce, AT(from), AT(m->recv), count, COVEY_FLOAT32, COVEY_SUM);
	code = chaos_end(m, err, &result);
	if (code || m->record.status) {
		/* LOST is for overwritten inputs: elsewhere it would be a fault of the library. */
		return code || err != COVEY_ERR_LOST || from == m->recv
			       ? code
			       : chaos_member_fail(m, "allreduce not in place", err);
	}
	m->record.checksum = checksum(m->recv, count);
	return expect_sum(m, "allreduce", m->recv, 0, count);
}

static int run_broadcast(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	int root = (int)((m->random >> 24) % (uint64_t)m->size), err, code;
	size_t count = chaos_elements(m);
	float *from = in_place(m) ? m->recv : m->send;

	fill(m, from, 0, count);
	chaos_begin(m, CHAOS_W_BROADCAST);
	err = CALL(m, broadcast, AT(from), AT(m->recv), count, COVEY_FLOAT32, root);
	code = chaos_end(m, err, &result);
	if (code || m->record.status)
		return code;
	m->record.checksum = checksum(m->recv, count);
	return expect(m, "broadcast", m->recv, (float)(root + 1), 0, count);
}

static int run_allgather(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	size_t block = chaos_elements(m) / BLOCKS + 1;
	float *own = in_place(m) ? m->recv + (size_t)m->rank * block : m->send;
	int err, code;

	memset(m->recv, 1, (size_t)m->size * block * sizeof(float));
	fill(m, own, 0, block);
	chaos_begin(m, CHAOS_W_ALLGATHER);
	err = CALL(m, allgather, AT(own), AT(m->recv), block, COVEY_FLOAT32);
	code = chaos_end(m, err, &result);
	if (code || m->record.status)
		return code;
	m->record.checksum = checksum(m->recv, (size_t)m->size * block);
	for (int r = 0; r < m->size && !code; r++)
		code = chaos_expect_block(m, "allgather", m->recv + (size_t)r * block, r, 0, block);
	return code;
}

static int run_alltoall(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	size_t block = chaos_elements(m) / BLOCKS + 1;
	float *from = in_place(m) && !m->device ? m->recv : m->send; /* a device has no alltoall in place */
	int err, code;

	memset(m->recv, 1, (size_t)m->size * block * sizeof(float));
	for (int r = 0; r < m->size; r++)
		fill(m, from + (size_t)r * block, r, block);
	chaos_begin(m, CHAOS_W_ALLTOALL);
	err = CALL(m, alltoall, AT(from), AT(m->recv), block, COVEY_FLOAT32);
	code = chaos_end(m, err, &result);
	for (int r = 0; r < m->size && !code && !m->record.status; r++)
		code = chaos_expect_block(m, "alltoall", m->recv + (size_t)r * block, r, m->rank, block);
	return code;
}

/* Elements that @from sends to @to: at times none. */
static size_t part(const struct chaos_member *m, int from, int to, size_t most)
{
	return (size_t)((uint64_t)from * 5 + (uint64_t)to * 3 + m->step) % (most + 1);
}

static int run_alltoallv(struct chaos_member *m)
{
	size_t most = chaos_elements(m) / BLOCKS + 1, sends[BLOCKS] = { 0 }, recvs[BLOCKS] = { 0 };
	size_t send_at[BLOCKS] = { 0 }, recv_at[BLOCKS] = { 0 };
	struct covey_result result = { 0 };
	size_t out = 0, in = 0;
	int err, code;

	for (int r = 0; r < m->size; r++) {
		sends[r] = part(m, m->rank, r, most);
		recvs[r] = part(m, r, m->rank, most);
		send_at[r] = out;
		recv_at[r] = in;
		fill(m, m->send + out, r, sends[r]);
		out += sends[r];
		in += recvs[r];
	}
	memset(m->recv, 1, in * sizeof(float));
	chaos_begin(m, CHAOS_W_ALLTOALLV);
	err = CALL(m, alltoallv, AT(m->send), sends, send_at, AT(m->recv), recvs, recv_at, COVEY_FLOAT32);
	code = chaos_end(m, err, &result);
	for (int r = 0; r < m->size && !code && !m->record.status; r++)
		code = chaos_expect_block(m, "alltoallv", m->recv + recv_at[r], r, m->rank, recvs[r]);
	return code;
}

static int run_barrier(struct chaos_member *m)
{
	struct covey_result result = { 0 };

	chaos_begin(m, CHAOS_W_BARRIER);
	if (m->device)
		return chaos_end(m, LAUNCH(m, barrier(m->group, chaos_stream(m), &result)), &result);
	return chaos_end(m, covey_barrier(m->group, NULL, &result), &result);
}

static int root_of(const struct chaos_member *m)
{
	return (int)((m->random >> 24) % (uint64_t)m->size);
}

static int run_reduce(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	int root = root_of(m), err, code;
	size_t count = chaos_elements(m);
	float *from = in_place(m) ? m->recv : m->send;

	memset(m->recv, 0, count * sizeof(float));
	fill(m, from, 0, count);
	chaos_begin(m, CHAOS_W_REDUCE);
	err = CALL(m, reduce, AT(from), AT(m->recv), count, COVEY_FLOAT32, COVEY_SUM, root);
	code = chaos_end(m, err, &result);
	if (code || m->record.status)
		return code || err != COVEY_ERR_LOST || from == m->recv
			       ? code
			       : chaos_member_fail(m, "reduce not in place", err);
	if (m->rank == root)
		return expect_sum(m, "reduce", m->recv, 0, count);
	return from == m->recv ? 0 : expect_untouched(m, "reduce", count);
}

static int run_reduce_scatter(struct chaos_member *m)
{
	size_t block = chaos_elements(m) / BLOCKS + 1;
	float *to = in_place(m) ? m->send + (size_t)m->rank * block : m->recv;
	struct covey_result result = { 0 };
	int err, code;

	for (int r = 0; r < m->size; r++)
		fill(m, m->send + (size_t)r * block, r, block);
	chaos_begin(m, CHAOS_W_REDUCE_SCATTER);
	err = CALL(m, reduce_scatter, AT(m->send), AT(to), block, COVEY_FLOAT32, COVEY_SUM);
	code = chaos_end(m, err, &result);
	return code || m->record.status ? code : expect_sum(m, "reduce_scatter", to, m->rank, block);
}

static int run_allgatherv(struct chaos_member *m)
{
	size_t most = chaos_elements(m) / BLOCKS + 1, counts[BLOCKS] = { 0 }, at[BLOCKS] = { 0 }, end = 0;
	struct covey_result result = { 0 };
	float *own;
	int err, code;

	for (int r = 0; r < m->size; r++) {
		counts[r] = part(m, r, 0, most);
		at[r] = end;
		end += counts[r];
	}
	memset(m->recv, 1, end * sizeof(float));
	own = in_place(m) ? m->recv + at[m->rank] : m->send;
	fill(m, own, 0, counts[m->rank]);
	chaos_begin(m, CHAOS_W_ALLGATHERV);
	err = CALL(m, allgatherv, AT(own), counts[m->rank], AT(m->recv), counts, at, COVEY_FLOAT32);
	code = chaos_end(m, err, &result);
	if (code || m->record.status)
		return code;
	m->record.checksum = checksum(m->recv, end);
	for (int r = 0; r < m->size && !code; r++)
		code = chaos_expect_block(m, "allgatherv", m->recv + at[r], r, 0, counts[r]);
	return code;
}

static int run_gather(struct chaos_member *m)
{
	size_t block = chaos_elements(m) / BLOCKS + 1;
	struct covey_result result = { 0 };
	int root = root_of(m), err, code;

	memset(m->recv, m->rank == root, (size_t)m->size * block * sizeof(float));
	fill(m, m->send, 0, block);
	chaos_begin(m, CHAOS_W_GATHER);
	err = CALL(m, gather, AT(m->send), AT(m->recv), block, COVEY_FLOAT32, root);
	code = chaos_end(m, err, &result);
	if (code || m->record.status)
		return code;
	if (m->rank != root)
		return expect_untouched(m, "gather", (size_t)m->size * block);
	for (int r = 0; r < m->size && !code; r++)
		code = chaos_expect_block(m, "gather", m->recv + (size_t)r * block, r, 0, block);
	return code;
}

static int run_scatter(struct chaos_member *m)
{
	size_t block = chaos_elements(m) / BLOCKS + 1;
	struct covey_result result = { 0 };
	int root = root_of(m), err, code;

	for (int r = 0; r < m->size && m->rank == root; r++)
		fill(m, m->send + (size_t)r * block, r, block);
	chaos_begin(m, CHAOS_W_SCATTER);
	err = CALL(m, scatter, m->rank == root ? AT(m->send) : NULL, AT(m->recv), block, COVEY_FLOAT32, root);
	code = chaos_end(m, err, &result);
	return code || m->record.status ? code : chaos_expect_block(m, "scatter", m->recv, root, m->rank, block);
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

static enum chaos_work choose(const struct chaos_member *m)
{
	uint64_t nth = (m->random >> 32) % (uint64_t)__builtin_popcount(m->crew->work);
	enum chaos_work op = CHAOS_W_ALLREDUCE;

	for (;; op++)
		if (m->crew->work >> op & 1 && !nth--)
			return op;
}

static int run(struct chaos_member *m, enum chaos_work op)
{
	switch (op) {
	case CHAOS_W_BROADCAST:
		return run_broadcast(m);
	case CHAOS_W_ALLGATHER:
		return run_allgather(m);
	case CHAOS_W_ALLTOALL:
		return run_alltoall(m);
	case CHAOS_W_ALLTOALLV:
		return run_alltoallv(m);
	case CHAOS_W_BARRIER:
		return run_barrier(m);
	case CHAOS_W_REDUCE:
		return run_reduce(m);
	case CHAOS_W_REDUCE_SCATTER:
		return run_reduce_scatter(m);
	case CHAOS_W_ALLGATHERV:
		return run_allgatherv(m);
	case CHAOS_W_GATHER:
		return run_gather(m);
	case CHAOS_W_SCATTER:
		return run_scatter(m);
	case CHAOS_W_MESSAGES:
		return run_messages(m);
	default:
		return run_allreduce(m);
	}
}

int chaos_work(struct chaos_member *m)
{
	enum chaos_work op = choose(m);
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
