/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the plans of the program of NCCL: this rank, ids that go in files, elements, and right outputs. */
#ifndef TESTS_NCCL_API_H
#define TESTS_NCCL_API_H

#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_calls.h"
#include "pure.h"

#define RANKS 8
#define EDGE 64 /* bytes before and behind an output */
#define PAD 0x5a
#define MOST 5000   /* elements */
#define ID_MS 30000 /* less than the end of a communicator waits for others */

extern int rank, size, own_device;
extern ncclComm_t comm;
extern cudaStream_t stream;
extern uint8_t *host, *in, *out; /* the latter two on the device */
extern size_t room;		 /* bytes of each */

enum { NOBODY = -1, LAST = RANKS };

extern struct plan {
	const char *name;
	void (*run)(void);
	int joins;     /* comm is there */
	int dead, how; /* the rank that dies; one of two ways of the plan */
} plan;

#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__, #call, \
				cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)

/* A call must return @want. */
int gives(int got, int want, const char *call, int line);

#define GIVES(want, call) gives((int)(call), (int)(want), #call, __LINE__)
#define OK(call) \
	do { \
		if (!GIVES(ncclSuccess, call)) \
			exit(1); \
	} while (0)

uint64_t now_us(void);
void nap(void);

void id_tell(const char *name, const void *bytes, size_t n);
int id_hear(const char *name, void *bytes, size_t n);
ncclUniqueId id_of(const char *name, int root);
/* Waits until all of @ranks are here; their files may be of dead processes. */
void meet(const char *name, unsigned ranks);

struct shape { /* of an operation, as this rank sees it */
	int type, op, n, me, root;
	size_t count;
};

/* Element @i of an output. */
typedef int64_t value(const struct shape *s, size_t i);
value folded, own_block, of_root, gathered, exchanged, scattered;

int64_t input(int from, size_t i, int n);
void put(int type, void *at, int64_t v);	   /* @v: an integer of few bits */
void fill_in(const struct shape *s, size_t count); /* and nothing is in @out */
void clear_out(void);
uint8_t *to(void);
/* Has out @n elements, as @v gives them? With 0 nothing was written. */
void compare(const char *what, const struct shape *s, size_t n, value *v);

/* @call gives this, at once. */
#define GETS(s, n, value, call) \
	do { \
		clear_out(); \
		OK(call); \
		compare(#call, s, n, value); \
	} while (0)

/* A sum over @c of @n ranks, of which this is @me. */
void sum_of(ncclComm_t c, int n, int me, const char *what);

void plan_calls(void), plan_life(void), plan_one(void);
void plan_killed(void), plan_waited(void), plan_idle(void), plan_refused(void), plan_split(void);
void plan_adopt(void), plan_sleep(void), plan_storeless(void), plan_unanswered(void);
void plan_order(void), plan_untouched(void);

#endif
