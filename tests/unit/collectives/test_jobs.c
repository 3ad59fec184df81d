/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that meet under one name: a second one beside the first, the same one again after its end or its death, and
 * processes of one launch that were not given what fits together.
 *
 * labels: redis real
 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define RANKS 4

struct shared {
	uint64_t at[RANKS], stop;
	int err[RANKS], size[RANKS];
	char cause[RANKS][sizeof(((struct covey_error_info *)0)->cause)];
};

struct job {
	struct covey_config config[RANKS];
	struct shared *shared;
};

static struct job job;

static void setup(const char *name, int world)
{
	job.shared = harness_shared(sizeof(*job.shared));
	job.config[0] = harness_config(name, world);
	for (int i = 0; i < RANKS; i++) {
		job.config[i] = job.config[0];
		job.config[i].rank = i;
	}
}

/* Process @i joins, and runs operations until it is told to stop. */
static int run(void *arg, int i)
{
	struct job *j = arg;
	struct shared *s = j->shared;
	struct covey_group *group;
	struct covey_result res;
	struct covey_error_info info;
	float in = 1, out;

	s->err[i] = covey_join(&j->config[i], &group);
	if (s->err[i]) {
		covey_last_error(NULL, &info);
		memcpy(s->cause[i], info.cause, sizeof(info.cause));
		return 0;
	}
	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE) || s->at[i] % 64) {
		must(!covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, &res), "process %d", i);
		must((int)out == covey_mask_count(&res.mask), "%g of %d", (double)out, covey_mask_count(&res.mask));
		s->size[i] = res.size;
		__atomic_add_fetch(&s->at[i], 1, __ATOMIC_RELEASE);
	}
	covey_leave(group, 0);
	covey_close(group);
	return 0;
}

static void names(int i, const char *text)
{
	must(strstr(job.shared->cause[i], text), "process %d: no \"%s\" in: %s", i, text, job.shared->cause[i]);
	must(strlen(job.shared->cause[i]) < sizeof(job.shared->cause[i]) - 1, "it is cut: %s", job.shared->cause[i]);
}

static void reap(const pid_t *pid, int from, int to)
{
	for (int i = from; i < to; i++)
		must(harness_reap(pid[i]) == 0, "process %d", i);
}

TEST(a_second_job_does_not_join_a_running_one)
{
	pid_t pid[RANKS];

	setup("second", 2);
	for (int i = 0; i < 2; i++)
		pid[i] = harness_fork(run, &job, i);
	for (int i = 0; i < 2; i++)
		harness_until(&job.shared->at[i], 1, "the first job runs");
	for (int i = 2; i < 4; i++) {
		job.config[i].world = 4;
		job.config[i].job = "another";
		pid[i] = harness_fork(run, &job, i);
	}
	reap(pid, 2, 4);
	for (int i = 2; i < 4; i++) {
		ck_assert_int_eq(job.shared->err[i], COVEY_ERR_BUSY);
		names(i, "is in use: rank ");
		names(i, "world is 2 there and 4 here");
	}
	harness_until(&job.shared->at[0], job.shared->at[0] + 100, "the first job goes on");
	job.shared->stop = 1;
	reap(pid, 0, 2);
	ck_assert_int_eq(job.shared->size[0], 2);
	ck_assert_int_eq(job.shared->size[1], 2);
}

static void form_and_end(int how)
{
	pid_t pid[2];

	memset(job.shared, 0, sizeof(*job.shared));
	for (int i = 0; i < 2; i++)
		pid[i] = harness_fork(run, &job, i);
	for (int i = 0; i < 2; i++)
		harness_until(&job.shared->at[i], 1, "it runs");
	job.shared->stop = how == 0;
	for (int i = 0; how && i < 2; i++)
		kill(pid[i], how);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(harness_reap(pid[i]), how);
}

/* Each time the name is taken over at once: a test that waits for leases or expiry would meet its watchdog. */
TEST(a_job_starts_again_after_its_end_and_after_its_death)
{
	static const int ends[] = { 0, 0, SIGKILL, SIGKILL, 0 };

	setup("again", 2);
	for (int i = 0; i < 2; i++)
		job.config[i].lease_ms = -1;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		form_and_end(ends[i]);
}

/* The processes live; it is their handles that are gone. */
TEST(a_process_that_closed_its_handle_forms_the_group_again)
{
	struct covey_config config = harness_config("handles", 1);
	struct covey_group *group;

	config.lease_ms = -1;
	for (int i = 0; i < 3; i++) {
		group = harness_join(&config, 0);
		covey_close(group);
	}
}

TEST(a_stopped_process_keeps_its_group)
{
	pid_t pid[RANKS];

	setup("stopped", 2);
	for (int i = 0; i < 2; i++)
		pid[i] = harness_fork(run, &job, i);
	for (int i = 0; i < 2; i++)
		harness_until(&job.shared->at[i], 1, "it runs");
	kill(pid[0], SIGKILL);
	ck_assert_int_eq(harness_reap(pid[0]), SIGKILL);
	kill(pid[1], SIGSTOP);
	pid[0] = harness_fork(run, &job, 0);
	reap(pid, 0, 1);
	ck_assert_int_eq(job.shared->err[0], COVEY_ERR_BUSY);
	names(0, "rank 1 (process ");
	kill(pid[1], SIGCONT);
	job.shared->stop = 1;
	reap(pid, 1, 2);
}

static void two_that_do_not_fit(int err)
{
	pid_t pid[2];

	job.config[0].join_ms = job.config[1].join_ms = 10 * WATCHDOG_MS; /* neither waits for that */
	for (int i = 0; i < 2; i++)
		pid[i] = harness_fork(run, &job, i);
	reap(pid, 0, 2);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(job.shared->err[i], err);
}

TEST(founders_of_two_sizes_are_told_both)
{
	setup("sizes", 2);
	job.config[1].world = 3;
	two_that_do_not_fit(COVEY_ERR_INVAL);
	for (int i = 0; i < 2; i++) {
		names(i, "world is ");
		names(i, strstr(job.shared->cause[0], "world is 2") ? " and 3 in rank 1" : " and 2 in rank 0");
	}
}

TEST(a_rank_given_twice_is_named)
{
	setup("twice", 2);
	job.config[1].rank = 0;
	two_that_do_not_fit(COVEY_ERR_BUSY);
	for (int i = 0; i < 2; i++)
		names(i, "rank 0 of 2 was given to two processes: process ");
}

TEST(settings_that_differ_are_named_with_both_values)
{
	setup("settings", 2);
	job.config[1].slot_bytes = 65536;
	two_that_do_not_fit(COVEY_ERR_INVAL);
	for (int i = 0; i < 2; i++) {
		names(i, "slot_bytes is ");
		names(i, "131072");
		names(i, "65536");
	}
}

/* A rank with a short lease would suspect those whose beats may come late by their long one. */
TEST(leases_that_differ_are_named_with_both_values)
{
	setup("leases", 2);
	job.config[0].lease_ms = 7000;
	job.config[1].lease_ms = 1000;
	two_that_do_not_fit(COVEY_ERR_INVAL);
	for (int i = 0; i < 2; i++) {
		names(i, "lease_ms is ");
		names(i, "7000");
		names(i, "1000");
		names(i, ": all that form a group need the same");
	}
}

TEST(a_joiner_with_another_lease_is_refused)
{
	pid_t pid[2];

	setup("lease", 1);
	job.config[1].world = 0;
	job.config[1].create = COVEY_CREATE_NEVER;
	job.config[1].lease_ms = 1000;
	pid[0] = harness_fork(run, &job, 0);
	harness_until(&job.shared->at[0], 1, "it runs");
	pid[1] = harness_fork(run, &job, 1);
	reap(pid, 1, 2);
	ck_assert_int_eq(job.shared->err[1], COVEY_ERR_INVAL);
	names(1, "lease_ms is 60000 in the group and 1000 in rank 1");
	job.shared->stop = 1;
	reap(pid, 0, 1);
}

TEST(a_rank_past_world_is_refused_before_all_else)
{
	struct covey_config config = harness_config("past", 2);
	struct covey_error_info info;
	struct covey_group *group;

	config.rank = 2;
	config.store = "redis://192.0.2.1:1"; /* not asked */
	ck_assert_int_eq(covey_join(&config, &group), COVEY_ERR_INVAL);
	covey_last_error(NULL, &info);
	ck_assert_ptr_nonnull(strstr(info.cause, "rank 2 (covey_config) is wrong: with world 2"));
}

HARNESS_MAIN(.name = "collectives/jobs", .timeout_s = 120)
