/* SPDX-License-Identifier: Apache-2.0 */
/* labels: real */
/*
 * Detection on one host, with children that are killed, stopped, asleep or busy. Time is made up, so that
 * bounds are exact; where only the watcher or a pidfd can tell, the loop runs with a tick that never comes
 * in time and the test's own timeout calls a hang.
 */
#include <check.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../suite.h"
#include "clock.h"
#include "detect.h"
#include "proc.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define RANKS 24
#define HANG_MS 100
#define BEAT_MS 10

static struct cvy_page *pages; /* [RANKS], shared with children */
static int mapped[RANKS];
static pid_t children[RANKS];
static struct cvy_loop *loop;
static struct cvy_detect *detect;
static struct cvy_view *view;
static int seen[RANKS], source[RANKS], stop_after, total;
static uint64_t now;

static struct cvy_page *page_of_rank(void *ctx, int rank)
{
	return mapped[rank] ? &pages[rank] : NULL;
}

static const struct cvy_seam seam = { .page = page_of_rank };

static void record(void *ctx, const struct cvy_event *event)
{
	ck_assert_int_eq(event->kind, CVY_EV_SUSPECT);
	ck_assert_uint_eq(event->inc, (uint64_t)event->rank + 100);
	seen[event->rank]++;
	source[event->rank] = event->source;
	if (++total == stop_after)
		cvy_loop_stop(loop);
}

static struct cvy_detect *new_detect(int hang_ms)
{
	const struct cvy_detect_args args = { &seam, loop, { record, NULL }, BEAT_MS, hang_ms };
	struct cvy_detect *d;

	ck_assert_int_eq(cvy_detect_new(&args, &d), 0);
	return d;
}

static void setup(void)
{
	pages = mmap(NULL, RANKS * sizeof(*pages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(pages != MAP_FAILED);
	ck_assert_int_eq(cvy_loop_new(&loop), 0);
	view = cvy_view_new(RANKS);
	now = CVY_MS;
}

static void teardown(void)
{
	cvy_detect_free(detect);
	for (int i = 0; i < RANKS; i++)
		if (children[i] > 0) {
			kill(children[i], SIGKILL);
			waitpid(children[i], NULL, 0);
		}
	cvy_loop_free(loop);
	cvy_view_free(view);
	munmap(pages, RANKS * sizeof(*pages));
}

static void enter(int rank)
{
	mapped[rank] = 1;
	cvy_mask_add(&view->members, rank);
	view->member[rank].inc = (uint64_t)rank + 100;
	pages[rank].inc = (uint64_t)rank + 100;
}

static void wait_for_word(int rank)
{
	while (!(__atomic_load_n(cvy_life_word(&pages[rank]), __ATOMIC_ACQUIRE) & FUTEX_WAITERS))
		usleep(100);
}

/* A child that holds its word and then lives as @life does. */
static void be_born(int rank, void (*life)(struct cvy_page *page))
{
	pid_t parent = getpid(), pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent || cvy_life_take(&pages[rank]))
			_exit(1);
		life(&pages[rank]);
		_exit(0);
	}
	children[rank] = pid;
	pages[rank].pid = pid;
	pages[rank].pid_start = cvy_proc_start(pid);
	ck_assert_uint_ne(pages[rank].pid_start, 0);
	enter(rank);
	wait_for_word(rank);
}

static void sleeper(struct cvy_page *page)
{
	for (;;)
		pause();
}

static void spinner(struct cvy_page *page)
{
	volatile uint64_t *word = &page->window_bytes;

	for (;;)
		*word += 1;
}

static void wait_for_state(int rank, int state)
{
	struct cvy_proc proc;

	cvy_proc_open(&proc, children[rank], children[rank], pages[rank].pid_start);
	while (cvy_proc_state(&proc) != state)
		usleep(100);
	cvy_proc_close(&proc);
}

/* @ms of made-up time, in ticks as an agent has them */
static void pass(int ms)
{
	for (int i = 0; i < ms; i += BEAT_MS) {
		now += BEAT_MS * CVY_MS;
		cvy_detect_tick(detect, now);
	}
}

static void begin(int hang_ms)
{
	detect = new_detect(hang_ms);
	cvy_detect_view(detect, view, 0);
	cvy_detect_tick(detect, now);
}

static void no_tick(void *ctx, uint64_t now_ns)
{
}

static const int never_ms = 10000;

TEST(killed_peer_is_proven_by_its_word_without_a_tick)
{
	be_born(1, sleeper);
	pages[1].pid = 0; /* no pidfd and no /proc: nothing else can tell */
	begin(HANG_MS);
	stop_after = 1;
	kill(children[1], SIGKILL);
	cvy_loop_run(loop, no_tick, NULL, &never_ms);
	ck_assert_int_eq(source[1], CVY_SOURCE_ROBUST);
	pass(1000);
	ck_assert_int_eq(seen[1], 1);
}

TEST(every_watcher_of_a_word_is_woken)
{
	struct cvy_detect *others[3];

	be_born(1, spinner);
	pages[1].pid = 0;
	begin(HANG_MS);
	for (int i = 0; i < 3; i++) {
		others[i] = new_detect(HANG_MS);
		cvy_detect_view(others[i], view, 0);
	}
	stop_after = 4;
	kill(children[1], SIGKILL);
	cvy_loop_run(loop, no_tick, NULL, &never_ms);
	ck_assert_int_eq(seen[1], 4);
	for (int i = 0; i < 3; i++)
		cvy_detect_free(others[i]);
}

TEST(proof_is_told_again_to_a_view_that_still_lists_the_dead)
{
	be_born(1, sleeper);
	begin(HANG_MS);
	kill(children[1], SIGKILL);
	waitpid(children[1], NULL, 0);
	children[1] = 0;
	pass(BEAT_MS);
	ck_assert_int_eq(seen[1], 1);
	cvy_detect_view(detect, view, 0);
	ck_assert_int_eq(seen[1], 2);
	cvy_mask_del(&view->members, 1);
	cvy_detect_view(detect, view, 0);
	pass(500);
	ck_assert_int_eq(seen[1], 2);
}

static void *thread_rank(void *arg)
{
	ck_assert_int_eq(cvy_life_take(&pages[2]), 0);
	ck_assert_int_eq(read(*(int *)arg, &(char){ 0 }, 1), 1);
	return NULL; /* with the word held */
}

TEST(rank_in_a_thread_of_this_process_dies_with_its_thread)
{
	int gate[2];
	pthread_t thread;

	ck_assert_int_eq(pipe(gate), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, thread_rank, &gate[0]), 0);
	pages[2].pid = getpid();
	pages[2].pid_start = cvy_proc_start(getpid());
	enter(2);
	wait_for_word(2);
	begin(HANG_MS);
	stop_after = 1;
	ck_assert_int_eq(write(gate[1], "x", 1), 1);
	cvy_loop_run(loop, no_tick, NULL, &never_ms);
	ck_assert_int_eq(source[2], CVY_SOURCE_ROBUST);
	pthread_join(thread, NULL);
}

static void stop_peer(void)
{
	kill(children[1], SIGSTOP);
	ck_assert_int_eq(waitpid(children[1], NULL, WUNTRACED), children[1]);
}

/* The peer is suspect then, and not a beat before. */
static void is_silent_at(int ms)
{
	pass(ms - BEAT_MS);
	ck_assert_int_eq(total, 0);
	pass(BEAT_MS);
	ck_assert_int_eq(source[1], CVY_SOURCE_HEARTBEAT);
}

TEST(stopped_peer_is_suspect_at_the_bound_and_not_before)
{
	be_born(1, sleeper);
	begin(HANG_MS);
	stop_peer();
	pass(HANG_MS - BEAT_MS);
	ck_assert_int_eq(total, 0);
	ck_assert(cvy_detect_late(detect));
	pass(BEAT_MS);
	ck_assert_int_eq(seen[1], 1);
	ck_assert_int_eq(source[1], CVY_SOURCE_STOPPED);
}

TEST(beat_clears_the_silence)
{
	be_born(1, sleeper);
	begin(HANG_MS);
	for (int i = 0; i < 10; i++) {
		pass(HANG_MS - BEAT_MS);
		pages[1].beat++;
		pass(BEAT_MS);
	}
	ck_assert_int_eq(total, 0);
	ck_assert(!cvy_detect_late(detect));
}

TEST_LOOP(peer_without_a_beat_hangs_and_a_runnable_one_has_four_times_as_long, 0, 2)
{
	be_born(1, _i ? spinner : sleeper);
	wait_for_state(1, _i ? CVY_PROC_RUNNING : CVY_PROC_SLEEPING);
	begin(HANG_MS);
	is_silent_at(_i ? 4 * HANG_MS : HANG_MS);
}

TEST(no_bound_means_no_suspicion_of_silence)
{
	be_born(1, sleeper);
	begin(-1);
	stop_peer();
	pass(20000);
	ck_assert_int_eq(total, 0);
	ck_assert(!cvy_detect_late(detect));
}

TEST(starved_observer_blames_nobody)
{
	be_born(1, sleeper);
	begin(HANG_MS);
	/* It wakes after ten seconds, three times: the peers get time to beat first. */
	for (int i = 0; i < 3; i++) {
		now += 10000 * CVY_MS;
		cvy_detect_tick(detect, now);
		ck_assert_int_eq(total, 0);
	}
	pages[1].beat++;
	pass(HANG_MS);
	ck_assert_int_eq(total, 0);
	/* But starved for ever it still finds a peer that never beats. */
	for (int i = 0; i < 5; i++) {
		now += 10000 * CVY_MS;
		cvy_detect_tick(detect, now);
	}
	ck_assert_int_ge(seen[1], 1);
}

TEST(reused_pid_is_not_taken_for_the_peer)
{
	struct cvy_proc proc;

	be_born(1, sleeper);
	pages[1].pid_start--; /* as if another process had had this number */
	cvy_proc_open(&proc, children[1], children[1], pages[1].pid_start);
	ck_assert_int_eq(proc.leader, -1);
	ck_assert_int_eq(proc.thread, -1);
	ck_assert_int_eq(cvy_proc_state(&proc), CVY_PROC_UNKNOWN);
	/* The stranger is stopped: that says nothing about the peer, which gets the time of an unknown. */
	stop_peer();
	begin(HANG_MS);
	is_silent_at(4 * HANG_MS);
}

TEST(page_of_another_incarnation_is_not_looked_at)
{
	be_born(1, sleeper);
	begin(HANG_MS);
	pages[1].inc++;
	pass(1000);
	ck_assert_int_eq(total, 0);
}

TEST(pidfd_proves_a_death_that_no_word_tells)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sleeper(NULL);
	}
	children[1] = pages[1].pid = pid;
	pages[1].pid_start = cvy_proc_start(pid);
	*(uint32_t *)cvy_life_word(&pages[1]) = (uint32_t)pid | FUTEX_WAITERS; /* held by no robust list */
	enter(1);
	begin(HANG_MS);
	stop_after = 1;
	kill(pid, SIGKILL);
	cvy_loop_run(loop, no_tick, NULL, &never_ms);
	ck_assert_int_eq(source[1], CVY_SOURCE_PIDFD);
}

static void *beat_on(void *arg)
{
	struct cvy_page *page = arg;

	if (cvy_life_take(page))
		_exit(1);
	for (;;) {
		__atomic_add_fetch(&page->beat, 1, __ATOMIC_RELAXED);
		usleep(500);
	}
	return NULL;
}

TEST(zombie_leader_with_a_living_agent_is_alive)
{
	struct cvy_proc proc;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		pthread_t thread;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pthread_create(&thread, NULL, beat_on, &pages[1]))
			_exit(1);
		pthread_exit(NULL);
	}
	children[1] = pages[1].pid = pid;
	pages[1].pid_start = cvy_proc_start(pid);
	enter(1);
	wait_for_word(1);
	cvy_proc_open(&proc, pid, 0, pages[1].pid_start);
	while (cvy_proc_state(&proc) != CVY_PROC_EXITING) /* no thread was named: the leader's state alone */
		usleep(100);
	cvy_proc_close(&proc);
	begin(HANG_MS);
	for (int i = 0; i < 40; i++) {
		uint64_t beat = __atomic_load_n(&pages[1].beat, __ATOMIC_RELAXED);

		while (__atomic_load_n(&pages[1].beat, __ATOMIC_RELAXED) == beat)
			usleep(100);
		pass(BEAT_MS);
	}
	ck_assert_int_eq(total, 0);
}

TEST(large_host_monitors_the_next_eight_of_the_ring)
{
	for (int rank = 1; rank < RANKS; rank++) {
		pages[rank].pid = 0;
		*(uint32_t *)cvy_life_word(&pages[rank]) = FUTEX_WAITERS | FUTEX_OWNER_DIED;
		enter(rank);
	}
	enter(0);
	detect = new_detect(HANG_MS);
	cvy_detect_view(detect, view, 20);
	for (int rank = 0; rank < RANKS; rank++)
		ck_assert_int_eq(seen[rank], rank > 20 || (rank >= 1 && rank <= 4));
	ck_assert_int_eq(total, 7); /* 21 22 23, 0 (alive), 1 2 3 4 */
}

SUITE_MAIN(.name = "membership/detect", .setup = setup, .teardown = teardown, .timeout_s = 60)
