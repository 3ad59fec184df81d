/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes that are killed, stopped, replaced, added and taken out while a stream of
 * operations runs. Every rank writes down what each operation gave it (status, epoch, mask, checksum)
 * in memory that outlives it, and compares the bytes with the oracle over that mask at once; the
 * parent compares the survivors' notes, number by number.
 *
 * labels: redis real
 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 8
#define OPS 6000    /* notes kept per rank */
#define STREAM 2000 /* kills come before this number */
#define MORE 200    /* operations when all has happened */
#define COUNT 3001

struct note {
	int status;
	uint32_t epoch;
	uint64_t mask, sum;
	int kind, size;
};

struct shared {		    /* by all processes of a test */
	uint64_t at[RANKS]; /* operations done: what the parent watches */
	uint64_t joined[RANKS];
	struct note note[RANKS][OPS];
};

struct plan { /* of one test */
	struct covey_config config;
	struct shared *shared;
	size_t count;
	uint64_t goal;	 /* the mask when all has happened: MORE operations later the stream ends */
	int admit_every; /* operations between safe points, 0: none */
	int leave;
};

static const char *const kind_names[] = { "allreduce", "broadcast", "alltoall", "allgather", "admit" };

enum { ALLREDUCE, BROADCAST, ALLTOALL, ALLGATHER, ADMIT };

struct rank {
	struct plan *plan;
	struct covey_group *group;
	int me, size;
	uint64_t mask, last; /* of the last replicated outcome; the number of the last operation */
	uint8_t *send, *recv, *want;
};

static int kind_of(const struct plan *plan, uint64_t seq)
{
	if (plan->admit_every && seq % (uint64_t)plan->admit_every == 0)
		return ADMIT;
	return (int)(seq % 4);
}

/* What must be in recv, for the contributors that the result names. */
static size_t expect(struct rank *k, uint64_t seq, int kind, uint64_t mask)
{
	size_t n = k->plan->count;
	int root = (int)(seq / 4) % k->plan->config.world;

	switch (kind) {
	case ALLREDUCE:
		type_fold(k->want, n, COVEY_FLOAT32, COVEY_SUM, mask, seq);
		return n * 4;
	case BROADCAST:
		type_input(k->want, n, COVEY_FLOAT32, root, seq);
		return n * 4;
	case ADMIT:
		return 0;
	default:
		memset(k->want, 0, n * 4 * (size_t)k->size);
		for (int r = 0; r < k->size; r++)
			if (mask >> r & 1)
				type_input(k->want + (size_t)r * n * 4, n, COVEY_FLOAT32, r,
					   seq * 64 + (uint64_t)(kind == ALLTOALL ? k->me : 63));
		return n * 4 * (size_t)k->size;
	}
}

static int call(struct rank *k, uint64_t seq, int kind, struct covey_result *res)
{
	size_t n = k->plan->count;
	int root = (int)(seq / 4) % k->plan->config.world;
	uint64_t state = seq;

	switch (kind) {
	case ALLREDUCE:
		type_input(k->send, n, COVEY_FLOAT32, k->me, seq);
		return covey_allreduce(k->send, k->recv, n, COVEY_FLOAT32, COVEY_SUM, k->group, NULL, res);
	case BROADCAST:
		type_input(k->send, n, COVEY_FLOAT32, k->me, seq);
		return covey_broadcast(k->send, k->recv, n, COVEY_FLOAT32, root, k->group, NULL, res);
	case ALLTOALL:
		for (int r = 0; r < k->size; r++)
			type_input(k->send + (size_t)r * n * 4, n, COVEY_FLOAT32, k->me, seq * 64 + (uint64_t)r);
		return covey_alltoall(k->send, k->recv, n, COVEY_FLOAT32, k->group, NULL, res);
	case ALLGATHER:
		type_input(k->send, n, COVEY_FLOAT32, k->me, seq * 64 + 63);
		return covey_allgather(k->send, k->recv, n, COVEY_FLOAT32, k->group, NULL, res);
	default:
		return covey_admit(k->group, &state, sizeof(state), res);
	}
}

static void write_down(struct rank *k, const struct covey_result *res, int kind, size_t bytes)
{
	struct shared *s = k->plan->shared;
	struct note *note = &s->note[k->me][res->seq];

	note->status = res->status;
	note->epoch = res->epoch;
	note->mask = res->mask.word[0];
	note->kind = kind;
	note->size = res->size;
	note->sum = res->status || kind == ALLTOALL ? 0 : checksum(k->recv, bytes);
	/* By what is the same on all ranks: no time of the parent's decides where a stream ends. */
	if (kind != ALLTOALL && note->mask != k->mask) {
		k->mask = note->mask;
		k->last = note->mask == k->plan->goal && res->seq + MORE < OPS ? res->seq + MORE : OPS - 1;
	}
	__atomic_store_n(&s->at[k->me], res->seq, __ATOMIC_RELEASE);
}

/* One operation; its number is @seq on all ranks. 0, or the error that ends this rank's part. */
static int step(struct rank *k, uint64_t seq)
{
	struct covey_result res = { 0 };
	int kind = kind_of(k->plan, seq), err = call(k, seq, kind, &res);
	uint64_t mask;
	size_t bytes = 0;

	if (err <= COVEY_ERR_FENCED)
		return err;
	must(res.seq == seq, "rank %d: operation %llu is %s with number %llu: %s", k->me, (unsigned long long)seq,
	     kind_names[kind], (unsigned long long)res.seq, covey_strerror(err));
	must(!err || (err == COVEY_ERR_ROOT && kind == BROADCAST), "rank %d: %s %llu: %s", k->me, kind_names[kind],
	     (unsigned long long)seq, covey_strerror(err));
	mask = res.mask.word[0];
	must(mask >> k->me & 1, "rank %d: not in its own mask %llx of %s %llu", k->me, (unsigned long long)mask,
	     kind_names[kind], (unsigned long long)seq);
	if (kind == ADMIT)
		k->size = res.size;
	if (!err) {
		bytes = expect(k, seq, kind, mask);
		must(!bytes || !memcmp(k->recv, k->want, bytes),
		     "rank %d: %s %llu over %llx in epoch %u gives other bytes", k->me, kind_names[kind],
		     (unsigned long long)seq, (unsigned long long)mask, res.epoch);
	}
	write_down(k, &res, kind, bytes);
	return 0;
}

/* The exit status is the error alone. */
static void say_why(const struct rank *k, uint64_t seq)
{
	struct covey_error_info info;

	covey_last_error(k->group, &info);
	fprintf(stderr, "rank %d ends at operation %llu: %s\n", k->me, (unsigned long long)seq, info.cause);
}

/* Operations from @seq on. */
static int stream(struct rank *k, uint64_t seq)
{
	int err = 0;

	for (; !err && seq <= k->last; seq++)
		err = step(k, seq);
	if (err)
		say_why(k, seq - 1);
	if (!err && k->plan->leave) {
		err = covey_leave(k->group, harness_deadline(WATCHDOG_MS));
		must(!err, "rank %d cannot leave: %s", k->me, covey_strerror(err));
	}
	covey_close(k->group);
	return err ? -err : 0;
}

static void rank_open(struct rank *k, struct plan *plan, int me)
{
	size_t bytes = plan->count * 4 * RANKS;

	*k = (struct rank){ .plan = plan, .me = me, .size = plan->config.world, .last = OPS - 1 };
	k->send = malloc(bytes);
	k->recv = malloc(bytes);
	k->want = malloc(bytes);
}

static int founder(void *arg, int me)
{
	struct rank k;

	rank_open(&k, arg, me);
	k.group = harness_join(&k.plan->config, me);
	k.mask = (1ull << k.size) - 1;
	__atomic_store_n(&k.plan->shared->joined[me], 1, __ATOMIC_RELEASE);
	return stream(&k, 1);
}

/* A replacement or an additional rank: begins with the safe point, whose state says where the others are. */
static int joiner(void *arg, int me)
{
	struct covey_config config = ((struct plan *)arg)->config;
	struct covey_result res = { 0 };
	uint64_t state = 0;
	struct rank k;
	int err;

	rank_open(&k, arg, me);
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	k.group = harness_join(&config, me);
	err = covey_admit(k.group, &state, sizeof(state), &res);
	must(!err, "rank %d is not admitted: %s", me, covey_strerror(err));
	must(state == res.seq, "rank %d: state %llu at operation %llu", me, (unsigned long long)state,
	     (unsigned long long)res.seq);
	must(res.mask.word[0] >> me & 1 && res.size > me, "rank %d: mask %llx size %d", me,
	     (unsigned long long)res.mask.word[0], res.size);
	k.size = res.size;
	write_down(&k, &res, ADMIT, 0);
	__atomic_store_n(&k.plan->shared->joined[me], res.seq, __ATOMIC_RELEASE);
	return stream(&k, res.seq + 1);
}

/* ---- parent ---- */

static void plan_open(struct plan *plan, const char *name, int world, int transport)
{
	*plan = (struct plan){ .config = harness_config(name, world), .count = COUNT };
	plan->config.transport = transport;
	plan->shared = harness_shared(sizeof(*plan->shared));
}

/* Thousands of operations take their time on a busy machine, and under a sanitizer. */
static int reap(const struct plan *plan, pid_t pid)
{
	return harness_reap_busy(pid, plan->shared->at, RANKS);
}

static void reap_well(const struct plan *plan, pid_t pid, int rank)
{
	int status = reap(plan, pid);

	must(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d ends with wait status %x (%s)", rank, status,
	     WIFEXITED(status) ? covey_strerror(-WEXITSTATUS(status)) : "killed");
}

/* Every number that two ranks of @ranks have notes of: replicated outcomes are the same. */
static void compare(const struct plan *plan, uint64_t ranks)
{
	const struct shared *s = plan->shared;
	const uint64_t last = s->at[__builtin_ctzll(ranks)];

	for (uint64_t seq = 1; seq <= last; seq++) {
		const struct note *first = NULL;

		for (int r = 0; r < RANKS; r++) {
			const struct note *n = &s->note[r][seq];

			if (!(ranks >> r & 1) || !n->epoch)
				continue;
			if (!first)
				first = n;
			if (n->kind == ALLTOALL)
				continue;
			must(n->status == first->status && n->epoch == first->epoch && n->mask == first->mask &&
				     n->sum == first->sum && n->size == first->size,
			     "%s %llu: rank %d has (%d, epoch %u, mask %llx, size %d, %llx), another (%d, %u, %llx, "
			     "%d, %llx)",
			     kind_names[n->kind], (unsigned long long)seq, r, n->status, n->epoch,
			     (unsigned long long)n->mask, n->size, (unsigned long long)n->sum, first->status,
			     first->epoch, (unsigned long long)first->mask, first->size,
			     (unsigned long long)first->sum);
		}
		must(first, "nobody has notes of operation %llu", (unsigned long long)seq);
	}
}

/* The last operation ran with exactly these. */
static void last_mask(const struct plan *plan, int rank, uint64_t mask)
{
	const struct note *n = &plan->shared->note[rank][plan->shared->at[rank]];

	must(n->mask == mask, "the last operation of rank %d has mask %llx, not %llx", rank,
	     (unsigned long long)n->mask, (unsigned long long)mask);
}

static void spin(uint64_t turns)
{
	for (volatile uint64_t i = 0; i < turns; i++)
		;
}

static void kill_at_random(struct plan *plan, pid_t pid, int rank, uint64_t *random, uint64_t from, uint64_t to)
{
	harness_until(&plan->shared->at[rank], from + harness_random(random) % (to - from), "the victim");
	spin(harness_random(random) % 200000);
	kill(pid, SIGKILL);
}

static const char *transport_name(int transport)
{
	return transport == COVEY_TRANSPORT_SHM ? "shm" : "tcp";
}

static void deaths(int transport, int victims, int together)
{
	struct plan plan;
	uint64_t random = harness_seed();
	pid_t pid[4];
	int first = (int)(harness_random(&random) % 4), second = (first + 1 + (int)(harness_random(&random) % 3)) % 4;
	uint64_t left = 15ull & ~(1ull << first);

	if (victims == 2)
		left &= ~(1ull << second);
	plan_open(&plan, transport_name(transport), 4, transport);
	plan.goal = left;
	plan.leave = 1;
	harness_fork_all(founder, &plan, pid, 4);
	kill_at_random(&plan, pid[first], first, &random, 50, STREAM / 2);
	if (victims == 2) {
		if (!together)
			kill_at_random(&plan, pid[second], second, &random, STREAM / 2, STREAM - 200);
		else
			spin(harness_random(&random) % 3000000);
		kill(pid[second], SIGKILL);
		harness_reap(pid[second]);
	}
	harness_reap(pid[first]);
	for (int r = 0; r < 4; r++)
		if (left >> r & 1)
			reap_well(&plan, pid[r], r);
	compare(&plan, left);
	for (int r = 0; r < 4; r++)
		if (left >> r & 1)
			last_mask(&plan, r, left);
}

static const int transports[] = { COVEY_TRANSPORT_SHM, COVEY_TRANSPORT_TCP };

TEST_LOOP(survivors_of_a_kill_agree_on_every_operation, 0, 6)
{
	deaths(transports[_i % 2], 1, 0);
}

TEST_LOOP(survivors_of_two_kills_agree, 0, 4)
{
	deaths(transports[_i % 2], 2, 0);
}

TEST_LOOP(a_death_during_recovery_from_another_is_survived, 0, 4)
{
	deaths(transports[_i % 2], 2, 1);
}

/* A stopped rank is left out; when it goes on it learns so, and nothing it still writes is read. */
TEST_LOOP(a_stopped_rank_is_fenced, 0, 2)
{
	struct plan plan;
	pid_t pid[4];
	int status;

	plan_open(&plan, "stop", 4, transports[_i]);
	plan.config.hang_ms = plan.config.link_ms = 2000; /* a live rank may have no core for a while */
	plan.leave = 1;
	plan.goal = 11;
	harness_fork_all(founder, &plan, pid, 4);
	harness_until(&plan.shared->at[2], 200, "rank 2");
	kill(pid[2], SIGSTOP);
	harness_until(&plan.shared->at[0], plan.shared->at[2] + MORE / 2, "rank 0 without rank 2");
	kill(pid[2], SIGCONT);
	status = reap(&plan, pid[2]);
	must(WIFEXITED(status) && WEXITSTATUS(status) == -COVEY_ERR_FENCED, "the stopped rank ends with %x", status);
	for (int r = 0; r < 4; r++)
		if (r != 2)
			reap_well(&plan, pid[r], r);
	compare(&plan, 11);
	last_mask(&plan, 0, 11);
}

/* Killed, then replaced under the same number: the others go on, and take the new one in at their safe point. */
TEST_LOOP(a_replacement_takes_the_place_of_the_dead, 0, 2)
{
	struct plan plan;
	uint64_t random = harness_seed(), joined;
	pid_t pid[4];

	plan_open(&plan, "replace", 4, transports[_i]);
	plan.admit_every = 20;
	plan.leave = 1;
	plan.goal = 15;
	harness_fork_all(founder, &plan, pid, 4);
	kill_at_random(&plan, pid[1], 1, &random, 50, 300);
	harness_reap(pid[1]);
	memset(plan.shared->note[1], 0, sizeof(plan.shared->note[1]));
	plan.shared->joined[1] = 0;
	pid[1] = harness_fork(joiner, &plan, 1);
	harness_until(&plan.shared->joined[1], 1, "the replacement");
	joined = plan.shared->joined[1];
	must(joined < OPS - MORE, "the replacement came too late: operation %llu", (unsigned long long)joined);
	for (int r = 0; r < 4; r++)
		reap_well(&plan, pid[r], r);
	compare(&plan, 15);
	last_mask(&plan, 0, 15);
}

TEST_LOOP(a_group_of_two_grows_to_four, 0, 2)
{
	struct plan plan;
	pid_t pid[4];

	plan_open(&plan, "grow", 2, transports[_i]);
	plan.admit_every = 20;
	plan.leave = 1;
	plan.goal = 15;
	harness_fork_all(founder, &plan, pid, 2);
	harness_until(&plan.shared->at[0], 50, "rank 0");
	for (int r = 2; r < 4; r++)
		pid[r] = harness_fork(joiner, &plan, r);
	for (int r = 0; r < 4; r++)
		reap_well(&plan, pid[r], r);
	compare(&plan, 15);
	last_mask(&plan, 0, 15);
	must(plan.shared->note[0][plan.shared->at[0]].size == 4, "size %d",
	     plan.shared->note[0][plan.shared->at[0]].size);
}

/* ---- retire and evict ---- */

static int asker(void *arg, int me)
{
	struct plan *plan = arg;
	struct covey_work *work = NULL;
	struct covey_result res;
	struct rank k;
	uint64_t seq = 1;
	int err = 0;

	rank_open(&k, plan, me);
	k.group = harness_join(&plan->config, me);
	for (; !err && seq <= 100; seq++)
		err = step(&k, seq);
	must(!err || (me == 2 && seq == 101), "rank %d: operation %llu: %s", me,
	     (unsigned long long)seq - 1, /* may be out before it looks */
	     covey_strerror(err));
	if (me == 0) {
		err = plan->leave ? covey_retire(k.group, 2, &work) : covey_evict(k.group, 2, &work);
		must(!err, "%s", covey_strerror(err));
	}
	for (; !err && seq < OPS; seq++) {
		err = step(&k, seq);
		if (err || !(plan->shared->note[me][seq].mask & 4))
			break;
	}
	if (me == 2) {
		covey_close(k.group);
		return err ? -err : 0;
	}
	must(!err && seq < OPS, "rank %d: rank 2 is still there after %llu operations: %s", me, (unsigned long long)seq,
	     covey_strerror(err));
	if (work) {
		err = covey_work_wait(work, harness_deadline(WATCHDOG_MS), &res);
		must(!err && !covey_mask_has(&res.mask, 2), "the request ends with %s", covey_strerror(err));
		covey_work_free(work);
	}
	err = covey_leave(
		k.group, harness_deadline(WATCHDOG_MS)); /* else a death: what only this rank completed is done again */
	must(!err, "rank %d cannot leave: %s", me, covey_strerror(err));
	covey_close(k.group);
	return 0;
}

static void take_out(const char *name, int retire, int transport)
{
	struct plan plan;
	pid_t pid[3];
	int status;

	plan_open(&plan, name, 3, transport);
	plan.leave = retire;
	harness_fork_all(asker, &plan, pid, 3);
	status = reap(&plan, pid[2]);
	must(WIFEXITED(status) &&
		     (WEXITSTATUS(status) == -COVEY_ERR_FENCED || (retire && WEXITSTATUS(status) == -COVEY_ERR_CLOSED)),
	     "rank 2 ends with %x", status);
	reap_well(&plan, pid[0], 0);
	reap_well(&plan, pid[1], 1);
	compare(&plan, 3);
}

TEST_LOOP(a_retired_rank_goes, 0, 2)
{
	take_out("retire", 1, transports[_i]);
}

TEST_LOOP(an_evicted_rank_is_fenced, 0, 2)
{
	take_out("evict", 0, transports[_i]);
}

/* ---- nothing stays behind ---- */

TEST(nothing_stays_behind)
{
	struct plan plan;
	char text[8192];
	int shm = harness_entries("/dev/shm", "covey"), keys;
	pid_t pid[3];

	plan_open(&plan, "clean", 3, COVEY_TRANSPORT_SHM);
	plan.leave = 1;
	plan.goal = 5;
	harness_fork_all(founder, &plan, pid, 3);
	harness_until(&plan.shared->at[1], 100, "rank 1");
	kill(pid[1], SIGKILL);
	harness_reap(pid[1]);
	reap_well(&plan, pid[0], 0);
	reap_well(&plan, pid[2], 2);
	must(waitpid(-1, NULL, WNOHANG) < 0, "a process is left");
	must(harness_entries("/dev/shm", "covey") <= shm, "a segment is left in /dev/shm");
	must(!harness_sockets(plan.config.group), "a socket is left");
	keys = harness_keys(plan.config.group, text, sizeof(text)); /* the closed group, for a minute */
	must(keys <= 1, "%d keys are left: %s", keys, text);
}

/* A killed rank whose parent does not reap it is a zombie: dead all the same. */
TEST(a_zombie_is_dead)
{
	struct plan plan;
	pid_t pid[3];

	plan_open(&plan, "zombie", 3, COVEY_TRANSPORT_SHM);
	plan.leave = 1;
	plan.goal = 6;
	harness_fork_all(founder, &plan, pid, 3);
	harness_until(&plan.shared->at[0], 100, "rank 0");
	kill(pid[0], SIGKILL);
	reap_well(&plan, pid[1], 1);
	reap_well(&plan, pid[2], 2);
	harness_reap(pid[0]);
	compare(&plan, 6);
	last_mask(&plan, 1, 6);
}

HARNESS_MAIN(.name = "collectives/processes")
