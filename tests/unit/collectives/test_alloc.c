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
#include "harness.h"

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
#define LIVE 16384  /* allocations at one time that are told apart */
#define UNHIT 2	    /* runs in a row without a failure: nothing is left */
#ifdef __SANITIZE_ADDRESS__
#define SAMPLED 20 /* every run takes seconds there */
#define STRIDE 23
#else
#define SAMPLED 400 /* calls are failed one by one up to here, then every STRIDE-th */
#define STRIDE 7
#endif
#define JOIN_MS 3000

/* ---- the calls that fail ---- */

static struct {
	int armed; /* 1: calls count */
	long calls, fails_at;
	long *hit; /* shared: the call failed */
	char *what;
	pthread_mutex_t lock;
	void *live[LIVE];
	long count;
} w = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int fails(const char *what)
{
	if (!__atomic_load_n(&w.armed, __ATOMIC_ACQUIRE) ||
	    __atomic_add_fetch(&w.calls, 1, __ATOMIC_RELAXED) != w.fails_at)
		return 0;
	snprintf(w.what, 32, "%s", what);
	__atomic_store_n(w.hit, 1, __ATOMIC_RELEASE);
	return 1;
}

static size_t slot_of(const void *p)
{
	return ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 50;
}

static void *born(void *p)
{
	pthread_mutex_lock(&w.lock);
	for (size_t i = slot_of(p), n = 0; p && n < LIVE; i++, n++)
		if (!w.live[i % LIVE]) {
			w.live[i % LIVE] = p;
			w.count++;
			break;
		}
	pthread_mutex_unlock(&w.lock);
	return p;
}

/* Only what the library allocated itself counts: other libraries may hand over memory of theirs. */
static void died(const void *p)
{
	pthread_mutex_lock(&w.lock);
	for (size_t i = 0; p && i < LIVE; i++) /* a hole may stand before it: all are looked at */
		if (w.live[(slot_of(p) + i) % LIVE] == p) {
			w.live[(slot_of(p) + i) % LIVE] = NULL;
			w.count--;
			break;
		}
	pthread_mutex_unlock(&w.lock);
}

#define WRAP(type, name, params, args, failure, error) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		if (fails(#name)) { \
			errno = error; \
			return failure; \
		} \
		return __real_##name args; \
	}

#define WRAP_MEMORY(name, params, args) \
	void *__real_##name params; \
	void *__wrap_##name params; \
	void *__wrap_##name params \
	{ \
		if (fails(#name)) { \
			errno = ENOMEM; \
			return NULL; \
		} \
		return born(__real_##name args); \
	}

WRAP_MEMORY(malloc, (size_t n), (n))
WRAP_MEMORY(calloc, (size_t n, size_t each), (n, each))
WRAP_MEMORY(aligned_alloc, (size_t align, size_t n), (align, n))
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t from), (at, n, prot, flags, fd, from),
     MAP_FAILED, ENOMEM)
WRAP(int, memfd_create, (const char *name, unsigned int flags), (name, flags), -1, EMFILE)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE)
WRAP(int, epoll_create1, (int flags), (flags), -1, EMFILE)
WRAP(int, eventfd, (unsigned int start, int flags), (start, flags), -1, EMFILE)
WRAP(int, posix_fallocate, (int fd, off_t from, off_t n), (fd, from, n), ENOSPC, ENOSPC)
WRAP(int, pthread_create, (pthread_t * to, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
     (to, attr, fn, arg), EAGAIN, EAGAIN)

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
	return fails("strdup") ? NULL : born(__real_strdup(text));
}

void *__real_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n)
{
	void *p;

	if (fails("realloc"))
		return NULL;
	died(old); /* before: its address may be given to another thread at once */
	p = __real_realloc(old, n);
	return born(p);
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
	died(p);
	__real_free(p);
}

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
	return (struct has){ w.count, descriptors(), mappings() };
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
	must(now.memory <= before->memory, "%s number %ld failed: %ld allocations are left", w.what, w.fails_at,
	     now.memory - before->memory);
	must(now.descriptors <= before->descriptors, "%s number %ld failed: %d descriptors are left", w.what,
	     w.fails_at, now.descriptors - before->descriptors);
}

/* ---- a rank's life, in which one call fails ---- */

enum moment { JOIN, EP, MESSAGES, ALLREDUCE, RECOVER, MOMENTS };

static const char *const moments[] = { "join", "ep", "messages", "allreduce", "recover" };

struct shared {
	uint64_t at[RANKS]; /* operations done */
	long hit;
	char what[32];
	pid_t victim; /* RECOVER: killed when rank 0 is armed */
};

struct job {
	struct covey_config config;
	struct shared *shared;
	int moment;
	long n;
};

static void arm(const struct job *job, int rank, int moment, int on)
{
	if (rank == 0 && moment == job->moment)
		__atomic_store_n(&w.armed, on, __ATOMIC_RELEASE);
}

/* An error has a number and a sentence. */
static void explained(const struct job *job, const struct covey_group *group, int err)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	must(err < 0 && strcmp(covey_strerror(err), "unknown error"), "%s number %ld failed: error %d", w.what, job->n,
	     err);
	must(info.cause[0], "%s number %ld failed: %s, without a cause", w.what, job->n, covey_strerror(err));
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
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	static uint16_t x[4][64], packed[4][3 * 4][64];
	static int32_t experts[4][2] = { { 0, 3 }, { 1, 2 }, { 2, 3 }, { 0, 1 } }, count[4], info[4][3 * 4];
	static int64_t range[4][3];
	struct covey_ep *ep = NULL;
	int err;

	config.max_tokens = 4;
	config.hidden = 64;
	config.top_k = 2;
	config.experts = 4;
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
	arm(job, me, RECOVER, 1);
	if (job->moment == RECOVER && me == RANKS - 1) {
		__atomic_store_n(&job->shared->victim, getpid(), __ATOMIC_RELEASE);
		for (;;)
			pause();
	}
	if (job->moment == RECOVER && me == 0 && !err) {
		while (!__atomic_load_n(&job->shared->victim, __ATOMIC_ACQUIRE))
			usleep(1000);
		kill(job->shared->victim, SIGKILL);
	}
	for (int i = 0; !err && i < 5; i++) /* from here on some may be missing */
		err = allreduce(job, group, me, seq + 3 + (uint64_t)i);
	arm(job, me, RECOVER, 0);
	return err;
}

static void life(struct job *job, int me)
{
	struct covey_config config = job->config;
	struct covey_group *group = NULL;
	int err;

	config.rank = me;
	arm(job, me, JOIN, 1);
	err = covey_join(&config, &group);
	arm(job, me, JOIN, 0);
	if (err) {
		must(me == 0 && job->moment == JOIN, "rank %d cannot join: %s", me, covey_strerror(err));
		explained(job, NULL, err);
		return;
	}
	err = part(job, group, me);
	must(!err || me == 0, "rank %d is harmed: %s", me, covey_strerror(err));
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
	must(!__lsan_do_recoverable_leak_check(), "%s number %ld failed: a leak", w.what, w.fails_at);
#endif
}

static int rank_main(void *arg, int me)
{
	struct job *job = arg;
	struct has before;

	covey_log_set(NULL, NULL, COVEY_LOG_ERROR);
	w.fails_at = job->n;
	w.hit = &job->shared->hit;
	w.what = job->shared->what;
	before = look();
	life(job, me);
	same(&before);
	if (me == 0)
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
	int ranks = moment == JOIN ? 1 : moment == RECOVER ? RANKS : 2, status;
	struct job job = { .config = harness_config("alloc", ranks), .moment = moment, .n = n };
	pid_t pid[RANKS];
	char doing[64];
	int hit;

	job.shared = harness_shared(sizeof(*job.shared));
	job.config.join_ms = JOIN_MS;
	job.config.max_ranks = 4;
	job.config.window_bytes = 32u << 20;
	for (int r = 0; r < ranks; r++)
		pid[r] = harness_fork(rank_main, &job, r);
	for (int r = 0; r < ranks; r++) {
		snprintf(doing, sizeof(doing), "COVEY_TEST_ALLOC=%d:%ld", moment, n); /* said if it hangs */
		status = reap(pid[r], doing);
		if (moment == RECOVER && r == RANKS - 1) /* by rank 0 */
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
	for (long n = 1, unhit = 0; unhit < UNHIT; n += n < SAMPLED ? 1 : STRIDE, runs++) {
		unhit = run(moment, n) ? 0 : unhit + 1;
		if (!unhit)
			last = n;
	}
	printf("%s: %ld runs, the last call that failed was number %ld%s\n", moments[moment], runs, last,
	       last > SAMPLED ? " (sampled)" : "");
	fflush(stdout);
	must(last, "%s: nothing was made to fail", moments[moment]);
}

START_TEST(every_allocation_fails_once)
{
	run_all(_i);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collectives/alloc");
	TCase *tcase = tcase_create("alloc");

	tcase_add_loop_test(tcase, every_allocation_fails_once, 0, MOMENTS);
	suite_add_tcase(suite, tcase);
	return harness_main(suite);
}
