/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of whole groups share: a private redis-server, ranks as threads or as processes, and
 * known inputs with their sums. A test binary ends with HARNESS_MAIN(); a test names its group
 * once, and every rank joins with the same configuration but its rank.
 */
#ifndef TESTS_COLLECTIVES_HARNESS_H
#define TESTS_COLLECTIVES_HARNESS_H

#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "../../suite.h"
#include "covey.h"

#define WATCHDOG_MS 50000 /* of any one wait of a test: past it something hangs */

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

/* A check that costs nothing while it holds, good in any thread and in forked ranks. */
#define must(cond, ...) \
	do { \
		if (!(cond)) \
			harness_fail(__FILE__, __LINE__, #cond, __VA_ARGS__); \
	} while (0)

void harness_fail(const char *file, int line, const char *cond, const char *format, ...)
	__attribute__((noreturn, format(printf, 4, 5)));

/* @CALL was refused with @WANT, and the cause has @CAUSE. @GROUP: NULL for a call that has none. */
#define must_refuse(GROUP, CALL, WANT, CAUSE) harness_refused(__FILE__, __LINE__, #CALL, GROUP, CALL, WANT, CAUSE)
#define must_be_invalid(GROUP, CALL, CAUSE) must_refuse(GROUP, CALL, COVEY_ERR_INVAL, CAUSE)

void harness_refused(const char *file, int line, const char *call, struct covey_group *group, int err, int want,
		     const char *cause);

/*
 * A join by @CONFIG ends with @WANT, and the cause has @CAUSE. On a busy machine its time may end before it comes so
 * far: then it is tried again with more.
 */
#define must_not_join(CONFIG, WANT, CAUSE) harness_join_in_vain(__FILE__, __LINE__, CONFIG, WANT, CAUSE)

void harness_join_in_vain(const char *file, int line, const struct covey_config *config, int want, const char *cause);

/* Starts the server, runs the suite, stops the server. 77 where there is no server. */
int harness_main(Suite *suite);
#define HARNESS_MAIN(...) \
	int main(void) \
	{ \
		return harness_main(SUITE(__VA_ARGS__)); \
	}

const char *harness_store(void); /* URL */
void harness_store_signal(int number);
/* Keys of the store that contain @part, number of them; the names into @text. */
int harness_keys(const char *part, char *text, size_t bytes);

/* Store, a group of its own for this test (@name), no waits of a minute. Tests change what they are about. */
struct covey_config harness_config(const char *name, int world);
/* The same over shared memory, or over TCP. */
struct covey_config harness_config_over(int tcp, const char *name, int world);

uint64_t harness_now_ns(void);
uint64_t harness_deadline(int ms);
uint64_t harness_random(uint64_t *state);
uint64_t harness_seed(void); /* COVEY_TEST_SEED, else the time; printed */

/* ---- ranks as threads of this process ---- */

struct member {
	struct covey_group *group;
	struct covey_config config;
	int rank, n;
	void *arg;
	int no_leave; /* the rank closes without covey_leave() */
	pthread_barrier_t *met;
};

typedef void (*member_fn)(struct member *member);

/* @config.world ranks, each joins, runs @fn, leaves and closes. */
void harness_threads(const struct covey_config *config, member_fn fn, void *arg);
/* The same with rank r on made-up host r % @hosts; < 0: on as many, each of neighbouring ranks; 0: all on this one. */
void harness_threads_on(const struct covey_config *config, member_fn fn, void *arg, int hosts);
/* Until all ranks of the test are here. ThreadSanitizer does not see that covey's barrier orders them. */
void harness_meet(struct member *member);

/* A test whose body each of @WORLD ranks runs: it is the rank @m. m->arg: a uint64_t for all of them, 0 at first. */
#define TEST_RANKS(NAME, WORLD) \
	static void NAME##_of(struct member *m); \
	TEST(NAME) \
	{ \
		struct covey_config config = harness_config("ranks", WORLD); \
		uint64_t word = 0; \
\
		harness_threads(&config, NAME##_of, &word); \
	} \
	static void NAME##_of(struct member *m)

/* The same over shared memory, then over TCP. */
#define TEST_RANKS_OVER_BOTH(NAME, WORLD) \
	static void NAME##_of(struct member *m); \
	TEST_LOOP(NAME, 0, 2) \
	{ \
		struct covey_config config = harness_config_over(_i, "ranks", WORLD); \
		uint64_t word = 0; \
\
		harness_threads(&config, NAME##_of, &word); \
	} \
	static void NAME##_of(struct member *m)

/* Joins or fails the test; the cause is shown. */
struct covey_group *harness_join(const struct covey_config *config, int rank);

/* ---- ranks as processes ---- */

void *harness_shared(size_t bytes); /* zeroed, seen by all forked ranks */
/* A child that dies with this process; @fn's return is its exit status. */
pid_t harness_fork(int (*fn)(void *arg, int rank), void *arg, int rank);
/* The ranks 0 to @n - 1. Then all end well, but @victim, by SIGKILL; -1: there is none. */
void harness_fork_all(int (*fn)(void *arg, int rank), void *arg, pid_t *pid, int n);
void harness_reap_all(const pid_t *pid, int n, int victim);
/* Status of waitpid(), within the watchdog. */
int harness_reap(pid_t pid);
/* The same of a process with much to do: the watchdog begins anew whenever one of the @n counters has moved. */
int harness_reap_busy(pid_t pid, const uint64_t *counters, int n);
/* Until *@word >= @least, within the watchdog. */
void harness_until(const uint64_t *word, uint64_t least, const char *what);

/* What a test may leave behind: entries of @path whose name has @part, unix sockets whose name has it. */
int harness_entries(const char *path, const char *part);
int harness_sockets(const char *part);

/* ---- inputs and what must come out ---- */

size_t type_bytes(int dtype);
/* element @i of rank @rank's input number @seed */
void type_input(void *to, size_t count, int dtype, int rank, uint64_t seed);
/* left fold over the contributors in @mask (the low 64 ranks), ascending */
void type_fold(void *to, size_t count, int dtype, int redop, uint64_t mask, uint64_t seed);
uint64_t checksum(const void *data, size_t bytes);

#endif
