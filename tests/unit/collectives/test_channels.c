/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between processes while one is killed and replaced, and while links break: what survivors send each
 * other arrives once, whole and in order, what the dead owed fails, and the next process with its rank begins
 * at number 0.
 *
 * labels: redis real
 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define BATCH 24 /* messages each way between two ranks, from one safe point to the next */
#define VICTIM 2
#define BIGGEST 700000

struct shared {
	uint64_t round[RANKS];	 /* exchanges done */
	uint64_t without[RANKS]; /* safe points that the victim was missing from */
	uint64_t again[RANKS];	 /* messages exchanged with its replacement */
	uint64_t failed[RANKS];	 /* messages that ended with COVEY_ERR_PEER */
	uint64_t cuts[RANKS];	 /* links cut by the fault plan */
	uint64_t stop;		 /* round: the last */
};

struct job {
	struct covey_config config;
	struct shared *shared;
	const char *fault; /* plan of one rank, NULL: none */
	int faulty;
	int die_at; /* message at which the victim kills itself, -1: never */
};

struct rank {
	struct job *job;
	struct covey_group *group;
	int me, dead[RANKS];
	uint64_t sent[RANKS], got[RANKS];
};

/* ---- what message @number is: alike on both sides ---- */

static uint64_t hash(int from, int to, uint64_t number)
{
	uint64_t s = (uint64_t)from * 977 + (uint64_t)to * 13 + number * 1000003;

	return harness_random(&s);
}

static size_t bytes_of(int from, int to, uint64_t number)
{
	uint64_t h = hash(from, to, number);

	return h % 8 == 0 ? (h >> 8) % BIGGEST : h % 8 < 4 ? (h >> 8) % 40000 : (h >> 8) % 300;
}

static uint8_t *fill(int from, int to, uint64_t number)
{
	size_t n = bytes_of(from, to, number);
	uint64_t h = hash(from, to, number);
	uint8_t *at = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		at[i] = (uint8_t)(h + i * 7 + (i >> 8));
	return at;
}

/* ---- one exchange with one peer ---- */

struct works {
	struct covey_work *send[BATCH], *recv[BATCH];
	uint8_t *out[BATCH], *in[BATCH];
};

static void post(struct rank *k, int peer, struct works *w)
{
	for (int i = 0; i < BATCH; i++) {
		uint64_t out = k->sent[peer] + (uint64_t)i;
		size_t n = bytes_of(k->me, peer, out);
		int err;

		if (k->me == VICTIM && k->job->die_at == (int)out)
			raise(SIGKILL);
		w->out[i] = fill(k->me, peer, out);
		w->in[i] = malloc(BIGGEST);
		err = covey_send_start(w->out[i], n, COVEY_UINT8, peer, 1, k->group, NULL, &w->send[i]);
		if (!err)
			err = covey_recv_start(w->in[i], BIGGEST, COVEY_UINT8, peer, 1, k->group, NULL, &w->recv[i]);
		must(!err, "rank %d: %s", k->me, covey_strerror(err));
	}
}

static void check(struct rank *k, int peer, const struct works *w, int i, const struct covey_result *res)
{
	uint64_t number = k->got[peer] + (uint64_t)i;
	uint8_t *want = fill(peer, k->me, number);

	must(res->seq == number && res->bytes == bytes_of(peer, k->me, number),
	     "rank %d from %d: number %llu with %zu bytes, not %llu with %zu", k->me, peer,
	     (unsigned long long)res->seq, res->bytes, (unsigned long long)number, bytes_of(peer, k->me, number));
	must(!memcmp(w->in[i], want, res->bytes), "rank %d from %d: message %llu has other bytes", k->me, peer,
	     (unsigned long long)number);
	free(want);
}

static void take(struct rank *k, int peer, struct works *w)
{
	struct covey_result res;

	for (int i = 0; i < BATCH; i++) {
		int err = covey_work_wait(w->recv[i], harness_deadline(WATCHDOG_MS), &res);

		must(!err || (err == COVEY_ERR_PEER && peer == VICTIM), "rank %d from %d: message %d: %s", k->me, peer,
		     i, covey_strerror(err));
		if (err)
			k->dead[peer] = 1;
		else
			check(k, peer, w, i, &res);
		must(!err || res.epoch > 1, "it failed before anybody was removed");
		k->job->shared->failed[k->me] += err != 0;
		err = covey_work_wait(w->send[i], harness_deadline(WATCHDOG_MS), &res);
		must(!err || (err == COVEY_ERR_PEER && peer == VICTIM), "rank %d to %d: message %d: %s", k->me, peer, i,
		     covey_strerror(err));
		k->dead[peer] |= err != 0;
		covey_work_free(w->recv[i]);
		covey_work_free(w->send[i]);
		free(w->in[i]);
		free(w->out[i]);
	}
	k->sent[peer] += BATCH;
	k->got[peer] += BATCH;
}

static void exchange(struct rank *k, uint64_t mask)
{
	static struct works w[RANKS];

	for (int r = 0; r < RANKS; r++)
		if (mask >> r & 1)
			post(k, r, &w[r]);
	for (int r = 0; r < RANKS; r++)
		if (mask >> r & 1)
			take(k, r, &w[r]);
	__atomic_add_fetch(&k->job->shared->round[k->me], 1, __ATOMIC_RELEASE);
}

/* ---- a rank ---- */

static void count_cuts(void *ctx, int level, const char *line)
{
	(void)level;
	if (strstr(line, "fault plan: cut"))
		__atomic_add_fetch((uint64_t *)ctx, 1, __ATOMIC_RELAXED);
}

/* Everybody exchanges with everybody of the last safe point, itself too, then comes to the next. */
static int rounds(struct rank *k, uint64_t mask)
{
	struct shared *s = k->job->shared;
	struct covey_result res = { 0 };
	uint64_t word;

	do {
		exchange(k, mask);
		word = __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE) <= s->round[0];
		must(!covey_admit(k->group, &word, sizeof(word), &res), "rank %d: safe point", k->me);
		/* one word for all: the lowest rank's, told to the others */
		must(!covey_broadcast(&word, &word, 1, COVEY_INT64, 0, k->group, NULL, NULL), "rank %d: word", k->me);
		if (!(res.mask.word[0] >> VICTIM & 1)) {
			k->dead[VICTIM] = 1;
			__atomic_add_fetch(&s->without[k->me], 1, __ATOMIC_RELEASE);
		} else if (k->dead[VICTIM]) {
			k->dead[VICTIM] = 0;
			k->sent[VICTIM] = k->got[VICTIM] = 0;
			__atomic_store_n(&s->again[k->me], 1, __ATOMIC_RELEASE);
		}
		mask = res.mask.word[0];
	} while (!word);
	must(!covey_leave(k->group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", k->me);
	covey_close(k->group);
	return 0;
}

static int founder(void *arg, int me)
{
	struct rank k = { .job = arg, .me = me };

	if (k.job->fault && me == k.job->faulty)
		setenv("COVEY_FAULT", k.job->fault, 1);
	covey_log_set(count_cuts, &k.job->shared->cuts[me], COVEY_LOG_WARN);
	k.group = harness_join(&k.job->config, me);
	return rounds(&k, (1u << k.job->config.world) - 1);
}

static int joiner(void *arg, int me)
{
	struct rank k = { .job = arg, .me = me };
	struct covey_config config = k.job->config;
	struct covey_result res = { 0 };
	uint64_t word = 0;
	char c = 0;

	k.job->die_at = -1;
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	k.group = harness_join(&config, me);
	must(covey_send(&c, 1, COVEY_UINT8, 0, 0, k.group, NULL, NULL) == COVEY_ERR_INVAL,
	     "before its first safe point");
	must(!covey_admit(k.group, &word, sizeof(word), &res), "rank %d is not admitted", me);
	must(!covey_broadcast(&word, &word, 1, COVEY_INT64, 0, k.group, NULL, NULL), "rank %d: word", me);
	must(!word, "it was over before the replacement came");
	return rounds(&k, res.mask.word[0]);
}

/* ---- parent ---- */

static void job_open(struct job *job, const char *name, int world, int transport)
{
	*job = (struct job){ .config = harness_config(name, world), .die_at = -1, .faulty = -1 };
	job->config.transport = transport;
	job->shared = harness_shared(sizeof(*job->shared));
	job->shared->stop = UINT64_MAX;
}

static void reap_well(const struct job *job, pid_t pid, int rank)
{
	int status = harness_reap_busy(pid, job->shared->round, RANKS);

	must(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d ends with wait status %x", rank, status);
}

/* Rank 2 dies in the middle of an exchange; another process takes its place. */
static void death(int transport, const char *fault, int die_at)
{
	struct job job;
	pid_t pid[RANKS];
	struct shared *s;

	job_open(&job, "death", 4, transport);
	s = job.shared;
	job.fault = fault;
	job.faulty = VICTIM;
	job.die_at = die_at;
	harness_fork_all(founder, &job, pid, 4);
	harness_reap(pid[VICTIM]);
	for (int r = 0; r < 4; r++)
		if (r != VICTIM)
			harness_until(&s->without[r], 2, "safe points without the dead");
	must(s->failed[0] + s->failed[1] + s->failed[3] > 0, "nothing of the dead failed");
	pid[VICTIM] = harness_fork(joiner, &job, VICTIM);
	harness_until(&s->again[0], 1, "the replacement");
	__atomic_store_n(&s->stop, s->round[0] + 3, __ATOMIC_RELEASE);
	for (int r = 0; r < 4; r++)
		reap_well(&job, pid[r], r);
	must(s->again[0] && s->again[1] && s->again[3], "not everybody met the replacement");
}

TEST_LOOP(survivors_go_on_and_a_replacement_begins_at_zero, 0, 4)
{
	death(_i % 2 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM, NULL, _i < 2 ? 30 : 55);
}

TEST_LOOP(a_death_between_bytes_and_count, 0, 4)
{
	static const char *const plans[] = { "kill@put:150", "kill@signal:333", "kill@put:201", "kill@signal:264" };

	death(_i % 2 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM, plans[_i], -1);
}

/*
 * The link of two ranks is cut; nobody is removed and nothing is lost, doubled or reordered. (Twice in one view would
 * raise suspicion; links that break all the time are the simulator's.)
 */
TEST_LOOP(a_broken_link_goes_on_where_it_was, 0, 4)
{
	static const char *const plans[] = { "cut:1@put:33", "cut:1@put:170", "cut:1@signal:20", "cut:1@signal:150" };
	struct job job;
	pid_t pid[2];

	job_open(&job, "cut", 2, COVEY_TRANSPORT_TCP);
	job.fault = plans[_i];
	job.faulty = 0;
	job.shared->stop = 12;
	harness_fork_all(founder, &job, pid, 2);
	for (int r = 0; r < 2; r++)
		reap_well(&job, pid[r], r);
	must(job.shared->cuts[0] == 1, "%llu links were cut", (unsigned long long)job.shared->cuts[0]);
	must(!job.shared->failed[0] && !job.shared->failed[1], "messages failed");
}

HARNESS_MAIN(.name = "collectives/channels")
