/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the device that is none share: fake.c its table, kernel.c what runs on it, tool.c tool.h's table. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <time.h>

#include "covey.h"
#include "gpu.h"
#include "tool.h"

#define EXPORT __attribute__((visibility("default")))
#define ARENA ((size_t)64 << 20)
#define PLACES (CVY_GPU_RANKS * CVY_GPU_GENERATIONS)

struct launch { /* an operation, a time that is asked for, a wait */
	struct launch *next;
	union {
		struct cvy_gpu_call call;
		struct cvy_gpu_uneven uneven; /* alltoallv, allgatherv */
	};
	struct timespec *mark;
	int stall_ms;
};

struct cvy_gpu_graph {
	struct launch *first, **last;
};

struct cvy_gpu {
	struct cvy_gpu_control control;
	struct cvy_gpu_mailbox mailbox;
	uint8_t *in[PLACES], *out[PLACES];
	int in_fd[PLACES]; /* plus 1; 0: none */
	uint8_t *saved, *window;
	size_t window_bytes;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct launch *first, **last;
	int busy, closing, ipc;
};

EXPORT void *fake_alloc(size_t bytes);
EXPORT void fake_wait(void);
EXPORT int cvy_test_devices(void);
EXPORT void cvy_test_poison(struct CUstream_st *stream);
EXPORT int cvy_test_stall(struct CUstream_st *stream, int ms);

extern struct cvy_gpu *fake_gpu;
extern struct cvy_gpu_graph *fake_graph; /* that is captured */
extern int fake_poisoned;		 /* as a process whose kernel has failed: nothing works any more */

void *fake_main(void *arg); /* kernel.c: the stream */
size_t fake_room(void);
void fake_queue(struct cvy_gpu *g, struct launch *l);
int fake_synchronise(struct cvy_gpu *g);

#endif
