/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs are written only on success: every public function that has one is called so that it fails, and what the
 * caller had there stands. A decided operation has a result, with an error too; one that took no place has none.
 *
 * labels: redis
 */
#include "harness.h"

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
static size_t one[4] = { 1, 1, 1, 1 }, at[4] = { 0, 1, 2, 3 };

/* @bad: a datatype that is none, or any where there is no group or it has ended. */
static void collectives_fail(struct covey_group *g, int bad)
{
	FAILS(covey_allreduce(x, out.recv, 1, bad, COVEY_SUM, g, NULL, &out.result));
	FAILS(covey_allreduce_start(x, out.recv, 1, bad, COVEY_SUM, g, NULL, &out.work));
	FAILS(covey_broadcast(x, out.recv, 1, bad, 0, g, NULL, &out.result));
	FAILS(covey_broadcast_start(x, out.recv, 1, bad, 0, g, NULL, &out.work));
	FAILS(covey_allgather(x, out.recv, 1, bad, g, NULL, &out.result));
	FAILS(covey_allgather_start(x, out.recv, 1, bad, g, NULL, &out.work));
	FAILS(covey_alltoall(x, out.recv, 1, bad, g, NULL, &out.result));
	FAILS(covey_alltoall_start(x, out.recv, 1, bad, g, NULL, &out.work));
	FAILS(covey_alltoallv(x, one, at, out.recv, one, at, bad, g, NULL, &out.result));
	FAILS(covey_alltoallv_start(x, one, at, out.recv, one, at, bad, g, NULL, &out.work));
	FAILS(covey_reduce(x, out.recv, 1, bad, COVEY_SUM, 0, g, NULL, &out.result));
	FAILS(covey_reduce_start(x, out.recv, 1, bad, COVEY_SUM, 0, g, NULL, &out.work));
	FAILS(covey_reduce_scatter(x, out.recv, 1, bad, COVEY_SUM, g, NULL, &out.result));
	FAILS(covey_reduce_scatter_start(x, out.recv, 1, bad, COVEY_SUM, g, NULL, &out.work));
	FAILS(covey_allgatherv(x, 1, out.recv, one, at, bad, g, NULL, &out.result));
	FAILS(covey_allgatherv_start(x, 1, out.recv, one, at, bad, g, NULL, &out.work));
	FAILS(covey_gather(x, out.recv, 1, bad, 0, g, NULL, &out.result));
	FAILS(covey_gather_start(x, out.recv, 1, bad, 0, g, NULL, &out.work));
	FAILS(covey_scatter(x, out.recv, 1, bad, 0, g, NULL, &out.result));
	FAILS(covey_scatter_start(x, out.recv, 1, bad, 0, g, NULL, &out.work));
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

static void rank_fails(struct member *m)
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

START_TEST(outputs_are_written_only_on_success)
{
	struct covey_config config = harness_config("outputs", 2);

	harness_threads(&config, rank_fails, NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collectives/outputs");
	TCase *tests = tcase_create("outputs");

	tcase_add_test(tests, outputs_are_written_only_on_success);
	suite_add_tcase(suite, tests);
	return harness_main(suite);
}
