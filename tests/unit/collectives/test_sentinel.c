/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group whose store fails over by real sentinels: planned, by a kill, and to a replica that misses what was decided
 * last. Traffic goes on, a rank killed afterwards is survived by all others alike, epochs never fall and nobody
 * is fenced (PROTOCOL section 11). Nothing is timed; a watchdog calls a hang.
 *
 * labels: redis real
 */
#include "harness.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "covey_admin.h"
#include "chaos/sentinel.h"

#define RANKS 4
#define SOME 20 /* operations that show progress */
#define ADMIT_EVERY 16
#define COUNT 500

struct shared {
	uint64_t at[RANKS], mask[RANKS], epoch[RANKS];
	uint64_t stop; /* the last operation */
};

static struct {
	char dir[64], url[200];
	struct covey_config config;
	struct shared *shared;
	pid_t pid[RANKS];
} test;

/* ---- a rank's process ---- */

static void note(int me, const struct covey_result *res)
{
	struct shared *s = test.shared;

	must(res->epoch >= s->epoch[me], "rank %d: epoch %u after %llu", me, res->epoch,
	     (unsigned long long)s->epoch[me]);
	__atomic_store_n(&s->epoch[me], res->epoch, __ATOMIC_RELEASE);
	__atomic_store_n(&s->mask[me], res->mask.word[0], __ATOMIC_RELEASE);
	__atomic_store_n(&s->at[me], res->seq, __ATOMIC_RELEASE);
}

static int step(struct covey_group *group, int me, uint64_t seq)
{
	struct covey_result res = { 0 };
	float in[COUNT], out[COUNT], want[COUNT];
	uint64_t state = seq;
	int err;

	if (seq % ADMIT_EVERY == 0) {
		err = covey_admit(group, &state, sizeof(state), &res);
	} else {
		type_input(in, COUNT, COVEY_FLOAT32, me, seq);
		err = covey_allreduce(in, out, COUNT, COVEY_FLOAT32, COVEY_SUM, group, NULL, &res);
		type_fold(want, COUNT, COVEY_FLOAT32, COVEY_SUM, res.mask.word[0], seq);
		must(err || !memcmp(out, want, sizeof(want)), "rank %d: operation %llu gives other bytes", me,
		     (unsigned long long)seq);
	}
	must(!err, "rank %d: operation %llu: %s", me, (unsigned long long)seq, covey_strerror(err));
	note(me, &res);
	return 0;
}

static int stream(struct covey_group *group, int me, uint64_t seq)
{
	int err;

	for (; seq <= __atomic_load_n(&test.shared->stop, __ATOMIC_ACQUIRE); seq++) {
		step(group, me, seq);
		poll(NULL, 0, 1); /* sentinels take seconds: cores are left to others meanwhile */
	}
	err = covey_leave(group, harness_deadline(WATCHDOG_MS));
	must(!err, "rank %d cannot leave: %s", me, covey_strerror(err));
	covey_close(group);
	return 0;
}

static int founder(void *arg, int me)
{
	(void)arg;
	return stream(harness_join(&test.config, me), me, 1);
}

static int joiner(void *arg, int me)
{
	struct covey_config config = test.config;
	struct covey_result res = { 0 };
	struct covey_group *group;
	uint64_t state = 0;
	int err;

	(void)arg;
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	group = harness_join(&config, me);
	err = covey_admit(group, &state, sizeof(state), &res);
	must(!err && state == res.seq, "rank %d is not admitted: %s", me, covey_strerror(err));
	test.shared->epoch[me] = 0;
	note(me, &res);
	return stream(group, me, res.seq + 1);
}

/* ---- the parent ---- */

static void open_group(const char *name)
{
	strcpy(test.dir, "/tmp/covey-sentinel-XXXXXX");
	must(mkdtemp(test.dir), "no directory");
	must(!chaos_sentinel_start(test.dir, test.url, sizeof(test.url)), "no sentinels");
	test.config = harness_config(name, RANKS);
	test.config.store = test.url;
	test.shared = harness_shared(sizeof(*test.shared));
	test.shared->stop = UINT64_MAX;
	for (int r = 0; r < RANKS; r++)
		test.pid[r] = harness_fork(founder, NULL, r);
}

static void progress(unsigned ranks)
{
	for (int r = 0; r < RANKS; r++)
		if (ranks >> r & 1)
			harness_until(&test.shared->at[r], test.shared->at[r] + SOME, "operations of a rank");
}

static void until_mask(unsigned mask)
{
	uint64_t end = harness_deadline(WATCHDOG_MS);

	for (int r = 0; r < RANKS; r++) {
		while (mask >> r & 1 && __atomic_load_n(&test.shared->mask[r], __ATOMIC_ACQUIRE) != mask) {
			must(harness_now_ns() < end, "rank %d: operations of %llx, not of %x", r,
			     (unsigned long long)test.shared->mask[r], mask);
			sched_yield();
		}
	}
	progress(mask);
}

static void kill_rank(int rank, unsigned left)
{
	kill(test.pid[rank], SIGKILL);
	harness_reap(test.pid[rank]);
	until_mask(left);
}

static void close_group(unsigned ranks)
{
	char line[100];
	uint64_t last = 0;

	for (int r = 0; r < RANKS; r++)
		if (ranks >> r & 1 && test.shared->at[r] > last)
			last = test.shared->at[r];
	__atomic_store_n(&test.shared->stop, last + 10 * SOME, __ATOMIC_RELEASE);
	for (int r = 0; r < RANKS; r++) {
		int status = ranks >> r & 1 ? harness_reap(test.pid[r]) : 0;

		must(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d ends with wait status %x", r, status);
	}
	chaos_sentinel_stop();
	snprintf(line, sizeof(line), "rm -rf %s", test.dir);
	must(!system(line), "%s stays", test.dir);
}

/* The store that is master now decides: a death is survived, a replacement comes in. */
static void goes_on(void)
{
	kill_rank(1, 13);
	test.pid[1] = harness_fork(joiner, NULL, 1);
	until_mask(15);
}

TEST(planned_failover_is_followed)
{
	open_group("planned");
	until_mask(15);
	must(!chaos_sentinel_failover(), "no failover");
	progress(15);
	goes_on();
	must(!chaos_sentinel_failover(), "no failover back");
	goes_on();
	close_group(15);
}

TEST(killed_master_is_replaced)
{
	open_group("killed");
	until_mask(15);
	must(!chaos_sentinel_kill(), "no failover");
	progress(15);
	goes_on();
	must(!chaos_sentinel_revive(), "no second server");
	must(!chaos_sentinel_failover(), "no failover back");
	goes_on();
	close_group(15);
}

/* The rank dies and nobody decides, until the failover is through. */
TEST(death_without_a_master_is_decided_by_the_next)
{
	open_group("both");
	until_mask(15);
	kill(test.pid[1], SIGKILL);
	must(!chaos_sentinel_kill(), "no failover");
	harness_reap(test.pid[1]);
	until_mask(13);
	close_group(13);
}

/* What the replica misses: two views, and that rank 1 is another process now. The members tell it. */
TEST(lagging_replica_is_told_by_the_members)
{
	uint64_t epoch;

	open_group("lag");
	until_mask(15);
	must(!chaos_sentinel_lag(), "no lag");
	goes_on();
	epoch = test.shared->epoch[0];
	must(!chaos_sentinel_kill(), "no failover");
	progress(15);
	kill_rank(2, 11);
	must(test.shared->epoch[0] > epoch, "epoch %llu after %llu", (unsigned long long)test.shared->epoch[0],
	     (unsigned long long)epoch);
	close_group(11);
}

/* Asks with more and more time until the cause has @why: a machine under load is slow. */
static const char *cause_with(const char *why, const char *url)
{
	static struct covey_error_info info;
	static const char *const peek[] = { "peek" };

	info.cause[0] = '\0';
	for (int ms = 3000; ms < WATCHDOG_MS && !strstr(info.cause, why); ms *= 4) {
		must(covey_admin_call(url, "g", 1, peek, harness_deadline(ms), NULL, NULL), "%s is fine", url);
		covey_last_error(NULL, &info);
	}
	must(strstr(info.cause, why), "no \"%s\" in: %s", why, info.cause);
	return info.cause;
}

TEST(useless_sentinels_are_named_with_what_they_said)
{
	char other[200], part[64];
	const char *cause;

	strcpy(test.dir, "/tmp/covey-sentinel-XXXXXX");
	must(mkdtemp(test.dir), "no directory");
	must(!chaos_sentinel_start(test.dir, test.url, sizeof(test.url)), "no sentinels");
	snprintf(other, sizeof(other), "%.*s/other", (int)(strrchr(test.url, '/') - test.url), test.url);
	cause_with("knows no master named other", other);
	snprintf(other, sizeof(other), "redis+sentinel://127.0.0.1:%d/covey", chaos_sentinel_port());
	snprintf(part, sizeof(part), "127.0.0.1:%d: ERR unknown command", chaos_sentinel_port());
	cause_with(part, other);
	chaos_sentinel_stop();
	cause = cause_with("no sentinel names the master", test.url);
	must(strstr(cause, "Connection refused"), "%s", cause);
	snprintf(other, sizeof(other), "rm -rf %s", test.dir);
	must(!system(other), "%s stays", test.dir);
}

HARNESS_MAIN(.name = "collectives/sentinel")
