/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs are written only on success: every public function that has one is called so that it fails, and what the
 * caller had there stands. A decided operation has a result, with an error too; one that took no place has none. Of one
 * that took its place and ends with an error, what it receives into may be written, and nothing else.
 *
 * labels: redis
 */
#include "covey_admin.h"
#include "covey_device.h"
#include "harness.h"
#include "operations/operations.h"

#include <stdlib.h>

#define FILL 0x5a

/* All that a call could write. */
static struct {
	struct covey_result result;
	struct covey_view view;
	struct covey_event event;
	struct covey_work *work;
	struct covey_ep *ep;
	const struct covey_device_outcome *at;
	void *memory;
	char text[64];
	int32_t recv[16];
} out;

static void fill(void)
{
	memset(&out, FILL, sizeof(out));
}

static void failed(int err, const char *call)
{
	const uint8_t *byte = (const uint8_t *)&out;

	must(err < 0, "%s: %d is no error", call, err);
	for (size_t i = 0; i < sizeof(out); i++)
		must(byte[i] == FILL, "%s ends with \"%s\" and wrote byte %zu", call, covey_strerror(err), i);
}

#define FAILS(call) failed(call, #call)

static int32_t x[16];

/* @bad: a datatype that is none, or any where there is no group or it has ended. */
static void collectives_fail(struct covey_group *g, int bad)
{
	static const size_t one[4] = { 1, 1, 1, 1 }, at[4] = { 0, 1, 2, 3 };

	for (int i = 0; i < OP_SENDRECV; i++) {
		const struct operation *op = &operation_table[i];
		struct operation_call call = { x, out.recv, 1,	bad, COVEY_SUM, 0, 0,
					       1, one,	    at, one, at,	g, .result = &out.result };

		if (op->no_data)
			continue;
		failed(op->call(&call), op->name);
		call.work = &out.work;
		failed(op->call(&call), op->name);
	}
	FAILS(covey_send(x, 1, bad, 0, 1, g, NULL, &out.result));
	FAILS(covey_send_start(x, 1, bad, 0, 1, g, NULL, &out.work));
	FAILS(covey_recv(out.recv, 1, bad, 0, 1, g, NULL, &out.result));
	FAILS(covey_recv_start(out.recv, 1, bad, 0, 1, g, NULL, &out.work));
}

/* What fails in a group that is there, without a device, and in one that has ended. */
static void others_fail(struct covey_group *g)
{
	static struct CUstream_st *stream = (struct CUstream_st *)8;
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT; /* nothing is set */
	int rank = 99;

	FAILS(covey_barrier(g, stream, &out.result));
	FAILS(covey_barrier_start(g, stream, &out.work));
	FAILS(covey_admit(g, NULL, 5000, &out.result));
	FAILS(covey_admit_async(g, NULL, 0, stream, &out.result));
	FAILS(covey_recover(g, &rank, 1, &out.work));
	FAILS(covey_extend(g, -1, &out.work));
	FAILS(covey_retire(g, rank, &out.work));
	FAILS(covey_evict(g, rank, &out.work));
	FAILS(covey_mem_alloc(g, (size_t)1 << 50, &out.memory));
	FAILS(covey_device_mem_alloc(g, 1, &out.memory));
	FAILS(covey_device_result(g, &out.result));
	FAILS(covey_device_outcome_at(g, &out.at));
	FAILS(covey_ep_create(g, &config, &out.ep));
	FAILS(covey_ep_create(g, NULL, &out.ep));
}

static void without_a_group(void)
{
	collectives_fail(NULL, COVEY_INT32);
	others_fail(NULL);
	FAILS(covey_barrier(NULL, NULL, &out.result));
	FAILS(covey_view(NULL, &out.view));
	FAILS(covey_event_next(NULL, &out.event));
	FAILS(covey_explain(NULL, out.text, sizeof(out.text)));
	FAILS(covey_work_test(NULL, &out.result));
	FAILS(covey_work_wait(NULL, 1, &out.result));
	FAILS(covey_work_progress(NULL, out.text, sizeof(out.text)));
	FAILS(covey_dispatch(NULL, NULL, NULL, &out.result));
	FAILS(covey_dispatch_recv(NULL, 1, &out.result));
	FAILS(covey_combine(NULL, NULL, NULL, &out.result));
	FAILS(covey_combine_recv(NULL, 1, &out.result));
}

/* Rank 1 calls nothing: what rank 0 waits for is not decided. */
static void undecided(struct covey_group *g)
{
	struct covey_work *work = NULL, *message = NULL;
	static int32_t sum[1], got[1];

	must(!covey_allreduce_start(x, sum, 1, COVEY_INT32, COVEY_SUM, g, NULL, &work), "start");
	must(!covey_recv_start(got, 1, COVEY_INT32, 1, 1, g, NULL, &message), "start");
	FAILS(covey_work_test(work, &out.result));
	FAILS(covey_work_wait(work, harness_now_ns(), &out.result));
	FAILS(covey_work_test(message, &out.result));
	FAILS(covey_work_wait(message, harness_now_ns(), &out.result));
	covey_abort(g);
	must(covey_work_wait(work, 0, &out.result) == COVEY_ERR_ABORTED && out.result.status == COVEY_ERR_ABORTED,
	     "what is decided has a result");
	fill();
	must(covey_work_wait(message, 0, &out.result) == COVEY_ERR_ABORTED && out.result.status == COVEY_ERR_ABORTED,
	     "what is decided has a result");
	fill();
	covey_work_free(work);
	covey_work_free(message);
}

static void dispatches_fail(struct covey_ep *ep)
{
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_combine_args c = COVEY_COMBINE_INIT;

	d.num_tokens = c.num_tokens = 99;
	FAILS(covey_dispatch(ep, &d, NULL, &out.result));
	FAILS(covey_dispatch_recv(ep, 1, &out.result));
	FAILS(covey_combine(ep, &c, NULL, &out.result));
	FAILS(covey_combine_recv(ep, 1, &out.result));
}

TEST_RANKS(outputs_are_written_only_on_success, 2)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_ep *ep = NULL;
	struct covey_event event;
	int32_t nothing;

	config.max_tokens = 4;
	config.hidden = 64;
	config.top_k = 2;
	config.experts = 4;
	must(!covey_ep_create(m->group, &config, &ep), "a handle");
	must(!covey_barrier(m->group, NULL, NULL), "a barrier");
	m->no_leave = 1;
	if (m->rank == 1) { /* a member, as long as the other is one */
		covey_recv(&nothing, 1, COVEY_INT32, 0, 1, m->group, NULL, NULL);
	} else {
		while (!covey_event_next(m->group, &event))
			;
		fill();
		without_a_group();
		collectives_fail(m->group, 77);
		others_fail(m->group);
		dispatches_fail(ep);
		FAILS(covey_event_next(m->group, &out.event));
		FAILS(covey_explain(m->group, out.text, 0));
		undecided(m->group);
		collectives_fail(m->group, COVEY_INT32);
		others_fail(m->group);
		dispatches_fail(ep);
	}
	covey_ep_destroy(ep);
}

/* ---- operations that took their place ---- */

enum { MANY = 100000, LOST_RANK = 2 };

static int32_t sent(int rank, int i)
{
	return rank * 1000 + i % 1000;
}

static void send_stands(const int32_t *send, int rank)
{
	for (int i = 0; i < MANY; i++)
		must(send[i] == sent(rank, i), "send[%d] is %d", i, send[i]);
}

/* A rank is dead, and operations must not lack it: an element is as it was, or that of the others. */
static void lacks_one(struct member *m, const int32_t *send, int32_t *recv)
{
	struct covey_result res;

	memset(recv, FILL, MANY * sizeof(*recv));
	must(covey_allreduce(send, recv, MANY, COVEY_INT32, COVEY_SUM, m->group, NULL, &res) == COVEY_ERR_PEER,
	     "allreduce: %d", res.status);
	for (int i = 0; i < MANY; i++)
		must(recv[i] == FILL * 0x01010101 || recv[i] == sent(0, i) + sent(1, i), "recv[%d] is %d", i, recv[i]);
	send_stands(send, m->rank);
}

static void differs(struct member *m, const int32_t *send, int32_t *recv)
{
	must(covey_allreduce(send, recv, MANY, COVEY_INT32, m->rank ? COVEY_MAX : COVEY_MIN, m->group, NULL, NULL) ==
		     COVEY_ERR_MISMATCH,
	     "different reductions");
	send_stands(send, m->rank);
}

/* The combine after a dispatch that failed is called, takes what the dispatch left, and has an outcome of its own. */
static void pair_differs(struct member *m)
{
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	static const float smooth[2 * 8];
	uint16_t token[8] = { 0 }, y[3 * 8] = { 0 }, got[8];
	int8_t packed[3 * 8];
	int32_t id = 1, count, src[3];
	int64_t range[3];
	float scales[3], weight = 1;
	struct covey_ep *ep;

	config.max_tokens = config.top_k = 1;
	config.hidden = 8;
	config.experts = 2;
	config.rows = COVEY_EP_ROWS_INT8;
	must(!covey_ep_create(m->group, &config, &ep), "a handle");
	d.num_tokens = c.num_tokens = 1;
	d.x = token;
	d.experts = c.experts = &id;
	d.smooth = m->rank ? smooth : NULL;
	d.packed_x = packed;
	d.packed_scales = scales;
	d.count = &count;
	d.src_info = src;
	d.range = range;
	memset(range, FILL, sizeof(range));
	must(covey_dispatch(ep, &d, NULL, NULL) == COVEY_ERR_MISMATCH, "factors on one rank");
	c.weights = &weight;
	c.y = y;
	c.range = range;
	c.out = got;
	must(!covey_combine(ep, &c, NULL, NULL), "a combine of its own outcome");
	covey_ep_destroy(ep);
}

TEST_RANKS(an_operation_that_fails_writes_what_it_receives_into_alone, 3)
{
	int32_t *send = malloc(MANY * sizeof(*send)), *recv = malloc(MANY * sizeof(*recv));

	must(send && recv, "memory");
	for (int i = 0; i < MANY; i++)
		send[i] = sent(m->rank, i);
	m->no_leave = m->rank == LOST_RANK;
	must(!covey_barrier(m->group, NULL, NULL) && !covey_set_on_loss(m->group, COVEY_ON_LOSS_FAIL), "begin");
	if (m->rank != LOST_RANK) {
		lacks_one(m, send, recv);
		must(!covey_admit(m->group, NULL, 0, NULL), "admit");
		differs(m, send, recv);
		pair_differs(m);
	}
	free(send);
	free(recv);
}

HARNESS_MAIN(.name = "collectives/outputs")
