/* SPDX-License-Identifier: Apache-2.0 */
#include "covey_admin.h"
#include "hosts.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define STORE_PORT "6379" /* the network is our own, so it is free */
#define SOME 50		  /* operations that show progress */
#define ADMIT_EVERY 16
#define LARGE_EVERY 32
#define COUNT 1000
#define LATE_MS 5000	   /* nobody is late: a dead rank's connections are closed */
#define CUT_MS 2000	   /* of a path without packets; a live rank may have no core for a while, too */
#define LARGE_COUNT 100000 /* chunked */
#define FIRST_USER 64200   /* they have no name and no files */

struct rank {
	struct hosts *h;
	struct covey_group *group;
	int me;
	float *send, *recv, *want;
};

/* ---- a rank's process ---- */

static size_t count_of(uint64_t seq)
{
	return seq % LARGE_EVERY == 7 ? LARGE_COUNT : COUNT;
}

static void write_down(struct rank *k, const struct covey_result *res, size_t bytes)
{
	struct hosts_shared *s = k->h->shared;
	struct note *note = &s->note[k->me][res->seq % NOTES];

	*note = (struct note){
		.seq = res->seq, .mask = res->mask.word[0], .sum = checksum(k->recv, bytes), .epoch = res->epoch
	};
	__atomic_store_n(&s->mask[k->me], note->mask, __ATOMIC_RELEASE);
	__atomic_store_n(&s->at[k->me], res->seq, __ATOMIC_RELEASE);
}

/* Safe points and sums, alike on all ranks by their numbers. */
static int step(struct rank *k, uint64_t seq)
{
	struct covey_result res = { 0 };
	uint64_t state = seq;
	size_t n = count_of(seq);
	int err;

	if (seq % ADMIT_EVERY == 0) {
		n = 0;
		err = covey_admit(k->group, &state, sizeof(state), &res);
	} else {
		type_input(k->send, n, COVEY_FLOAT32, k->me, seq);
		err = covey_allreduce(k->send, k->recv, n, COVEY_FLOAT32, COVEY_SUM, k->group, NULL, &res);
	}
	if (err)
		return err;
	must(res.seq == seq, "rank %d: operation %llu has number %llu", k->me, (unsigned long long)seq,
	     (unsigned long long)res.seq);
	type_fold(k->want, n, COVEY_FLOAT32, COVEY_SUM, res.mask.word[0], seq);
	must(!memcmp(k->recv, k->want, n * sizeof(float)), "rank %d: operation %llu over %llx gives other bytes", k->me,
	     (unsigned long long)seq, (unsigned long long)res.mask.word[0]);
	write_down(k, &res, n * sizeof(float));
	return 0;
}

/* From @seq to the parent's word for the last. */
static int stream(struct rank *k, uint64_t seq)
{
	int err = 0;

	for (; !err && seq <= __atomic_load_n(&k->h->shared->stop, __ATOMIC_ACQUIRE); seq++)
		err = step(k, seq);
	if (!err) {
		err = covey_leave(k->group, harness_deadline(WATCHDOG_MS));
		must(!err, "rank %d cannot leave: %s", k->me, covey_strerror(err));
	}
	covey_close(k->group);
	return err;
}

static int founder(struct rank *k)
{
	k->group = harness_join(&k->h->config, k->me);
	__atomic_add_fetch(&k->h->shared->joined[k->me], 1, __ATOMIC_RELEASE);
	return stream(k, 1);
}

static int joiner(struct rank *k)
{
	struct covey_config config = k->h->config;
	struct covey_result res = { 0 };
	uint64_t state = 0;
	int err;

	memset(k->h->shared->note[k->me], 0, sizeof(k->h->shared->note[k->me]));
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	config.join_ms = WATCHDOG_MS; /* it may have to wait until the cut is healed */
	k->group = harness_join(&config, k->me);
	err = covey_admit(k->group, &state, sizeof(state), &res);
	must(!err, "rank %d is not admitted: %s", k->me, covey_strerror(err));
	must(state == res.seq, "rank %d: state %llu at operation %llu", k->me, (unsigned long long)state,
	     (unsigned long long)res.seq);
	write_down(k, &res, 0);
	__atomic_add_fetch(&k->h->shared->joined[k->me], 1, __ATOMIC_RELEASE);
	return stream(k, res.seq + 1);
}

static int own_proc(void)
{
	return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	       mount("proc", "/proc", "proc", 0, NULL);
}

static int become_user(int me)
{
	const uid_t user = (uid_t)(FIRST_USER + me);
	char host[16];

	snprintf(host, sizeof(host), "user%d", me);
	if (setenv("COVEY_HOST", host, 1) || setgroups(0, NULL) || setresgid(user, user, user) ||
	    setresuid(user, user, user))
		return -1;
	/* Both are lost with the user; a program that a user starts has the second. */
	return prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_DUMPABLE, 1);
}

/* The PID namespace was entered by the fork. */
static int enter(unsigned ways, int me)
{
	if (chaos_net_enter(me / (RANKS / HOSTS)))
		return -1;
	if (ways & HOSTS_ONE_NAME && (unshare(CLONE_NEWUTS) || sethostname("twin", 4)))
		return -1;
	if (ways & HOSTS_PIDS && (getpid() != 1 || (!(ways & HOSTS_OUTER_PROC) && own_proc())))
		return -1;
	return ways & HOSTS_USERS ? become_user(me) : 0;
}

static int life(void *arg, int me, int (*first)(struct rank *))
{
	struct rank k = { .h = arg, .me = me };
	int err;

	if (enter(k.h->ways, me)) {
		perror("a rank enters its namespaces");
		return 1;
	}
	k.send = malloc(LARGE_COUNT * sizeof(float));
	k.recv = malloc(LARGE_COUNT * sizeof(float));
	k.want = malloc(LARGE_COUNT * sizeof(float));
	for (err = first(&k); err == COVEY_ERR_FENCED; err = joiner(&k))
		__atomic_add_fetch(&k.h->shared->fenced[me], 1, __ATOMIC_RELEASE);
	return -err;
}

static int life_of_founder(void *arg, int me)
{
	return life(arg, me, founder);
}

static int life_of_joiner(void *arg, int me)
{
	return life(arg, me, joiner);
}

/* ---- the parent ---- */

static void __attribute__((noreturn)) exec_store(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!freopen("/dev/null", "w", stdout))
		_exit(126);
	execlp("redis-server", "redis-server", "--bind", chaos_net_address(CHAOS_NET_STORE), "--port", STORE_PORT,
	       "--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", "/tmp", (char *)NULL);
	_exit(127);
}

void hosts_open(struct hosts *h, const char *name)
{
	static char url[64];

	memset(h, 0, sizeof(*h));
	must(chaos_net_open(HOSTS) == 0, "no hosts");
	h->store = fork();
	if (!h->store)
		exec_store();
	snprintf(url, sizeof(url), "redis://%s:" STORE_PORT, chaos_net_address(CHAOS_NET_STORE));
	h->config = harness_config(name, RANKS);
	h->config.store = url;
	h->config.link_ms = LATE_MS;
	h->shared = harness_shared(sizeof(*h->shared));
	h->shared->stop = UINT64_MAX;
}

void hosts_start(struct hosts *h, int rank, int replacement)
{
	int own = open("/proc/thread-self/ns/pid", O_RDONLY | O_CLOEXEC);

	must(own >= 0 && (!(h->ways & HOSTS_PIDS) || !unshare(CLONE_NEWPID)), "no PID namespace");
	h->pid[rank] = harness_fork(replacement ? life_of_joiner : life_of_founder, h, rank);
	must(!(h->ways & HOSTS_PIDS) || !setns(own, CLONE_NEWPID), "not back in the PID namespace");
	close(own);
}

void hosts_kill(struct hosts *h, int rank)
{
	kill(h->pid[rank], SIGKILL);
	harness_reap(h->pid[rank]);
}

void hosts_begin(struct hosts *h)
{
	for (int r = 0; r < RANKS; r++)
		hosts_start(h, r, 0);
	hosts_progress(h, ALL);
}

void hosts_progress(struct hosts *h, unsigned ranks)
{
	for (int r = 0; r < RANKS; r++)
		if (ranks >> r & 1)
			harness_until(&h->shared->at[r], h->shared->at[r] + SOME, "operations of a rank");
}

void hosts_until_mask(struct hosts *h, unsigned ranks, unsigned mask)
{
	uint64_t end = harness_deadline(WATCHDOG_MS);

	for (int r = 0; r < RANKS; r++) {
		while (ranks >> r & 1 && __atomic_load_n(&h->shared->mask[r], __ATOMIC_ACQUIRE) != mask) {
			must(harness_now_ns() < end, "rank %d: operations of %llx, not of %x", r,
			     (unsigned long long)h->shared->mask[r], mask);
			sched_yield();
		}
	}
}

void hosts_cut_begin(struct hosts *h, const char *name)
{
	hosts_open(h, name);
	h->config.link_ms = CUT_MS;
	hosts_begin(h);
}

void hosts_partition(int a, int b)
{
	must(chaos_net_cut(a, b) == 0 && chaos_net_cut(b, a) == 0, "no cut between %d and %d", a, b);
}

/* t:R = `server-ms phase;done;0:shm,1:tcp` */
static void see_links(void *ctx, const char *key, const char *value)
{
	char(*told)[64] = ctx;
	const char *links = strrchr(value, ';');
	int rank;

	if (sscanf(key, "t:%d", &rank) == 1 && rank >= 0 && rank < RANKS && links)
		snprintf(told[rank], sizeof(told[rank]), "%s,", links + 1);
}

void hosts_links(struct hosts *h)
{
	static const char *const peek[] = { "peek" };
	uint64_t end = harness_deadline(WATCHDOG_MS);
	char told[RANKS][64] = { "" }, want[16];
	int apart = (h->ways & (HOSTS_PIDS | HOSTS_USERS)) != 0;
	int right;

	do { /* beats tell it, one a second */
		must(harness_now_ns() < end, "links: %s %s %s %s", told[0], told[1], told[2], told[3]);
		must(!covey_admin_call(h->config.store, h->config.group, 1, peek, 0, see_links, told), "no peek");
		right = 0;
		for (int from = 0; from < RANKS; from++) {
			for (int to = 0; to < RANKS; to++) {
				snprintf(want, sizeof(want), "%d:%s,", to,
					 !apart && from / 2 == to / 2 ? "shm" : "tcp");
				right += from != to && strstr(told[from], want);
			}
		}
		poll(NULL, 0, 20);
	} while (right < RANKS * (RANKS - 1));
}

static void compare(const struct hosts *h, unsigned ranks)
{
	uint64_t stop = h->shared->stop, compared = 0;

	for (uint64_t seq = stop > NOTES ? stop - NOTES + 1 : 1; seq <= stop; seq++) {
		const struct note *first = NULL;

		for (int r = 0; r < RANKS; r++) {
			const struct note *n = &h->shared->note[r][seq % NOTES];

			if (!(ranks >> r & 1) || n->seq != seq)
				continue;
			if (!first)
				first = n;
			must(n->mask == first->mask && n->epoch == first->epoch && n->sum == first->sum,
			     "operation %llu: rank %d has (epoch %u, mask %llx, %llx), another (%u, %llx, %llx)",
			     (unsigned long long)seq, r, n->epoch, (unsigned long long)n->mask,
			     (unsigned long long)n->sum, first->epoch, (unsigned long long)first->mask,
			     (unsigned long long)first->sum);
			compared += n != first;
		}
	}
	must(compared >= SOME, "%llu outcomes compared", (unsigned long long)compared);
}

void hosts_finish(struct hosts *h, unsigned ranks)
{
	uint64_t last = 0;

	for (int r = 0; r < RANKS; r++)
		if (ranks >> r & 1 && h->shared->at[r] > last)
			last = h->shared->at[r];
	/* Nobody can be past it when they read it: nobody is more than one operation ahead of another. */
	__atomic_store_n(&h->shared->stop, last + 100, __ATOMIC_RELEASE);
	for (int r = 0; r < RANKS; r++) {
		int status;

		if (!(ranks >> r & 1))
			continue;
		status = harness_reap(h->pid[r]);
		must(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d ends with wait status %x", r, status);
	}
	compare(h, ranks);
	kill(h->store, SIGKILL);
	harness_reap(h->store);
	chaos_net_close();
}
