/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the software adapter share. Two halves: the *segment*, which all processes map that name the same
 * one in SOFTMLX5_SEGMENT (queues by number, regions by key, a heap), and what belongs to this process alone (rings,
 * completions, user memory). One lock per process: the thread that is the adapter holds it while it works, a caller
 * while the "kernel" works for it.
 */
#ifndef SOFTMLX5_STATE_H
#define SOFTMLX5_STATE_H

#include <endian.h>
#include <pthread.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include "softmlx5.h"

#define PAGE_BYTES 4096u
#define UARS 2048
#define QUEUES 8192 /* power of two: a number's low bits are its place */
#define REGIONS 8192
#define HANDLES 65536
#define PROCESSES 1024
#define HEAP_BYTES ((size_t)16 << 20)
#define NO_BELL UINT64_MAX

enum queue_state { QUEUE_FREE, QUEUE_RESET, QUEUE_INIT, QUEUE_RTR, QUEUE_RTS, QUEUE_ERROR };

/* Seen by every process. */
struct shared_queue {
	uint32_t state, qpn, process, pd;
	uint32_t far, access, atomic_mode;
	uint32_t send_psn, recv_psn;
	uint32_t silent;
};

struct region {
	uint32_t key, access, process, pd;
	uint64_t start, iova, bytes; /* start: address in its process */
};

struct process {
	pid_t pid;
	uint64_t heap; /* where it sees the heap */
};

/* Bytes that only their owner can store or read: mappings of a GPU's driver, which the system copies for nobody. */
#define ASK_BYTES 32768
enum ask_state { ASK_NONE, ASK_ASKED, ASK_DONE };
struct ask {
	uint32_t asker, state; /* process + 1, 0: nobody; enum ask_state */
	uint64_t at, bytes;
	uint32_t out, zero;
	uint8_t data[ASK_BYTES];
};

struct segment {
	uint32_t magic, qpns, lock, processes;
	uint64_t heap_used;
	struct process process[PROCESSES];
	struct shared_queue queue[QUEUES];
	struct region region[REGIONS];
	struct ask ask[PROCESSES];
	uint8_t heap[] __attribute__((aligned(4096)));
};

/* An entry that was picked up and is not done. */
struct picked {
	uint64_t hash, due;
	uint32_t syndrome;
	uint8_t blocks, opcode, signalled, executed;
	uint32_t bytes;
	uint16_t index;
};

struct queue {
	struct shared_queue *shared;
	uint8_t *ring;
	uint32_t *record;
	uint32_t depth, cq, user_index, unsignalled;
	uint32_t timeout, retries;
	uint16_t picked, done;	  /* indices of blocks */
	uint64_t entries;	  /* picked up since the beginning */
	struct picked *under_way; /* depth of them; [place of the first block] */
	uint32_t active;	  /* on the list of those with something under way */
	uint16_t record_seen;	  /* for doorbells that got lost */
	uint32_t record_looks;
};

struct completions {
	uint8_t *ring;
	uint32_t *record;
	uint32_t n, collapsed, ignore_overrun, next, live;
};

struct umem {
	uint64_t start, bytes;
};

enum handle_kind { HANDLE_NONE, HANDLE_UMEM, HANDLE_CQ, HANDLE_QUEUE, HANDLE_REGION, HANDLE_UAR, HANDLE_PD };

struct handle {
	uint32_t kind, index;
};

struct adapter {
	pthread_mutex_t lock;
	struct segment *segment;
	uint32_t process;
	int uar_fd;
	uint8_t *uars;
	uint8_t uar_used[UARS];
	uint32_t uar_top; /* no page above is used */
	struct queue queue[QUEUES];
	struct completions cq[QUEUES];
	struct umem umem[QUEUES];
	struct handle handle[HANDLES];
	uint32_t handles;
	uint32_t active[QUEUES], actives;
	uint32_t lax;
	uint64_t random;
	struct softmlx5_plan plan;
	struct softmlx5_stats stats;
	uint64_t calls;
	uint32_t callers; /* wait for the lock, which the thread would take again before they wake */
	void (*copy)(void *to, const void *from, size_t bytes);
};

extern struct adapter adapter;

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t random_below(uint64_t n)
{
	adapter.random ^= adapter.random << 13;
	adapter.random ^= adapter.random >> 7;
	adapter.random ^= adapter.random << 17;
	return n ? adapter.random % n : 0;
}

static inline uint32_t be32_at(const void *at)
{
	uint32_t v;

	memcpy(&v, at, 4);
	return be32toh(v);
}

static inline uint64_t be64_at(const void *at)
{
	uint64_t v;

	memcpy(&v, at, 8);
	return be64toh(v);
}

static inline struct queue *queue_of(uint32_t qpn)
{
	struct queue *q = &adapter.queue[qpn & (QUEUES - 1)];

	return q->shared && q->shared->qpn == qpn ? q : NULL;
}

/* Counts a fault of who posted, and says it; 1 if the check is on. */
int found(int check, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* adapter.c */
void adapter_start(void);
void adapter_error(struct queue *q); /* everything under way is flushed */
void adapter_hear(void);	     /* doorbells that were rung by now are taken */
/* execute.c: one entry of @blocks at @entry (a copy); a syndrome or 0 */
void entry_shape(const uint8_t *entry, struct picked *p);
uint32_t entry_check(const struct queue *q, const uint8_t *entry, const struct picked *p);
uint32_t entry_execute(struct queue *q, const uint8_t *entry, struct picked *p);
/* memory.c */
int segment_open(void);
uint32_t region_add(uint64_t start, uint64_t iova, uint64_t bytes, uint32_t access, uint32_t pd);
void region_remove(uint32_t index);
struct region *region_find(uint32_t key, uint64_t at, uint64_t bytes, uint32_t access, uint32_t pd);
int process_gone(uint32_t process);
int move_out(const struct region *to, uint64_t at, const void *from, size_t bytes); /* 0, or -1: its process is gone */
int move_in(const struct region *from, uint64_t at, void *to, size_t bytes);
int fetch_add(const struct region *to, uint64_t at, uint64_t add, uint64_t *old);
void answer_asks(void); /* of other processes; the thread of this one */
void *region_local(const struct region *r, uint64_t at);
/* objects.c */
struct queue *queue_add(uint32_t pd);
void queue_remove(struct queue *q);
int cq_add(const struct completions *from);
int handle_add(int kind, uint32_t index);
struct handle *handle_get(uint64_t handle, int kind);
int uar_add(void);
void uar_remove(uint32_t index);
/* firmware.c: a command; 0, or errno */
int firmware(const void *in, size_t in_bytes, void *out, size_t out_bytes, int *kind, uint32_t *index);
/* uverbs.c */
int uverbs_ioctl(void *header);

#endif
