/* SPDX-License-Identifier: Apache-2.0 */
/* Private to device*.c: a member's knowledge of its device and of the other devices. */
#ifndef CVY_DEVICE_STATE_H
#define CVY_DEVICE_STATE_H

#include <pthread.h>

#include "device.h"
#include "gpu.h"
#include "queue_door.h"
#include "queues.h"
#include "window.h"

/*
 * How far the device has come in a view change. cvy_device_next() is the whole table of what follows what;
 * docs/design/device.md has its picture. In this order: a later phase has all that the phases before it have.
 */
enum cvy_device_phase {
	CVY_DEVICE_RUNS,    /* the gate is open, or there was no view yet */
	CVY_DEVICE_STOPS,   /* the gate is closed; some kernel has neither parked nor ended */
	CVY_DEVICE_STANDS,  /* all kernels have: the device is frozen */
	CVY_DEVICE_FETCHES, /* words of the learned view are settled; packets of removed ranks may be missing */
	CVY_DEVICE_READY,   /* nothing is missing: the view may be acknowledged */
	CVY_DEVICE_PHASES
};

/* What moves it on. */
enum cvy_device_turn {
	CVY_DEVICE_FREEZE,    /* a view change begins, or another one before it is over */
	CVY_DEVICE_STOOD,     /* every kernel has parked or ended */
	CVY_DEVICE_STOOD_NOT, /* not in time, or the device is broken: this rank gives up */
	CVY_DEVICE_LEARN,     /* a view */
	CVY_DEVICE_SETTLE,    /* all members' numbers are here: its words are settled */
	CVY_DEVICE_FETCHED,   /* no packets are awaited */
	CVY_DEVICE_THAW,      /* the view is active */
	CVY_DEVICE_TURNS
};

/* The packets that a removed rank had pushed, for the operation that others have completed and this rank has not. */
enum cvy_device_gone {
	CVY_GONE_NOT,	/* the rank was not removed, or nothing has been lacking here since */
	CVY_GONE_LEFT,	/* it was removed, and nobody is asked for its packets */
	CVY_GONE_ASKED, /* a holder is asked for them */
	CVY_GONE_WHOLE, /* all of them are kept in `packets` */
	CVY_GONE_STATES
};

enum cvy_device_gone_turn {
	CVY_GONE_REMOVE, /* a view is without this contributor */
	CVY_GONE_UNASK,	 /* another view: a holder's answer to the last one is not taken; or nobody can answer */
	CVY_GONE_ASK,	 /* a holder is asked for all that is missing */
	CVY_GONE_COME,	 /* the last packet has come */
	CVY_GONE_USED,	 /* the device stands, and this rank lacks nothing */
	CVY_GONE_TURNS
};

/* Are large operations of this process launched as kernels that can go in two levels? (device_levels.c) */
enum cvy_device_levels {
	CVY_LEVELS_OPEN, /* none was called yet, nor were there several hosts */
	CVY_LEVELS_CAN,
	CVY_LEVELS_CANNOT
};

#define CVY_DEVICE_LATE_MS 1000	      /* after that a kernel reports the rank that it waits for */
#define CVY_DEVICE_QUEUE_WAIT_MS 1000 /* a kernel waits for room; less than cvy_device_freeze() waits for kernels */

struct cvy_device_have {
	uint64_t op;	  /* operations completed */
	uint32_t fresh;	  /* has taken part in none: takes number and counts from the others */
	uint32_t spoiled; /* the operation under way cannot be done again */
	cvy_ranks mask;	  /* contributors until now */
	uint32_t eras;
	uint32_t width; /* ranks of a host, if large operations go in two levels here (device_levels.c); 0: it does not */
	uint32_t zero;
	struct cvy_gpu_era era[CVY_GPU_ERAS]; /* eras in which operations below `op` ended */
	struct cvy_gpu_admitted admitted;     /* era.epoch 0: no rank was let in since the group began */
};

#define CVY_DEVICE_ARRIVALS 8 /* most processes of one rank that may come before a late safe point is called */

/* A process that a view listed first in @epoch; counted: the safe point that let it in has been called here. */
struct cvy_device_arrival {
	uint64_t inc;
	uint32_t epoch;
	int counted;
};

/* A queue pair of an adapter to one rank (device_pair.c). */
struct cvy_device_pair {
	int way, generation; /* enum cvy_queues_way, 0: none; generation of the memory that it takes from */
	int connected, used; /* QUEUE may report that the peer is heard; kernels post */
	struct cvy_queue_pair *pair;
	struct cvy_region *local, *window;
	struct cvy_queue queue; /* the posters' */
};

/* Copies to one rank, and its copies to here (device_copy.c). */
struct cvy_device_copy {
	int here;	  /* the chunk here is for copies */
	int refused;	  /* no copies are possible between these two processes */
	int mapped, used; /* its chunk is mapped; kernels post */
	int generation;	  /* of the memory that is copied from */
	struct cvy_copies copies;
	struct cvy_copy_sender *sender;
};

/* A rank of another host, with its data paths in both directions (device_queue.c). */
struct cvy_device_far {
	int is, named; /* it is far, whatever the topology says; cookie is for the process with the chunk here */
	int tried;     /* a pair was tried for that process */
	int way;       /* enum cvy_queues_way that kernels use, 0: none; also read by calls */
	struct cvy_device_pair pair;
	struct cvy_device_copy copy;
	struct cvy_cookie cookie;
	void *in; /* the chunk here */
	struct cvy_tcp_receiver *receiver;
	int in_fd, out_fd;
	struct cvy_knock *call; /* a connection to it, under way */
	uint64_t call_inc;
	struct cvy_tcp_sender *sender; /* to the mapping in use there */
	uint64_t asked_inc, asked_ns;  /* the process that was sent a QUEUE, and the time of the first */
	uint64_t lost_inc;	       /* the process that was reported lost, and the epoch */
	uint32_t lost_epoch;
};

/* Shared by the queues to all of them; opened with the first. */
struct cvy_device_queues {
	int ranks;   /* of a host, by the topology; 0: no topology */
	int link_ms; /* longest silence of a connection to which data are sent; -1: none */
	char *interface, *adapter;
	int way[CVY_QUEUES_WAYS], wished; /* in the order of trial; they were asked for */
	unsigned lacks, opened;		  /* bits of enum cvy_queues_way */
	unsigned pairs;			  /* the most at a time */
	int copy_refused;		  /* the cause was logged */
	struct cvy_errbox *box;		  /* the cause why an adapter lacks a way */
	struct cvy_nic *nic;
	struct cvy_bells *bells;
	struct cvy_queue_memory reach;
	struct cvy_proxy *proxy;
	struct cvy_door *door;
	uint64_t *abort, *abort_seen; /* a page; the same as kernels see it */
	struct cvy_timer *timer;      /* for another look at work under way */
};

struct cvy_device_peer {
	struct cvy_device_far far;
	uint64_t inc;		   /* process for which the chunk here is */
	int in, out;		   /* generation in use */
	int left;		   /* generation with the packets of the last contributor that was removed */
	enum cvy_device_gone gone; /* what is here of them */
	int here;		   /* a chunk is here */
	int in_named, out_named;   /* kernels have had words of a view with that rank: they may look there */
	int fd, old_fd;		   /* of the chunk, and of the one before; -1: none */
	uint64_t out_inc;	   /* process whose chunk is mapped, 0: none */
	uint64_t window_inc;	   /* process whose registered memory is mapped */
	uint32_t have_epoch;
	struct cvy_device_have have;
	struct cvy_device_arrival arrival[CVY_DEVICE_ARRIVALS];
	uint64_t passed,
		passed_inc; /* operations that it has completed, as it said when it was asked, and its process */
	unsigned arrivals;  /* in all; the last is at (arrivals - 1) % CVY_DEVICE_ARRIVALS */
};

/* covey_admit without a stream: a thread waits for the device, launches the ADMIT, waits again. */
struct cvy_device_drain {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int begun, ended, aborted, err;
	struct cvy_gpu_call call;
	struct covey_result result; /* of the safe point, for the call that waits again */
};

/* This rank is to leave (device_leave.c). */
struct cvy_device_leaving {
	enum { CVY_LEAVING_NOT, CVY_LEAVING, CVY_LEAVING_RETIRED } wanted; /* this and ready: atomic */
	int ready;  /* all contributors have completed what this rank has */
	int shut;   /* the gate is closed for good */
	int behind; /* a contributor that has not come as far, -1: none; atomic */
	uint64_t since_ns, asked_ns;
};

struct cvy_device_retired {
	int rank, generation, out;
	uint64_t thaws; /* number of thaws before */
};

struct cvy_device {
	const struct cvy_gpu_ops *ops;
	const struct cvy_gpu_memory *mapped;	   /* of the opened device */
	const struct cvy_gpu_ep_ops *ep;	   /* NULL: this library has no dispatch and combine */
	const struct cvy_gpu_message_ops *message; /* NULL: it has no messages */
	int sending;				   /* a first phase was launched, and its second was not */
	void *library;
	struct cvy_gpu *gpu;
	void *window; /* registered memory of this rank, NULL: none */
	size_t window_bytes;
	int window_fd;
	struct cvy_heap heap;
	struct cvy_device_memory *memory;
	struct cvy_loop *loop;
	int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		    int fd);
	void *send_ctx;
	struct cvy_errbox *box;
	struct cvy_sink agent;
	int rank;
	uint64_t inc;
	int given_up; /* the membership was given up */
	struct cvy_device_peer peer[CVY_GPU_RANKS];
	struct cvy_device_queues queues;

	uint32_t epoch;		       /* of the words that the device has */
	cvy_ranks contributors;	       /* to the next launch, as far as is known here; read by calls */
	int ended;		       /* read by calls */
	int join_ms;		       /* also the limit for an answer to a queue's message */
	enum cvy_device_levels levels; /* these three: under the lock */
	int width, several; /* of the last settled words, as in CVY_GPU_WIDTH; their members are on several hosts */
	/* Of arrivals, contributors, levels and held events; phase is written under it, by the agent. */
	pthread_mutex_t lock;
	struct cvy_device_drain drain;
	enum cvy_device_phase phase;
	uint64_t freeze_ns,
		lags_ns; /* start of the freeze; time when kernels were found that entered behind the gate, 0: none */
	struct cvy_timer *timer;
	struct cvy_event held_frozen, held_repaired; /* the engine's, until the device is as far; kind 0: none */
	struct cvy_gpu_counters counters;	     /* as of the freeze */
	struct cvy_view *view;			     /* last learned */
	uint64_t lags; /* others had completed operations below this when words were settled, this rank had not; 0: none */
	struct cvy_device_packets *packets; /* of removed ranks, for the operation that lacks here */
	struct cvy_gpu_lane lanes[CVY_GPU_LANES];
	struct cvy_gpu_verdict verdict;
	struct cvy_gpu_roll roll;
	struct cvy_gpu_admitted admitted; /* from the others at the last change */
	uint64_t begin;			  /* first operation of this rank, set by the host */
	struct cvy_device_retired retired[4 * CVY_GPU_RANKS];
	int retirees;
	uint64_t thaws;
	struct cvy_device_leaving leaving;
	uint64_t late_told[CVY_GPU_RANKS], passed_told[CVY_GPU_RANKS];
	int late_evict; /* a rank that is masked as late is asked to leave the group */
};

/* Around all that a thread of the application calls of the device, but open and close (gpu.h). */
static inline void cvy_device_enter(const struct cvy_device *d, struct cvy_gpu_scope *had)
{
	d->ops->enter(d->gpu, had);
}

/* Returns @err. */
static inline int cvy_device_leave(const struct cvy_device *d, const struct cvy_gpu_scope *had, int err)
{
	d->ops->leave(d->gpu, had);
	return err;
}

/* The same around one call, whose error is in @err then. */
#define CVY_DEVICE_DO(d, err, call) \
	do { \
		struct cvy_gpu_scope had_; \
		cvy_device_enter(d, &had_); \
		(err) = cvy_device_leave(d, &had_, call); \
	} while (0)

/* 0, or @err with the device's reason as the last error. */
static inline int cvy_device_tells(const struct cvy_device *d, int err)
{
	return err ? cvy_fail(d->box, err, d->rank, d->epoch, "%s", d->ops->why(d->gpu)) : 0;
}

/* device_state.c: pure functions */
enum cvy_device_phase cvy_device_next(enum cvy_device_phase phase, enum cvy_device_turn turn);
enum cvy_device_gone cvy_device_gone_next(enum cvy_device_gone gone, enum cvy_device_gone_turn turn);
int cvy_device_holds_back(enum cvy_device_phase phase, int kind); /* does an event of the engine wait for the device? */

/* device_mailbox.c */
void cvy_device_forget_outrun(struct cvy_device *d, int rank);

/* device_eras.c: how operations ended that a member may lack */
void cvy_device_tell_eras(const struct cvy_device *d, struct cvy_device_have *have);
/* From @holder, which completed all below @base; from @base on the era is this view's. -1: nobody has taken part. */
void cvy_device_take_eras(struct cvy_device *d, int holder, uint64_t base, cvy_ranks mask, uint32_t fails);
uint64_t cvy_device_first_operation(const struct cvy_device *d, int holder); /* of an admitted rank without any */
cvy_ranks cvy_device_named_since(const struct cvy_device *d, uint64_t op);   /* contributors from @op on */

/* The host of a member, as a name: by the view, or by the topology that stands for it. Alike on all ranks. */
static inline uint64_t cvy_device_host_of(const struct cvy_device *d, int rank)
{
	const int ranks = d->queues.ranks;

	return ranks ? (uint64_t)(rank / ranks) : d->view->member[rank].host;
}

/* device_levels.c */
uint32_t cvy_device_own_width(struct cvy_device *d); /* of the learned view, for HAVE: other members will count on it */
/* Words are settled: that all members told; 0: they differ, or one told none. */
uint32_t cvy_device_settle_width(struct cvy_device *d);
int cvy_device_takes_levels(struct cvy_device *d); /* asked by a call that would */

int cvy_device_window_open(struct cvy_device *d, size_t bytes); /* device_memory.c */
void cvy_device_window_close(struct cvy_device *d);
/* Contributors in the device's words at the freeze; none: this rank is not yet one of them. */
static inline cvy_ranks cvy_device_contributors(const struct cvy_device *d)
{
	cvy_ranks mask = d->counters.lane[0].mask;

	return cvy_ranks_has(mask, d->rank) ? mask : cvy_ranks_none();
}

static inline cvy_ranks cvy_device_mask(const struct covey_mask *mask)
{
	return cvy_ranks_of_longs(mask->word);
}

/* @mask has no other ranks. */
static inline void cvy_device_tell_mask(struct covey_mask *mask, cvy_ranks ranks)
{
	for (int i = 0; i < CVY_RANKS_LONGS; i++)
		mask->word[i] = cvy_ranks_long(ranks, i);
}

/* The ranks whose data an operation has. */
static inline void cvy_device_tell_contributors(struct covey_mask *mask, const struct cvy_gpu_status *of)
{
	mask->word[0] = of->mask & ~of->missing;
	for (int i = 1; i < CVY_RANKS_LONGS; i++)
		mask->word[i] = of->mask_64[i - 1] & ~of->missing_64[i - 1];
}

/* Gives up this rank's membership with the formatted cause: it cannot answer for its device. Any thread. */
void cvy_device_give_up(struct cvy_device *d, int err, int rank, uint32_t epoch, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
void cvy_device_broken(struct cvy_device *d, const char *what); /* the device library failed: gives up with its text */

/* device_chunk.c */
int cvy_device_fresh_chunk(struct cvy_device *d, int rank); /* the predecessor's writes stay where they were */
void cvy_device_send_chunk(struct cvy_device *d, int rank, uint64_t inc);
void cvy_device_got_chunk(struct cvy_device *d, const struct cvy_msg *msg);
void cvy_device_begin_anew(struct cvy_device *d);     /* this process has another name */
void cvy_device_forget_retired(struct cvy_device *d); /* frozen: nobody looks at it */

int cvy_device_next_out(const struct cvy_device *d, int rank); /* the generation of the next chunk from it */
void cvy_device_attached(struct cvy_device *d, int rank, int generation, uint64_t inc); /* its chunk is mapped */
int cvy_device_same_window(struct cvy_device *d, int rank, uint64_t theirs); /* 0: they differ, which is logged */

void cvy_device_reconcile(struct cvy_device *d); /* device_change.c: something that it waits for may have come */
void cvy_device_go_on(struct cvy_device *d);	 /* each tick */
void cvy_device_tell_repaired(struct cvy_device *d);

void cvy_device_ask(struct cvy_device *d, int holder); /* device_packets.c */
void cvy_device_got_want(struct cvy_device *d, const struct cvy_msg *msg);
void cvy_device_got_slots(struct cvy_device *d, const struct cvy_msg *msg);
void cvy_device_forget_packets(struct cvy_device *d);
void cvy_device_gone_turn(struct cvy_device *d, cvy_ranks ranks, enum cvy_device_gone_turn turn);
cvy_ranks cvy_device_removed(const struct cvy_device *d); /* since the device was last frozen with nothing lacking */
int cvy_device_awaits_packets(const struct cvy_device *d);

/* device_queue.c */
int cvy_device_queues_open(struct cvy_device *d, const struct cvy_config *config);
void cvy_device_queues_close(struct cvy_device *d); /* before the device */
void cvy_device_queues_stop(struct cvy_device *d);  /* no kernel waits for a queue */
int cvy_device_is_far(const struct cvy_device *d, int rank);
int cvy_device_any_far(const struct cvy_device *d);			  /* is a member far? */
int cvy_device_far_chunk(struct cvy_device *d, int rank, int generation); /* data received before are kept */
int cvy_device_chunk_fd(struct cvy_device *d, int rank); /* of the chunk here, which keeps it; < 0: broken */
int cvy_device_send_queue(struct cvy_device *d, int rank, uint64_t inc); /* after that */
void cvy_device_got_queue(struct cvy_device *d, const struct cvy_msg *msg);
void cvy_device_queue_fence(struct cvy_device *d, int rank); /* nothing is received or sent after it */
int cvy_device_queues_idle(struct cvy_device *d);	     /* frozen: nothing is under way */
void cvy_device_queues_look(struct cvy_device *d);	     /* each tick: suspicions */

static inline uint32_t cvy_device_queue_number(int rank, int generation)
{
	return (uint32_t)rank * CVY_GPU_GENERATIONS + (uint32_t)generation;
}

/* device_leave.c */
void cvy_device_leave_look(struct cvy_device *d); /* each tick */
void cvy_device_got_passed(struct cvy_device *d, const struct cvy_msg *msg);

/* device_copy.c */
int cvy_device_copy_wanted(struct cvy_device *d, int rank); /* the next chunk for it is to be for copies */
void cvy_device_copy_refuse(struct cvy_device *d, int rank, const char *why); /* no copies with that process */
int cvy_device_copy_map(struct cvy_device *d, int rank, int fd);	      /* maps its chunk, or refuses copies */
/* Kernels post to @rank by way of the proxy from here on. */
int cvy_device_proxy_use(struct cvy_device *d, int rank, int generation, const struct cvy_proxy_link *link);
int cvy_device_copy_use(struct cvy_device *d, int rank);		 /* kernels post there from here on */
void cvy_device_copy_end(struct cvy_device *d, int rank);		 /* everything posted has landed */
const char *cvy_device_copy_wrong(const struct cvy_device *d, int rank); /* NULL: nothing */

/* device_pair.c */
/* These ways (bits) lack something, with the cause in queues.box: logged, and not tried again. */
void cvy_device_lacks(struct cvy_device *d, unsigned ways, const char *which);
int cvy_device_pair_have(struct cvy_device *d, int way); /* 1: a pair may be made that way */
void cvy_device_pairs_close(struct cvy_device *d);
void cvy_device_pair_open(struct cvy_device *d, int rank); /* far.pair.way shows whether there is one */
int cvy_device_pair_connect(struct cvy_device *d, int rank, const struct cvy_pair_name *far); /* or ends the pair */
int cvy_device_pair_use(struct cvy_device *d, int rank); /* kernels post there from here on */
void cvy_device_pair_end(struct cvy_device *d, int rank);
int cvy_device_pairs_idle(const struct cvy_device *d);
const char *cvy_device_pair_wrong(const struct cvy_device *d, int rank); /* NULL: nothing */

void cvy_device_drain_init(struct cvy_device *d); /* device_admit.c */
void cvy_device_drain_end(struct cvy_device *d);

#endif
