/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation fails once: memory, mappings, descriptors and threads that the library asks for are
 * wrapped by the linker (tests/CMakeLists.txt), and the n-th call of one rank, from the moment that it
 * is armed, fails. n runs from 1 until nothing is left to fail. The rank ends with a right result or
 * with an error that says its cause, has no memory, descriptor or mapping more than before, and does
 * not hang; the rest of its group goes on and is never wrong.
 *
 * labels: redis real
 */
#include "covey_ep.h"
#include "failing.h"
#include "ep_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__ /* gcc; with clang the allocations that are counted have to do */
#include <sanitizer/lsan_interface.h>
#endif

#define RANKS 3
#define COUNT 500
#define SHORT 100
#define LONG 300000 /* more than a ring holds: it is offered, and comes in parts */
#define LARGE ((size_t)1 << 20)
#define UNHIT 2 /* runs in a row without a failure: nothing is left */
#ifdef __SANITIZE_ADDRESS__
#define SAMPLED 20 /* every run takes seconds there */
#define STRIDE 23
#else
#define SAMPLED 400 /* calls are failed one by one up to here, then every STRIDE-th */
#define STRIDE 7    /* of a joiner's from the start: most are those of JOIN */
#endif
#define JOIN_MS 3000
#define JOIN_LONG_MS 10000 /* where nothing shall fail by it */

/* ---- what a rank has ---- */

struct has {
	long memory;
	int descriptors, mappings;
};

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 512; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Mappings of windows and of their reserved addresses; those of threads' stacks are kept by libc. */
static int mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (file && fgets(line, sizeof(line), file))
		n += strstr(line, "covey") != NULL || strstr(line, "---p 00000000 00:00 0 \n") != NULL;
	if (file)
		fclose(file);
	return n;
}

static struct has look(void)
{
	return (struct has){ failing.count, descriptors(), mappings() };
}

/* Threads that end may still be at it. */
static void same(const struct has *before)
{
	uint64_t end = harness_deadline(WATCHDOG_MS / 10);
	struct has now = look();

	while ((now.memory > before->memory || now.descriptors > before->descriptors) && harness_now_ns() < end) {
		usleep(1000);
		now = look();
	}
	must(now.memory <= before->memory, "%s number %ld failed: %ld allocations are left", failing.what,
	     failing.fails_at, now.memory - before->memory);
	must(now.descriptors <= before->descriptors, "%s number %ld failed: %d descriptors are left", failing.what,
	     failing.fails_at, now.descriptors - before->descriptors);
}

/* ---- a rank's life, in which one call fails ---- */

enum moment {
	JOIN,
	EP,
	MESSAGES,
	ALLREDUCE,
	RECOVER,
	LEAVE,	/* another rank leaves */
	GROW,	/* another rank comes */
	JOINER, /* it comes itself */
	FAR,	/* LEAVE, where ranks are linked by sockets */
	MOMENTS,
	ABSENT = MOMENTS /* nothing fails: it comes, and no member lets it in */
};

static const char *const moments[] = { "join",	"ep",	"messages", "allreduce",    "recover",
				       "leave", "grow", "joiner",   "leave by tcp", "absent" };

struct shared {
	uint64_t at[RANKS]; /* operations done */
	int joiner_over;    /* it is a member, or never will be */
	long hit;
	char what[32];
	pid_t victim; /* killed when rank 0 is armed */
};

struct job {
	struct covey_config config;
	struct shared *shared;
	int moment;
	long n;
};

/* Whose calls fail. */
static int victim(const struct job *job)
{
	return job->moment == JOINER || job->moment == ABSENT ? RANKS - 1 : 0;
}

static int loses_one(const struct job *job)
{
	return job->moment == RECOVER;
}

static int grows(const struct job *job)
{
	return job->moment == GROW || job->moment == JOINER || job->moment == ABSENT;
}

static void arm(const struct job *job, int rank, int moment, int on)
{
	if (rank == victim(job) && moment == job->moment)
		__atomic_store_n(&failing.armed, on, __ATOMIC_RELEASE);
}

static uint64_t next_seq(const struct covey_group *group)
{
	struct covey_view view = { 0 };

	covey_view(group, &view);
	return view.done_seq + 1;
}

/* An error has a number and a sentence. */
static void explained(const struct job *job, const struct covey_group *group, int err)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	must(err < 0 && strcmp(covey_strerror(err), "unknown error"), "%s number %ld failed: error %d", failing.what,
	     job->n, err);
	must(info.cause[0], "%s number %ld failed: %s, without a cause", failing.what, job->n, covey_strerror(err));
}

static int allreduce(struct job *job, struct covey_group *group, int me, uint64_t seq)
{
	float send[COUNT], recv[COUNT], want[COUNT];
	struct covey_result res = { 0 };
	int err;

	type_input(send, COUNT, COVEY_FLOAT32, me, seq);
	err = covey_allreduce(send, recv, COUNT, COVEY_FLOAT32, COVEY_SUM, group, NULL, &res);
	if (err)
		return err;
	type_fold(want, COUNT, COVEY_FLOAT32, COVEY_SUM, res.mask.word[0], res.seq);
	must(res.mask.word[0] >> me & 1 && !memcmp(recv, want, sizeof(want)), "rank %d: wrong bytes of operation %llu",
	     me, (unsigned long long)res.seq);
	__atomic_store_n(&job->shared->at[me], res.seq, __ATOMIC_RELEASE);
	return 0;
}

/* One dispatch of four tokens to the experts of both ranks. */
static int exchange(struct covey_group *group)
{
	struct covey_ep_config config = ep_config(4, 64, 2, 4);
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	static uint16_t x[4][64], packed[4][3 * 4][64];
	static int32_t experts[4][2] = { { 0, 3 }, { 1, 2 }, { 2, 3 }, { 0, 1 } }, count[4], info[4][3 * 4];
	static int64_t range[4][3];
	struct covey_ep *ep = NULL;
	int err;

	err = covey_ep_create(group, &config, &ep);
	if (err)
		return err;
	d.num_tokens = 4;
	d.x = x;
	d.experts = &experts[0][0];
	d.packed_x = packed;
	d.count = count;
	d.src_info = &info[0][0];
	d.range = &range[0][0];
	err = covey_dispatch(ep, &d, NULL, NULL);
	covey_ep_destroy(ep);
	return err;
}

/* A short message and a long one to the next rank, and from the one before, to itself where it is alone. */
static int messages(struct job *job, struct covey_group *group, int me)
{
	static uint8_t out[LONG], in[2][LONG];
	int ranks = job->config.world, next = (me + 1) % ranks, before = (me + ranks - 1) % ranks, err = 0;
	struct covey_work *work[4] = { NULL };
	struct covey_result res;

	memset(out, me + 1, sizeof(out));
	err = covey_send_start(out, SHORT, COVEY_UINT8, next, 1, group, NULL, &work[0]);
	if (!err)
		err = covey_send_start(out, LONG, COVEY_UINT8, next, 2, group, NULL, &work[1]);
	if (!err)
		err = covey_recv_start(in[1], LONG, COVEY_UINT8, before, 2, group, NULL, &work[2]);
	if (!err)
		err = covey_recv_start(in[0], SHORT, COVEY_UINT8, before, 1, group, NULL, &work[3]);
	for (int i = 0; i < 4; i++) {
		int end = err || !work[i] ? 0 : covey_work_wait(work[i], harness_deadline(WATCHDOG_MS / 4), &res);

		must(end || err || i < 2 || (in[i == 2][0] == before + 1 && res.bytes == (i == 2 ? LONG : SHORT)),
		     "rank %d: wrong bytes in message %d", me, i);
		err = err ? err : end;
	}
	if (err && me) { /* rank 0 gave up, and this one has nobody to talk to; it waits for its buffers' sake */
		must(err == COVEY_ERR_PEER || err == COVEY_ERR_TIMEOUT, "rank %d: %s", me, covey_strerror(err));
		err = 0;
	}
	for (int i = 0; i < 4; i++)
		covey_work_free(work[i]);
	return err;
}

/* Members come by until a newcomer is in, or will not come: what they decide on is alike on all. */
static int let_in(struct job *job, struct covey_group *group)
{
	struct covey_result res = { 0 };
	int32_t over = 0;
	int err = 0;

	while (!err && !over && !covey_mask_has(&res.mask, RANKS - 1)) {
		int32_t mine = __atomic_load_n(&job->shared->joiner_over, __ATOMIC_ACQUIRE);

		usleep(500);
		err = covey_allreduce(&mine, &over, 1, COVEY_INT32, COVEY_MAX, group, NULL, NULL);
		if (!err && job->moment != ABSENT)
			err = covey_admit(group, NULL, 0, &res);
	}
	return err;
}

static int come_in(struct job *job, struct covey_group *group)
{
	int err;

	do /* reap() ends what does not end */
		err = covey_admit(group, NULL, 0, NULL);
	while (job->moment != ABSENT && (err == COVEY_ERR_TIMEOUT || err == COVEY_ERR_NOMEM));
	return err;
}

static int several(struct job *job, struct covey_group *group, int me)
{
	int err = 0;

	for (int i = 0; !err && i < 5; i++)
		err = allreduce(job, group, me, next_seq(group));
	return err;
}

/* The group changes: a rank comes, goes, or dies. */
static int change(struct job *job, struct covey_group *group, int me)
{
	int err = 0;

	if ((job->moment == LEAVE || job->moment == FAR) && me)
		return 0;
	if (loses_one(job) && me == RANKS - 1) {
		__atomic_store_n(&job->shared->victim, getpid(), __ATOMIC_RELEASE);
		for (;;)
			pause();
	}
	if (loses_one(job) && me == 0) {
		while (!__atomic_load_n(&job->shared->victim, __ATOMIC_ACQUIRE))
			usleep(1000);
		kill(job->shared->victim, SIGKILL);
	}
	if (grows(job))
		err = let_in(job, group);
	return err ? err : several(job, group, me);
}

/* A rank that met an error leaves the group to the others. */
static int part(struct job *job, struct covey_group *group, int me)
{
	struct covey_work *work = NULL;
	uint64_t seq = 1;
	int err = 0;

	for (; !err && seq <= 5; seq++)
		err = allreduce(job, group, me, seq);
	arm(job, me, EP, 1);
	if (!err)
		err = exchange(group);
	arm(job, me, EP, 0);
	arm(job, me, MESSAGES, 1);
	if (!err)
		err = messages(job, group, me);
	arm(job, me, MESSAGES, 0);
	arm(job, me, ALLREDUCE, 1);
	if (!err)
		err = covey_barrier_start(group, NULL, &work);
	if (!err)
		err = covey_work_wait(work, harness_deadline(WATCHDOG_MS), NULL);
	covey_work_free(work);
	if (!err)
		err = allreduce(job, group, me, seq + 2);
	arm(job, me, ALLREDUCE, 0);
	if (job->moment < RECOVER)
		return err ? err : several(job, group, me);
	if (job->moment != JOINER)
		arm(job, me, job->moment, 1);
	if (!err) /* from here on some may be missing */
		err = change(job, group, me);
	__atomic_store_n(&failing.armed, 0, __ATOMIC_RELEASE);
	return err;
}

/* One that comes to a group of the others. */
static int newcomer(struct job *job, struct covey_group *group, int me)
{
	int err = come_in(job, group);

	arm(job, me, JOINER, 0);
	if (!err)
		err = several(job, group, me);
	return err;
}

static void life(struct job *job, int me)
{
	struct covey_config config = job->config;
	struct covey_group *group = NULL;
	int err;

	config.rank = me;
	if (job->moment == FAR)
		config.host = me ? "host-b" : "host-a";
	if (grows(job) && me == RANKS - 1)
		config.create = COVEY_CREATE_NEVER;
	arm(job, me, JOIN, 1);
	arm(job, me, JOINER, 1);
	err = covey_join(&config, &group);
	arm(job, me, JOIN, 0);
	if (err) {
		must(me == victim(job) && (job->moment == JOIN || job->moment == JOINER), "rank %d cannot join: %s", me,
		     covey_strerror(err));
		arm(job, me, JOINER, 0);
		explained(job, NULL, err);
		return;
	}
	err = grows(job) && me == RANKS - 1 ? newcomer(job, group, me) : part(job, group, me);
	__atomic_store_n(&failing.armed, 0, __ATOMIC_RELEASE);
	must(!err || me == victim(job), "rank %d is harmed: %s", me, covey_strerror(err));
	if (err)
		explained(job, group, err);
	else
		covey_leave(group, harness_deadline(2000));
	covey_close(group);
}

/* What other libraries allocated for us, LeakSanitizer sees, where it is built in. A rank ends by _exit(): we ask. */
static void no_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
	must(!__lsan_do_recoverable_leak_check(), "%s number %ld failed: a leak", failing.what, failing.fails_at);
#endif
}

static int rank_main(void *arg, int me)
{
	struct job *job = arg;
	struct has before;

	covey_log_set(NULL, NULL, COVEY_LOG_ERROR);
	failing.fails_at = job->n;
	failing.hit = &job->shared->hit;
	failing.what = job->shared->what;
	before = look();
	life(job, me);
	if (grows(job) && me == RANKS - 1)
		__atomic_store_n(&job->shared->joiner_over, 1, __ATOMIC_RELEASE);
	same(&before);
	if (me == victim(job))
		no_leaks();
	return 0;
}

static int reap(pid_t pid, const char *doing)
{
	uint64_t end = harness_deadline(WATCHDOG_MS / 2);
	int status;

	while (!waitpid(pid, &status, WNOHANG)) {
		if (harness_now_ns() > end) {
			kill(pid, SIGABRT);
			must(0, "%s: process %d hangs", doing, (int)pid);
		}
		usleep(500);
	}
	return status;
}

/* 1: the call was made, and failed. */
static int run(int moment, long n)
{
	struct job job = { .moment = moment, .n = n };
	int world = moment == JOIN ? 1 : loses_one(&job) ? RANKS : 2, ranks = world + grows(&job), status;
	pid_t pid[RANKS];
	char doing[64];
	int hit;

	job.config = harness_config("alloc", world);
	job.shared = harness_shared(sizeof(*job.shared));
	job.config.join_ms = moment == JOIN || moment == ABSENT ? JOIN_MS : JOIN_LONG_MS;
	job.config.max_ranks = 4;
	job.config.window_bytes = 32u << 20;
	harness_fork_all(rank_main, &job, pid, ranks);
	for (int r = 0; r < ranks; r++) {
		snprintf(doing, sizeof(doing), "COVEY_TEST_ALLOC=%d:%ld", moment, n); /* said if it hangs */
		status = reap(pid[r], doing);
		if (loses_one(&job) && r == RANKS - 1) /* by rank 0 */
			continue;
		must(WIFEXITED(status) && !WEXITSTATUS(status), "%s: %s number %ld failed: rank %d ended with %x",
		     moments[moment], job.shared->what, n, r, (unsigned int)status);
	}
	hit = (int)job.shared->hit;
	munmap(job.shared, sizeof(*job.shared));
	return hit;
}

static void run_all(int moment)
{
	long runs = 0, last = 0;
	const char *one = getenv("COVEY_TEST_ALLOC"); /* MOMENT:N runs one again */

	if (one) {
		if (atoi(one) == moment)
			run(moment, strchr(one, ':') ? atol(strchr(one, ':') + 1) : 1);
		return;
	}
	for (long n = 1, unhit = 0; unhit < UNHIT; n += n < SAMPLED && moment != JOINER ? 1 : STRIDE, runs++) {
		unhit = run(moment, n) ? 0 : unhit + 1;
		if (!unhit)
			last = n;
	}
	printf("%s: %ld runs, the last call that failed was number %ld%s\n", moments[moment], runs, last,
	       last > SAMPLED ? " (sampled)" : "");
	fflush(stdout);
	must(last, "%s: nothing was made to fail", moments[moment]);
}

TEST_LOOP(every_allocation_fails_once, 0, MOMENTS)
{
	run_all(_i);
}

/* A newcomer that gave up waiting leaves nothing behind either. */
TEST(a_newcomer_that_nobody_lets_in_leaves_nothing)
{
	run(ABSENT, 0);
}

/* ---- what operations ask for ---- */

/* Collectives in place and not, and messages, of some MiB. */
static void operate(struct covey_group *group, int me)
{
	static float in[LARGE], out[LARGE];
	int err = 0;

	for (int i = 0; i < 2; i++) {
		const float *send = i ? out : in;
		size_t own = (size_t)me * (LARGE / 2);

		err |= covey_allreduce(send, out, LARGE, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL);
		err |= covey_reduce(send, out, LARGE, COVEY_FLOAT32, COVEY_SUM, 1, group, NULL, NULL);
		err |= covey_reduce_scatter(send, i ? out + own : out, LARGE / 2, COVEY_FLOAT32, COVEY_SUM, group, NULL,
					    NULL);
		err |= covey_allgather(i ? out + own : in, out, LARGE / 2, COVEY_FLOAT32, group, NULL, NULL);
		err |= covey_alltoall(send, out, LARGE / 2, COVEY_FLOAT32, group, NULL, NULL);
		err |= covey_broadcast(send, out, LARGE, COVEY_FLOAT32, 0, group, NULL, NULL);
	}
	err |= covey_group_start();
	err |= covey_recv(out, LARGE, COVEY_FLOAT32, !me, 0, group, NULL, NULL);
	err |= covey_send(in, LARGE, COVEY_FLOAT32, !me, 0, group, NULL, NULL);
	err |= covey_group_end();
	must(!err, "rank %d: an operation failed", me);
}

static int operates(void *arg, int me)
{
	struct covey_config *config = arg;
	struct covey_group *group;
	size_t large;

	config->host = config->rank && me ? "host-b" : "host-a"; /* rank: the links are tcp */
	config->rank = me;
	must(!covey_join(config, &group), "rank %d cannot join", me);
	operate(group, me);
	__atomic_store_n(&failing.armed, 1, __ATOMIC_RELEASE);
	operate(group, me);
	__atomic_store_n(&failing.armed, 0, __ATOMIC_RELEASE);
	large = failing.most;
	/* A beat of the agent, meanwhile, copies the page of metrics: 25 KB. */
	must(large < 32768, "rank %d: operations that were made before asked for %zu bytes at once", me, large);
	covey_leave(group, harness_deadline(2000));
	covey_close(group);
	return 0;
}

/* Memory that is new for each operation is faulted in for each. */
TEST_LOOP(an_operation_of_a_size_seen_before_asks_for_no_memory_of_its_size, 0, 2)
{
	struct covey_config config = harness_config("asks", 2);
	pid_t pid[2];

	config.rank = _i;
	harness_fork_all(operates, &config, pid, 2);
	for (int r = 0; r < 2; r++)
		must(!reap(pid[r], "operations"), "rank %d", r);
}

int main(void)
{
	return harness_main(SUITE(.name = "collectives/alloc",
				  .timeout_s = 500)); /* hundreds of groups; what hangs is found sooner (reap) */
}
