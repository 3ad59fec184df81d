/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a group on devices, under ep-run: joined, with a stream, and with `--kill RANK@STEP` struck at that step. Steps are
 * safe points; all go on until `--steps` whole ones have passed since. What a step does is the test's.
 */
#ifndef DRIVER_CUH
#define DRIVER_CUH

#include <covey_device.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"

static struct covey_group *group;
static int rank, size, replacement, failures, kill_rank = -1;
static long kill_step = -1, steps;
static struct {
	long step, whole, extended, again; /* what joiners get: all end at the same step */
} state;
static cudaStream_t stream;
static cudaGraphExec_t graph; /* captured once */
static uint64_t checks;

#define STREAM ((struct CUstream_st *)stream)
#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__, #call, \
				cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)

static void must(int err, const char *what)
{
	struct covey_error_info info;

	if (!err)
		return;
	covey_last_error(group, &info);
	fprintf(stderr, "rank %d, step %ld: %s: %s: %s\n", rank, state.step, what, covey_strerror(err), info.cause);
	exit(1);
}

/* Is it for this process to die in this step? */
static inline int doomed(void)
{
	return rank == kill_rank && state.step == kill_step && !replacement;
}

static void *die(void *range)
{
	const unsigned *us = (const unsigned *)range; /* the least, and how many more at most */
	unsigned seed = (unsigned)getpid();

	usleep(us[0] + (unsigned)rand_r(&seed) % us[1]);
	raise(SIGKILL);
	return NULL;
}

/* Dies so many microseconds from now. */
static void die_soon(const unsigned range[2])
{
	pthread_t thread;

	pthread_create(&thread, NULL, die, (void *)range);
}

/* Those that all tests have, and the test's own. */
static void options(int argc, char **argv, const struct number *own)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--kill"))
			sscanf(argv[i + 1], "%d@%ld", &kill_rank, &kill_step);
		else if (!strcmp(argv[i], "--steps"))
			steps = atol(argv[i + 1]);
	}
	options_read(argc, argv, own);
}

/* The device of this process, current and named for the join. */
static int choose_device(void)
{
	const char *local = getenv("LOCAL_RANK"), *create = getenv("COVEY_CREATE");
	int count = 0, number;
	char device[16];

	if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
		printf("skipped: no device\n");
		exit(77);
	}
	number = (local ? atoi(local) : 0) % count;
	snprintf(device, sizeof(device), "%d", number);
	setenv("COVEY_DEVICE", device, 1);
	replacement = create && create[0] == 'n';
	CUDA(cudaSetDevice(number));
	return number;
}

static void joined(void)
{
	struct covey_view view;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	must(covey_view(group, &view), "view");
	rank = view.rank;
}

static inline void start(void)
{
	choose_device();
	must(covey_join(NULL, &group), "join");
	joined();
}

static long world(void)
{
	const char *world = getenv("WORLD_SIZE");

	return world ? atol(world) : 1;
}

/* A step of @wanted ranks is over. 0: that was the last. */
static int another(const struct covey_result *result, long wanted)
{
	state.whole += covey_mask_count(&result->mask) == wanted && (kill_rank < 0 || result->epoch > 1);
	return !failures && state.whole < steps;
}

/* One more process than ep-run knows of comes in, and as many steps follow. */
static inline void extend(char **argv, int lowest)
{
	extern char **environ;
	char number[16];
	pid_t pid;

	state.extended = 1;
	state.whole = 0;
	if (rank != lowest)
		return;
	snprintf(number, sizeof(number), "%ld", world());
	setenv("COVEY_RANK", number, 1);
	setenv("RANK", number, 1);
	setenv("COVEY_CREATE", "never", 1);
	setenv("LOCAL_RANK", number, 1);
	if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
		exit(1);
}

static inline int finish(void)
{
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}

#endif
