/* SPDX-License-Identifier: Apache-2.0 */
/*
 * labels: real
 * Two processes, an adapter each, one segment between them. Data and signals cross; a writer that is killed in the
 * middle of a copy leaves a torn payload and no signal; a peer that is killed shows as one that does not answer, at
 * the writer and nowhere else.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../suite.h"
#include "pairs.h"

#define WINDOW 65536
#define BOUND_NS 30000000000ull
#define ROUNDS 2000

/* Where the two tell each other their names and how far they are: plain shared memory, apart from the segment. */
struct table {
	struct cvy_pair_name name[2];
	uint64_t ready[2], at[2];
};

struct end {
	int me;
	struct cvy_errbox *box;
	struct cvy_nic *nic;
	struct cvy_region *region;
	struct cvy_queue_pair *pair;
	struct cvy_queue q;
	uint8_t *window;
	uint64_t abort;
};

static struct table *table;
static char segment[64];

static int wait_for(const uint64_t *word, uint64_t v)
{
	uint64_t since = cvy_q_ticks();

	while (cvy_q_load(word) < v) {
		if (cvy_q_ticks() - since > BOUND_NS)
			return -1;
		cvy_q_pause();
	}
	return 0;
}

/* @shared: the window stands in the segment; else in memory of this process alone. */
static int end_open(struct end *e, int me, int mode, int shared)
{
	struct cvy_pair_args args = {
		.mode = (enum cvy_pair_mode)mode, .depth = 16, .wait_ticks = BOUND_NS, .timeout = 8, .retry = 1
	};
	struct cvy_nic_args nic = { 0 };

	memset(e, 0, sizeof(*e));
	e->me = me;
	e->box = nic.box = cvy_errbox_new();
	e->window = shared ? softmlx5_heap(WINDOW) : aligned_alloc(4096, WINDOW);
	memset(e->window, 0, WINDOW);
	args.abort = &e->abort;
	if (cvy_nic_open(&nic, &e->nic) || cvy_region_open(e->nic, e->window, WINDOW, -1, &e->region))
		return -1;
	args.local = args.window = e->region;
	if (cvy_pair_open(e->nic, &args, &e->pair))
		return -1;
	cvy_pair_name(e->pair, &table->name[me]);
	cvy_q_store(&table->ready[me], 1);
	if (wait_for(&table->ready[!me], 1) || cvy_pair_connect(e->pair, &table->name[!me]))
		return -1;
	cvy_pair_queue(e->pair, &e->q);
	cvy_q_store(&table->ready[me], 2);
	return wait_for(&table->ready[!me], 2);
}

static void end_close(struct end *e, int shared)
{
	cvy_pair_close(e->pair);
	cvy_region_close(e->region);
	cvy_nic_close(e->nic);
	cvy_errbox_free(e->box);
	if (!shared)
		free(e->window);
}

static void open_table(void)
{
	char path[] = "/tmp/softmlx5-segment.XXXXXX";
	int fd = mkstemp(path);

	ck_assert_int_ge(fd, 0);
	close(fd);
	strcpy(segment, path);
	setenv("SOFTMLX5_SEGMENT", segment, 1);
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(table != MAP_FAILED);
}

static void close_table(void)
{
	unlink(segment);
}

static pid_t child(int (*body)(int), int way)
{
	pid_t parent = getpid(), pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	_exit(body(way));
}

/* Writes line by line; the reader answers each signal with one of its own. */
static int talk(int me, int way)
{
	struct end e;
	int64_t t;

	if (end_open(&e, me, way & 1, way >> 1))
		return 1;
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		for (int k = 0; k < 32; k++)
			((uint64_t *)(e.window + 8192))[k] = i * 1000 + (uint64_t)k + (uint64_t)me;
		t = cvy_queue_put_signal(&e.q, 8192, 4096, 256, 0, i);
		if (t < 0 || cvy_queue_add64(&e.q, 64, 1) < 0)
			return 2;
		cvy_queue_flush(&e.q);
		if (wait_for((uint64_t *)e.window, i))
			return 3;
		for (int k = 0; k < 32; k++)
			if (((uint64_t *)(e.window + 4096))[k] != i * 1000 + (uint64_t)k + (uint64_t)!me)
				return 4;
		/* The far end must have read before it is overwritten: its `at` says so. */
		cvy_q_store(&table->at[me], i);
		if (wait_for(&table->at[!me], i))
			return 5;
	}
	if (wait_for((uint64_t *)(e.window + 64), ROUNDS) || cvy_q_load((uint64_t *)(e.window + 64)) != ROUNDS)
		return 6;
	cvy_q_store(&table->ready[me], 3);
	if (wait_for(&table->ready[!me], 3) || softmlx5_found())
		return 7;
	end_close(&e, way >> 1);
	return 0;
}

static int talk_as_child(int way)
{
	return talk(1, way);
}

TEST_LOOP(two_processes_talk, 0, 4)
{
	int status;
	pid_t pid = child(talk_as_child, _i);

	ck_assert_int_eq(talk(0, _i), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

/* Dies with half of its third copy done. */
static int die_half_way(int way)
{
	struct softmlx5_plan plan = { 0 };
	struct end e;

	if (end_open(&e, 1, way & 1, way >> 1))
		return 1;
	plan.kill_qpn = e.q.mlx5.qpn;
	plan.kill_at = 4; /* two entries each: a copy and its signal */
	softmlx5_plan(&plan);
	for (uint64_t i = 1; i <= 3; i++) {
		memset(e.window + 8192, (int)i, 4096);
		if (cvy_queue_await(&e.q, cvy_queue_put_signal(&e.q, 8192, 4096, 4096, 0, i)) != 1)
			return 2;
	}
	return 3; /* not reached */
}

TEST_LOOP(a_writer_killed_half_way_tears_its_copy, 0, 4)
{
	struct end e;
	pid_t pid = child(die_half_way, _i);
	int status;
	int64_t t;

	ck_assert_int_eq(end_open(&e, 0, _i & 1, _i >> 1), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status));
	ck_assert_int_eq(WTERMSIG(status), SIGKILL);
	ck_assert_uint_eq(*(uint64_t *)e.window, 2); /* no signal of the third */
	ck_assert_uint_eq(e.window[4096], 3);
	ck_assert_uint_eq(e.window[4096 + 2047], 3);
	ck_assert_uint_eq(e.window[4096 + 2048], 2); /* torn */
	ck_assert_uint_eq(e.window[4096 + 4095], 2);
	/* And who writes to the dead learns it from a completion. */
	t = cvy_queue_signal(&e.q, 0, 1);
	ck_assert_int_eq(cvy_queue_await(&e.q, t), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_pair_check(e.pair, 1), COVEY_ERR_PEER);
	end_close(&e, _i >> 1);
}

static int wait_to_be_killed(int way)
{
	struct end e;

	if (end_open(&e, 1, way & 1, way >> 1))
		return 1;
	for (;;)
		pause();
}

/* A peer that is stopped is no error: its memory is written as ever. Killed, it does not answer. */
TEST_LOOP(stopped_is_written_and_killed_is_an_error, 0, 4)
{
	struct end e;
	pid_t pid = child(wait_to_be_killed, _i);
	int status;
	int64_t t = 0;

	ck_assert_int_eq(end_open(&e, 0, _i & 1, _i >> 1), 0);
	ck_assert(!kill(pid, SIGSTOP));
	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	for (int i = 1; i < 100; i++)
		t = cvy_queue_put_signal(&e.q, 0, 4096, 64, 0, (uint64_t)i);
	ck_assert_int_eq(cvy_queue_await(&e.q, t), 1);
	ck_assert(!kill(pid, SIGKILL));
	ck_assert(!waitid(P_PID, (id_t)pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT)); /* it is not reaped */
	usleep(2000); /* who is gone is looked at once a millisecond (memory.c) */
	t = cvy_queue_signal(&e.q, 0, 1000);
	ck_assert_int_eq(cvy_queue_await(&e.q, t), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_pair_check(e.pair, 1), COVEY_ERR_PEER);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	end_close(&e, _i >> 1);
}

SUITE_MAIN(.name = "softmlx5/processes", .setup = open_table, .teardown = close_table)
