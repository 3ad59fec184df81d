/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey - elastic, fault-tolerant collective communication
 *
 * The whole public interface. Processes join a *group*, and each takes a *rank*. All ranks call the same operations in
 * the same order; `seq` is the number of an operation. When a rank dies, also in the middle of an operation, the
 * survivors agree on the next *view*: a set of ranks with an `epoch`. Every survivor then ends the operation with the
 * same outcome. Dead ranks are replaced, and the group grows, at safe points: covey_admit().
 *
 *   NCCL                             here
 *   communicator, ncclCommInitRank   struct covey_group, covey_join()
 *   collectives                      the same arguments; `group` for the communicator, then `stream` and `result`
 *   ncclGroupStart, ncclGroupEnd     covey_group_start(), covey_group_end()
 *   ncclMemAlloc, ncclCommRegister   covey_device_mem_alloc(), covey_mem_alloc()
 *   ncclCommShrink, ncclCommGrow     by itself; covey_admit()
 *
 *   DeepEP                           here
 *   Buffer                           struct covey_ep
 *   low-latency mode, normal mode    COVEY_EP_LL, COVEY_EP_COMPACT: presets of covey_dispatch() and covey_combine()
 *   handle of a dispatch             `route` on a device; `count`, `src_info` and `range` on host memory
 *   hook, mask buffer                covey_dispatch_recv() and covey_combine_recv(); `active_ranks`
 *
 * Functions return 0 or a negative COVEY_ERR_* code. They write outputs only on success, unless they say otherwise.
 * Argument structs begin with `size`, which their *_INIT initialiser sets.
 *
 *   quantity            unit
 *   counts and sizes    elements where a datatype is given, else bytes
 *   *_ms                milliseconds
 *   deadline_ns         nanoseconds on CLOCK_MONOTONIC, absolute; 0 (default): no deadline
 *
 * The stream of a call says where its buffers are. Device memory is memory of the device with which the group was
 * joined; pinned and managed memory count as host memory.
 *
 *   argument                                            memory
 *   handles, structs, strings, `result`, `state`        host
 *   arrays of ranks, counts, displacements, owners      host
 *   buffers of a collective, a message, a dispatch or   `stream` NULL: all host; else all device. The other kind of
 *   a combine                                           memory is INVAL; buffers that the call does not use may be NULL
 *   `route`, covey_device_outcome_at()                  device
 *
 * Calls on one group, by threads:
 *
 *   collectives, covey_admit*, covey_ep_*,             one thread at a time per group issues a call, since the call
 *   dispatch, combine                                  takes its number then; others may still wait in theirs
 *   covey_send*, covey_recv*                           any thread at any time; on device memory as collectives
 *   covey_work_*                                       any thread, one at a time per work
 *   covey_view, events, covey_last_error, covey_abort, any thread at any time
 *   recover, extend, retire, evict
 *   covey_leave, covey_close                           one thread, after all other calls have returned; covey_abort()
 *                                                      makes waiting calls return
 *
 * A call leaves the calling thread's current CUDA device, its capture mode, errno and signal mask as they were. Graphs that
 * other threads capture, in whatever mode, stay valid. Two calls wait for the device, by which CUDA
 * invalidates all open captures: covey_close() of a group with a device, and a covey_admit() that lets a rank in there.
 *
 * Groups are independent of each other. In a child made by fork() all calls on a handle return COVEY_ERR_FORKED, and
 * covey_close() only frees memory. docs/process.md says what the library takes from a process: threads, signals,
 * descriptors, limits, cores. dlclose() leaves the library mapped.
 */
#ifndef COVEY_H
#define COVEY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
/* A call and the struct that it fills have one name, as covey_view: in C++ the function hides the constructor. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" {
#endif

#define COVEY_VERSION_MAJOR 0
#define COVEY_VERSION_MINOR 2
#define COVEY_VERSION_PATCH 0

#if defined(__GNUC__)
#define COVEY_API __attribute__((visibility("default")))
#else
#define COVEY_API
#endif

/* A stream of the CUDA runtime (cudaStream_t). NULL: the buffers of the call are host memory. */
struct CUstream_st;
#define COVEY_STREAM_DEFAULT ((struct CUstream_st *)1)	  /* cudaStreamLegacy: what CUDA means by stream 0 */
#define COVEY_STREAM_PER_THREAD ((struct CUstream_st *)2) /* cudaStreamPerThread */

struct covey_group; /* a member of a group, or a process that is joining one */
struct covey_work;  /* an operation or a request under way */
struct covey_ep;    /* buffers and layout of one pair of dispatch and combine */

/* ---- Version ------------------------------------------------------------------------------ */

/** covey_version - returns the version of the library, static, as "0.2.0"; that of this header is above */
COVEY_API const char *covey_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

/*
 * X(name, code, text). The range of a code says what is lost. Numbers are never reused.
 *
 *   -1..-19    this call
 *   -20..-39   one peer
 *   -40..-59   this group handle
 *   -60..-79   this process
 */
#define COVEY_ERROR_LIST(X) \
	X(INVAL, -1, "invalid argument") \
	X(NOMEM, -2, "out of memory") \
	X(TIMEOUT, -3, "the deadline passed") \
	X(AGAIN, -4, "not finished yet") \
	X(STALE, -5, "laid out for another size of the group") \
	X(MISMATCH, -6, "ranks called different operations at one sequence number") \
	X(LOST, -7, "the inputs were overwritten before the outcome was decided") \
	X(REFUSED, -8, "the request cannot be granted") \
	X(UNSUPPORTED, -9, "not available in this build or on this machine") \
	X(IO, -10, "an operating system call failed") \
	X(TRUNCATED, -11, "the message was longer than the buffer") \
	X(PEER, -20, "a rank of the acknowledged set is missing") \
	X(ROOT, -21, "the root is dead") \
	X(FENCED, -40, "this process was left out of the group's view") \
	X(CLOSED, -41, "the group is closed") \
	X(ABORTED, -42, "the handle was aborted") \
	X(STORE, -43, "the store cannot be used") \
	X(BUSY, -44, "the rank, or the name of the group, is in use") \
	X(FULL, -45, "no free rank") \
	X(VERSION, -46, "protocol or schema versions differ") \
	X(AUTH, -47, "a proof of membership or a password was refused") \
	X(NOQUORUM, -48, "too few members can agree on a view") \
	X(FORKED, -60, "the handle belongs to the parent of this process")

enum covey_error {
	COVEY_OK = 0,
#define COVEY_ERROR_ENUM(name, code, text) COVEY_ERR_##name = (code),
	COVEY_ERROR_LIST(COVEY_ERROR_ENUM)
#undef COVEY_ERROR_ENUM
};

/** covey_strerror - returns one line of English for an error code: static, never NULL */
COVEY_API const char *covey_strerror(int err);

/** struct covey_error_info - the last error of a group */
struct covey_error_info {
	int err;	 /* COVEY_ERR_*; 0: none */
	int rank;	 /* the rank concerned; -1: none */
	uint32_t epoch;	 /* the epoch that this rank knew then */
	uint64_t seq;	 /* the operation concerned; 0: none */
	char cause[240]; /* one line: the cause that was seen */
};

/** covey_last_error - copies the last error of @group; of a NULL group: the last failed join of this thread */
COVEY_API int covey_last_error(const struct covey_group *group, struct covey_error_info *info);

/* ---- Log ---------------------------------------------------------------------------------- */

enum covey_log_level { COVEY_LOG_ERROR = 1, COVEY_LOG_WARN, COVEY_LOG_INFO, COVEY_LOG_DEBUG };

/* @level is of enum covey_log_level. */
typedef void (*covey_log_fn)(void *ctx, int level, const char *line);

/**
 * covey_log_set - sets the receiver of log lines and their highest level
 * @fn:    receives whole lines without newline, from any thread; NULL (default): standard error
 * @ctx:   given to @fn
 * @level: enum covey_log_level; lines above it are dropped; 0 (default): as COVEY_LOG says, else warn
 */
COVEY_API void covey_log_set(covey_log_fn fn, void *ctx, int level);

/* ---- Sets of ranks ------------------------------------------------------------------------ */

#define COVEY_MAX_RANKS 4096

struct covey_mask {
	uint64_t word[COVEY_MAX_RANKS / 64]; /* rank r: bit r % 64 of word r / 64 */
};

static inline int covey_mask_has(const struct covey_mask *mask, int rank)
{
	return (int)(mask->word[rank >> 6] >> (rank & 63)) & 1;
}

static inline int covey_mask_count(const struct covey_mask *mask)
{
	int n = 0;

	for (int i = 0; i < COVEY_MAX_RANKS / 64; i++)
		for (uint64_t w = mask->word[i]; w; w &= w - 1)
			n++;
	return n;
}

/* ---- Life --------------------------------------------------------------------------------- */

/* Data paths between members. */
enum covey_transport {
	COVEY_TRANSPORT_AUTO, /* default: shm on one host, tcp between hosts */
	COVEY_TRANSPORT_SHM,
	COVEY_TRANSPORT_TCP,	  /* also on one host */
	COVEY_TRANSPORT_VERBS,	  /* shm on one host, RDMA between hosts; without RDMA an error */
	COVEY_TRANSPORT_VERBS_TCP /* the same, but tcp where there is no RDMA */
};
/* Joiners come in at the next safe point. AUTO (default): all; MANUAL: those that a member asked for. */
enum covey_admission { COVEY_ADMISSION_AUTO, COVEY_ADMISSION_MANUAL };
/* How peers map memory of a device. */
enum covey_device_memory {
	COVEY_DEVICE_MEMORY_AUTO, /* default: VMM if the device has it, else IPC */
	COVEY_DEVICE_MEMORY_VMM,  /* cuMemCreate, exported as descriptors; without VMM an error */
	COVEY_DEVICE_MEMORY_IPC	  /* CUDA IPC: only for ranks of one host and of different processes */
};
/* An operation lacks a rank of the last safe point. CONTINUE (default): it has fewer contributors; FAIL: it is PEER. */
enum covey_on_loss { COVEY_ON_LOSS_CONTINUE, COVEY_ON_LOSS_FAIL };
/* A rank was masked as late. WAIT (default): it stays a member; EVICT: the others ask for its removal. */
enum covey_late { COVEY_LATE_WAIT, COVEY_LATE_EVICT };
/* FIRST (default) forms a group. NEVER is for replacements and joiners. */
enum covey_create { COVEY_CREATE_FIRST, COVEY_CREATE_NEVER };

#define COVEY_RANK_ANY (-1)

#ifdef __cplusplus
/* The initialisers below in C++, which has designated ones only since C++20: all zero, then size, then @set. */
#define COVEY_INIT_(type, set) \
	([] { \
		struct type covey_init_ = {}; \
		covey_init_.size = sizeof(covey_init_); \
		set; \
		return covey_init_; \
	}())
#endif

/**
 * struct covey_config - how to join
 * A field at its default (0, NULL, COVEY_RANK_ANY) is taken from the environment: COVEY_*, then RANK and WORLD_SIZE or
 * those of another launcher. If these are not set either, the value named below holds. Strings are copied.
 */
struct covey_config {
	size_t size;
	const char *store;	    /* redis://[user:password@]host[:port][/db], redis+unix:///path[?db=N],
			    * rediss:// with TLS, then also ?ca=FILE&cert=FILE&key=FILE,
			    * redis+sentinel://[user:password@]host[:port][,host[:port]...]/MASTER[/db];
			    * parameters of the fields below may follow as ?group=..&world=.. */
	const char *group;	    /* name; NULL: "covey" */
	int rank;		    /* 0..max_ranks-1; COVEY_RANK_ANY (default): any */
	int world;		    /* processes that form the group; 0: the environment says */
	int max_ranks;		    /* fixed by the creator; 0: 64 */
	int create;		    /* enum covey_create; 0: COVEY_CREATE_FIRST */
	int admission;		    /* enum covey_admission, set by the creator; 0: COVEY_ADMISSION_AUTO */
	int transport;		    /* enum covey_transport; 0: COVEY_TRANSPORT_AUTO */
	const char *host;	    /* overrides the identity of this host */
	const char *interface;	    /* peers on other hosts dial it: eth0, eth, =eth0, 10.0.0.0/8, ^docker,lo */
	const char *secret_file;    /* file with the group secret; NULL: the store holds it */
	int join_ms;		    /* 0: 60000 */
	int heartbeat_ms;	    /* 0: 10; beat on one host while idle */
	int hang_ms;		    /* 0: 100; silence on one host; -1: never */
	int link_ms;		    /* 0: 1000; silence between hosts; -1: never */
	int lease_ms;		    /* 0: 5000; silence in the store, alike on all ranks; -1: never */
	size_t slot_bytes;	    /* 0: 128 KiB; the same on all ranks */
	size_t window_bytes;	    /* 0: 4 GiB of addresses, touched as used; the same on all ranks */
	size_t undo_bytes;	    /* 0: 64 MiB; in-place inputs of up to this are kept until decided */
	int tcp_connections;	    /* 0: 1, at most 8; connections of a link between hosts, for large messages */
	const char *metrics;	    /* address that serves metrics: unix:PATH or tcp:[HOST:]PORT; NULL: none */
	const char *flight;	    /* directory for the record of the last operations; NULL: memory of this process */
	const char *algo;	    /* algorithms, OPERATION[:FROM-TO]=ALGORITHM,...; the same on all ranks */
	int late_ms;		    /* 0: none; deadline of dispatch and combine calls without timeout_ms */
	int late;		    /* enum covey_late; 0: COVEY_LATE_WAIT */
	const char *device;	    /* CUDA device: a number, "local" or "none"; NULL: "none" */
	const char *rdma_device;    /* NAME, NAME:PORT or NAME:PORT/GID; NULL: any with an address */
	int rdma_ms;		    /* 0: 500; an RDMA peer that does not answer for so long is lost */
	size_t device_window_bytes; /* 0: none; memory for covey_device_mem_alloc(); the same on all ranks */
	const char *queues;	    /* direct,assisted,ring,tcp: ways of devices to other hosts; NULL: all */
	int device_memory;	    /* enum covey_device_memory; 0: COVEY_DEVICE_MEMORY_AUTO; the same on all ranks */
	const char *job;	    /* identity of the job that forms the group; NULL: the launcher's, or none */
};

#ifdef __cplusplus
#define COVEY_CONFIG_INIT COVEY_INIT_(covey_config, covey_init_.rank = COVEY_RANK_ANY)
#else
#define COVEY_CONFIG_INIT \
	{ \
		.size = sizeof(struct covey_config), .rank = COVEY_RANK_ANY \
	}
#endif

/**
 * covey_join - become a member
 * @config: NULL: everything is taken from the environment
 * @out:    NULL after an error
 *
 * A founder's call returns when the group is formed. A joiner's call returns when it is connected to all members; its
 * first operation is then covey_admit().
 *
 *   create               a group of that name      the call
 *   COVEY_CREATE_FIRST   does not exist            forms it with world - 1 others
 *                        has living processes      BUSY; it never joins a group that others have formed
 *                        has left, or has died     takes the name over
 *   COVEY_CREATE_NEVER                             never forms a group
 *
 * All cases: docs/environment.md, "Jobs".
 * Errors: INVAL    also: `world`, or a setting that must be the same, differs from that of another process
 *         TIMEOUT  after join_ms; the cause names the missing ranks
 *         BUSY     also: the rank was given to another process too
 *         NOMEM, STORE, AUTH, FULL, CLOSED, VERSION
 *         The cause is in covey_last_error(NULL, ...), and is logged at level error. Nothing continues after an error.
 * Owner:  the caller; covey_close() frees @out
 */
COVEY_API int covey_join(const struct covey_config *config, struct covey_group **out);

/**
 * covey_join_start - covey_join() that does not wait; covey_join_wait() finishes it
 * Errors: INVAL, NOMEM at once; the others from covey_join_wait()
 */
COVEY_API int covey_join_start(const struct covey_config *config, struct covey_group **out);

/**
 * covey_join_wait - waits for a join; returns 0 when joined, else the error of the join
 * TIMEOUT at @deadline_ns: the join continues and may be waited for again. After join_ms the join itself ends with
 * TIMEOUT, and so does every later wait.
 */
COVEY_API int covey_join_wait(struct covey_group *group, uint64_t deadline_ns);

/**
 * covey_leave - finish what is queued, wait until no rank needs this one, leave the view
 * Errors: TIMEOUT at @deadline_ns (0: after 10 s): the others have to find this rank dead
 */
COVEY_API int covey_leave(struct covey_group *group, uint64_t deadline_ns);

/** covey_abort - ends every present and later call on @group with COVEY_ERR_ABORTED; from any thread */
COVEY_API void covey_abort(struct covey_group *group);

/**
 * covey_close - frees the handle; NULL is allowed
 * It never waits for a peer or the store. Peers see a death, unless covey_leave() came first. Free the works and
 * the handles for dispatch and combine of the group before.
 */
COVEY_API void covey_close(struct covey_group *group);

/* ---- View and events ---------------------------------------------------------------------- */

struct covey_view {
	uint32_t epoch;
	int size; /* 1 + the highest rank that was ever admitted */
	int max_ranks;
	int rank;		   /* own */
	uint64_t incarnation;	   /* own */
	uint64_t base_seq;	   /* the first operation of this view */
	uint64_t done_seq;	   /* the last operation that was decided here */
	int active;		   /* 0 while a change is under way */
	struct covey_mask members; /* ranks that are admitted */
	struct covey_mask pending; /* ranks of joiners: in the view, and waiting for covey_admit() */
};

/**
 * covey_view - copies the last view that this rank has learned
 * A joiner that no view lists yet gets the view to which it is connected.
 */
COVEY_API int covey_view(const struct covey_group *group, struct covey_view *view);

enum covey_event_kind {
	COVEY_EVENT_VIEW = 1,	    /* a view became active: see left, came, cause */
	COVEY_EVENT_SUSPECT,	    /* rank is suspected: see cause */
	COVEY_EVENT_JOIN_REQUESTED, /* rank has a joiner, which waits for covey_recover() or covey_extend() */
	COVEY_EVENT_FENCED,	    /* this process was left out */
	COVEY_EVENT_STORE_LOST,
	COVEY_EVENT_STORE_BACK
};

struct covey_event {
	int kind; /* enum covey_event_kind */
	int rank; /* -1: none */
	uint32_t epoch;
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	struct covey_mask left, came;
	char cause[120];
};

/** covey_event_fd - returns a descriptor, owned by the group, that is readable while an event waits */
COVEY_API int covey_event_fd(const struct covey_group *group);

/**
 * covey_event_next - takes the oldest event
 * 256 events are kept; beyond these the oldest are dropped.
 * Errors: INVAL; AGAIN: there is none
 */
COVEY_API int covey_event_next(struct covey_group *group, struct covey_event *event);

/* ---- Outcomes and works ------------------------------------------------------------------- */

/*
 * Outcomes on host memory. An operation is decided when this rank has its outcome: status, epoch, mask and bytes.
 * Outcomes on devices: "Device memory". The cure of each error: docs/errors.md; deaths by operation: docs/losses.md.
 *
 *   a call returned                    its number   then                                  @result
 *   INVAL, NOMEM, STALE, UNSUPPORTED   not taken    the other ranks wait until this rank  unchanged
 *                                                   makes the call with success
 *   FENCED, CLOSED, ABORTED, FORKED    -            the handle has ended                  -
 *   any other error                    taken        the next call is the next operation   written
 *
 *   status     cause                                                         on
 *   ROOT       the root is dead                                              all ranks
 *   PEER       COVEY_ON_LOSS_FAIL, and the mask lacks a rank of the last     all ranks; where masks differ by rank,
 *              covey_admit()                                                 those that lack one
 *   LOST       allreduce, reduce, alltoall(v): a death, in place above       all ranks
 *              undo_bytes
 *   LOST       reduce_scatter, scatter: the part was lost with a dead rank   this rank alone; do not use recv
 *   MISMATCH   ranks made different calls; the cause names both              all ranks
 *
 * A broadcast or scatter may end on some ranks before they hear from the others. On these the next operation that waits
 * for a rank finds the mismatch, and it is MISMATCH on all. A root that calls only broadcast or scatter finds it after
 * 4 * slot_bytes of data at the latest.
 *
 * INVAL at once, since this rank sees it: a root that was never admitted; buffers that overlap but are not in place;
 * blocks of recv that overlap each other.
 *
 * The life of a work:
 *   begins      with a _start form, or a request: covey_recover(), covey_extend(), covey_retire(), covey_evict()
 *   under way   covey_work_test() and covey_work_progress() look, and do not wait
 *               covey_work_wait() waits, any number of times; a TIMEOUT does not end the operation
 *   decided     covey_work_test() and covey_work_wait() give the outcome, each time
 *   ends        with covey_work_free(), before covey_close(); an operation that is not decided continues
 */

/**
 * struct covey_result - the outcome of one operation
 * It is written when the operation is decided, also if `status` is an error; `mask` then names no valid data.
 */
struct covey_result {
	int status;	/* 0 or COVEY_ERR_* */
	uint32_t epoch; /* the view in which it completed; the same on all survivors */
	uint64_t seq;
	int size;		/* size of the group for this operation */
	struct covey_mask mask; /* contributors; of alltoall(v), dispatch and combine the
				 * sources whose part is valid on this rank */
	uint64_t wait_ns;	/* from the call to the outcome on this rank */
	size_t bytes;		/* send, recv: bytes moved, on devices see covey_send(); else 0 */
	int peer, tag;		/* send, recv: the other rank, and the tag of the message; else -1, 0 */
};

/**
 * covey_work_test - 0 when decided, also with an error in @result, which may be NULL; else COVEY_ERR_AGAIN
 * Errors: ABORTED: covey_abort() was called before a request or an operation on a device was decided
 */
COVEY_API int covey_work_test(struct covey_work *work, struct covey_result *result);

/**
 * covey_work_wait - waits until the outcome is decided, and returns its status
 * Errors: TIMEOUT at @deadline_ns (0: none): the wait ends, the operation does not
 *         ABORTED as covey_work_test()
 *         After both covey_last_error() says what a request, or an operation on a device, waits for.
 */
COVEY_API int covey_work_wait(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result);

/**
 * covey_work_progress - writes one line into @text: what the work waits for
 * Before the end of its group of calls, for a message on a device: that covey_group_end() launches it.
 */
COVEY_API int covey_work_progress(const struct covey_work *work, char *text, size_t bytes);

/** covey_work_free - frees a work; if it is not decided, its buffers must stay alive until it is */
COVEY_API void covey_work_free(struct covey_work *work);

/* ---- Growth and repair of the group ------------------------------------------------------- */

/**
 * covey_admit - the safe point: the only place where ranks are added
 * @state:  [bytes], host memory: input on members; a joiner gets that of the lowest member
 * @bytes:  0..4096, the same on all ranks
 * @result: mask and size from here to the next covey_admit(); may be NULL
 *
 * Every rank calls it at the same place of its sequence. If no joiner waits, it costs one memory store per peer. It is
 * a joiner's first operation, and there blocks until the members call it. Under COVEY_ON_LOSS_FAIL it also
 * acknowledges losses.
 * Errors: INVAL    also: on a device a dispatch or combine was sent and not received
 *         TIMEOUT  a joiner, after join_ms
 *         FENCED, CLOSED
 */
COVEY_API int covey_admit(struct covey_group *group, void *state, size_t bytes, struct covey_result *result);

/**
 * covey_admit_async - covey_admit() of a group with a device, which waits for no stream
 * @stream: stream of the operations on device memory; it is not being captured. NULL if the group has no device
 *
 * Operations that were launched on @stream before this call run without the newcomers, later ones with them. A
 * newcomer's stream waits until the others' streams come to this place. Members and newcomers may mix the two forms.
 * If a rank comes in, covey_admit() first waits until all launches on all streams have ended. If it returns TIMEOUT there,
 * after join_ms, the next covey_admit() continues that wait. CUDA allows no such wait while a graph is being captured: it
 * invalidates the capture, and the wait lasts until that has ended. covey_admit_async() does not wait.
 * Errors: as covey_admit(); UNSUPPORTED: a stream, and the group has no device
 */
COVEY_API int covey_admit_async(struct covey_group *group, void *state, size_t bytes, struct CUstream_st *stream,
				struct covey_result *result);

/**
 * covey_recover / covey_extend / covey_retire / covey_evict - ask for a change of the members
 * @out: a work; wait for it with a deadline
 *
 *   request   what it asks                                               decided when
 *   recover   joiners of @ranks ([n]) may come in                        all are admitted
 *   extend    joiners of ranks from the present size to @size-1 may      all are admitted
 *   retire    a healthy rank leaves once no rank needs its data          its process is no member
 *   evict     a sick rank is fenced at once                              its process is no member
 *
 * A request is idempotent, and any member may make it.
 * Errors: INVAL; REFUSED: the cause is in covey_last_error()
 */
COVEY_API int covey_recover(struct covey_group *group, const int *ranks, int n, struct covey_work **out);
COVEY_API int covey_extend(struct covey_group *group, int size, struct covey_work **out);
COVEY_API int covey_retire(struct covey_group *group, int rank, struct covey_work **out);
COVEY_API int covey_evict(struct covey_group *group, int rank, struct covey_work **out);

/* ---- Collectives -------------------------------------------------------------------------- */

/* NCCL's numbers; types that NCCL does not have begin at 12. */
enum covey_dtype {
	COVEY_INT8 = 0,
	COVEY_UINT8 = 1,
	COVEY_INT32 = 2,
	COVEY_UINT32 = 3,
	COVEY_INT64 = 4,
	COVEY_UINT64 = 5,
	COVEY_FLOAT16 = 6,
	COVEY_FLOAT32 = 7,
	COVEY_FLOAT64 = 8,
	COVEY_BFLOAT16 = 9,
	COVEY_INT16 = 12
};

/* NCCL's numbers. */
enum covey_redop { COVEY_SUM = 0, COVEY_PROD = 1, COVEY_MAX = 2, COVEY_MIN = 3, COVEY_AVG = 4 };

/**
 * covey_set_on_loss - sets the choice for the operations that are posted from here on
 * @on_loss: enum covey_on_loss; all ranks give the same value at the same place of their sequence
 *
 * COVEY_ON_LOSS_FAIL: an operation on host memory whose contributors lack a rank of the last covey_admit(), or of the
 * join, ends with COVEY_ERR_PEER on all survivors.
 */
COVEY_API int covey_set_on_loss(struct covey_group *group, int on_loss);

/**
 * covey_explain - says which algorithm each operation takes at which size in the present view, and why
 * @text: [bytes], host memory: a table, then one of forms on device memory if the group has a device
 *
 * For dispatch and combine on devices it says from how many tokens of a lane on rows go by bulk copies, with how many
 * lanes a handle runs, and why rows stay lines where they do. A form depends on the handle: the table is of one with
 * hidden 7168, top_k 8 and 32 experts a rank. With log = debug each handle says its own forms at its first call.
 *
 * The text is cut to @bytes; 8192 are enough. The call is local.
 * Errors: INVAL, and those of the group
 */
COVEY_API int covey_explain(struct covey_group *group, char *text, size_t bytes);

/*
 * Argument order, counts and places in place are NCCL's. @dtype is of enum covey_dtype, @redop of enum covey_redop.
 *
 *   form      returns                     @result
 *   plain     the status of the outcome   may be NULL
 *   _start    0, and a work               from covey_work_test() or covey_work_wait()
 *
 * Memory: @stream NULL: send and recv are host memory; else both are device memory. Any alignment will do. Arrays of
 *         counts and displacements are host memory.
 * Owner:  the caller keeps buffers alive, inputs unchanged, and does not touch recv until the outcome is decided; on a
 *         device until the stream has passed the operation.
 * Blocks: allgather, alltoall, reduce_scatter, gather and scatter have `size` blocks: the size that the last
 *         covey_admit() or join gave.
 * Errors: INVAL, NOMEM, STALE, UNSUPPORTED, FENCED, CLOSED, ABORTED, ROOT, PEER, LOST, MISMATCH ("Outcomes")
 *
 *   operation                      in place
 *   allreduce, broadcast, reduce   send == recv
 *   allgather, gather              send == recv + rank * count
 *   allgatherv                     send == recv + recvdispls[rank]
 *   reduce_scatter, scatter        recv == send + rank * count
 *   alltoall, alltoallv            send == recv
 *
 *   what           promised
 *   reduction      a left fold in ascending rank, so bits are the same on all ranks and from run to run. On devices of
 *                  several hosts a large allreduce or reduce_scatter may fold each host's ranks first, then the
 *                  hosts (docs/tuning.md): the same on all ranks, but f16 and bf16 are rounded after each host, too,
 *                  and a sum of f16 may overflow there
 *   f16, bf16      accumulated in f32
 *   integers       wrap
 *   avg            the sum divided by the number of contributors; integers truncate towards zero
 *   min, max       of a NaN and a number: the number
 *   sum, prod      that are no number: the quiet NaN without payload
 *   a lost block   of allgather(v), gather, alltoall(v): zero
 */

/**
 * covey_allreduce - recv[i] = op over contributors of send[i]
 * In place above undo_bytes a death may end it with LOST, the same on all ranks.
 */
COVEY_API int covey_allreduce(const void *send, void *recv, size_t count, int dtype, int redop,
			      struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allreduce_start(const void *send, void *recv, size_t count, int dtype, int redop,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_broadcast - recv = the root's send; send is read only on @root */
COVEY_API int covey_broadcast(const void *send, void *recv, size_t count, int dtype, int root,
			      struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_broadcast_start(const void *send, void *recv, size_t count, int dtype, int root,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_allgather - recv [size][count]: block r is rank r's send [count] */
COVEY_API int covey_allgather(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			      struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allgather_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
				    struct CUstream_st *stream, struct covey_work **work);

/** covey_alltoall - send, recv [size][count]: block r of recv is block `own rank` of rank r's send */
COVEY_API int covey_alltoall(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			     struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_alltoall_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
				   struct CUstream_st *stream, struct covey_work **work);

/**
 * covey_alltoallv - covey_alltoall() with a count and a displacement for each block
 * @sendcounts, @senddispls, @recvcounts, @recvdispls: [size] in elements, host memory, copied at the call
 *
 * Rank r must send as many elements as recvcounts[r] says here; else the result on this rank is MISMATCH. For the own
 * block it is INVAL. In place each block is replaced where it is: senddispls == recvdispls.
 */
COVEY_API int covey_alltoallv(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
			      const size_t *recvcounts, const size_t *recvdispls, int dtype, struct covey_group *group,
			      struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_alltoallv_start(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
				    const size_t *recvcounts, const size_t *recvdispls, int dtype,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/**
 * covey_reduce - recv on @root = op over contributors of send
 * On other ranks recv is not touched and may be NULL. When the call returns 0, the root has every contribution of
 * result->mask. In place, on the root, as covey_allreduce().
 */
COVEY_API int covey_reduce(const void *send, void *recv, size_t count, int dtype, int redop, int root,
			   struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_reduce_start(const void *send, void *recv, size_t count, int dtype, int redop, int root,
				 struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_reduce_scatter - send [size][recvcount], recv [recvcount]: op over contributors of block `own rank` */
COVEY_API int covey_reduce_scatter(const void *send, void *recv, size_t recvcount, int dtype, int redop,
				   struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_reduce_scatter_start(const void *send, void *recv, size_t recvcount, int dtype, int redop,
					 struct covey_group *group, struct CUstream_st *stream,
					 struct covey_work **work);

/**
 * covey_allgatherv - recv + recvdispls[r] = rank r's send [recvcounts[r]]
 * @sendcount:  recvcounts[own rank]
 * @recvcounts: [size] in elements, host memory, copied at the call; the same on all ranks, else MISMATCH
 * @recvdispls: [size] in elements, host memory, copied at the call; each rank has its own
 */
COVEY_API int covey_allgatherv(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
			       const size_t *recvdispls, int dtype, struct covey_group *group,
			       struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allgatherv_start(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
				     const size_t *recvdispls, int dtype, struct covey_group *group,
				     struct CUstream_st *stream, struct covey_work **work);

/** covey_gather - recv [size][count] on @root: block r is rank r's send [count]; recv may be NULL on other ranks */
COVEY_API int covey_gather(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			   struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_gather_start(const void *send, void *recv, size_t count, int dtype, int root,
				 struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_scatter - recv [count] = block `own rank` of @root's send [size][count]; send may be NULL on other ranks */
COVEY_API int covey_scatter(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			    struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_scatter_start(const void *send, void *recv, size_t count, int dtype, int root,
				  struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_barrier - completes when every member of the view has called it */
COVEY_API int covey_barrier(struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_barrier_start(struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/* ---- Device memory ------------------------------------------------------------------------ */

/*
 * Device memory. If the group was joined with a device (struct covey_config), a call with a stream has its buffers in
 * memory of that device. Then all ranks have a device. The call launches one kernel on @stream and returns.
 *
 *   what                       on devices
 *   streams                    one at a time per group
 *   kernels of the caller      if one lets the next begin early (programmatic dependent launch), it must wait for
 *                              those before it
 *   captured graphs            stay valid when ranks die, are replaced or are added: a kernel reads the contributors
 *                              when it runs
 *   counts of alltoallv and    are part of a captured graph: a rank that has come since then gets no block there
 *   allgatherv
 *   in place                   as on host memory. alltoall(v) first copies its inputs: above 22 MiB into memory that it
 *                              takes for that time, else NOMEM. An allreduce is in place on all ranks or on none: the
 *                              form follows from it, and ranks of different forms wait for each other for ever
 *   _start forms               the work is decided when the stream has passed the operation; at most 256 works at a
 *                              time, else NOMEM. INVAL on a stream that is being captured
 *   COVEY_ON_LOSS_FAIL         changes nothing: an outcome says in its mask who contributed
 *   no bytes                   the buffers may be NULL
 *   seq                        device operations are counted apart from host operations
 *   covey_admit()              waits for all launches when ranks come in; covey_admit_async() does not
 *   different calls, roots     are not found, but for counts of alltoallv: MISMATCH on the rank that receives
 *   or counts
 *
 * Outcomes on devices:
 *
 *   where                       written by   content
 *   return value                the call     0: launched; else there was no launch
 *   @result                     the call     status 0; epoch, size and contributors as known then
 *   covey_device_result()       the kernel   the first message that failed, else the outcome of the last collective,
 *                                            dispatch or combine
 *   covey_work_test(), _wait()  the kernel   the same, of the operation of a _start form
 *   covey_device_outcome_at()   the kernel   the outcome of the last operation, for kernels that run later
 *
 * After a death each survivor completes an operation with the same contributors and bytes as all others. In place, an
 * operation above 256 KiB may end with LOST, the same on all; alltoall(v) does not.
 */

/**
 * covey_device_result - copies the last outcome on the device to host memory; it does not wait for the stream
 * @result: status, epoch and seq of the device's operations; mask: contributors, and of alltoall(v), reduce_scatter,
 *          gather, scatter, dispatch and combine those of them whose part is here
 *
 * The first message that failed since the last call comes first, once: status, peer and tag are its own. `peer` is -1
 * otherwise. The caller waits for the stream before.
 * Errors: INVAL; UNSUPPORTED: no device; IO
 */
COVEY_API int covey_device_result(struct covey_group *group, struct covey_result *result);

/** struct covey_device_outcome - the outcome of the last operation, in device memory */
struct covey_device_outcome {
	int32_t status; /* 0 or COVEY_ERR_* */
	uint32_t epoch;
	uint64_t seq;	     /* of the device's operations, from 0 */
	uint64_t mask;	     /* contributors below 64: rank r is bit r; the same on all survivors */
	uint64_t missing;    /* contributors whose part is not here: of this rank alone */
	uint64_t mask_64[3]; /* contributors from 64 on, the same way: builds for more ranks */
	uint64_t missing_64[3];
};

/**
 * covey_device_outcome_at - gives the address of the last outcome in device memory, for kernels that run later
 * Owner:  the group; valid until covey_close()
 * Errors: INVAL; UNSUPPORTED: no device
 */
COVEY_API int covey_device_outcome_at(struct covey_group *group, const struct covey_device_outcome **out);

/**
 * covey_device_mem_alloc / covey_device_mem_free - device memory of this member's window, which all peers read in place
 * @out: device memory, 64-byte aligned
 *
 * A large operation copies nothing into library memory if these buffers of all ranks are there:
 *
 *   reduce_scatter, allgather, alltoall   inputs
 *   allreduce, broadcast                  inputs; with more than two ranks outputs too
 *   size and place                        from 16 MiB a block on, at multiples of 16 bytes, in any part of the window
 *   in place                              allreduce only
 *   a buffer of one rank is elsewhere     all ranks use packets
 *
 * Such an operation ends when all ranks have read.
 * Owner:  covey_device_mem_free(), or covey_close() with all of it. Before covey_device_mem_free() the stream must
 *         have passed every operation on the memory. Then all ranks have read, and it may be given out again at once.
 * Errors: INVAL; UNSUPPORTED: no device; NOMEM: device_window_bytes is too small
 */
COVEY_API int covey_device_mem_alloc(struct covey_group *group, size_t bytes, void **out);
COVEY_API int covey_device_mem_free(struct covey_group *group, void *memory);

/** struct covey_device_peers - by which a kernel of the application reaches that memory of its peers: covey_device.h */
struct covey_device_peers {
	void *window; /* the own memory of which covey_device_mem_alloc() gives parts, at one place on all ranks */
	size_t window_bytes;
	int rank;
	/* the library's */
	uint32_t far_bytes;
	uint64_t *guests;
	const uint64_t *gate, *words, *ended, *since, *table;
	uint8_t *windows;
	const uint8_t *far;
	uint64_t stride;
};

/**
 * covey_device_peers - fills @out, for launches until covey_close(): views may change, captured graphs stay valid
 * Parts of the memory stand at one place on all ranks if all allocate and free the same in the same order.
 *
 * The memory is zero when the process joins, and peers may store in it from then on. A removed process that still runs may
 * store in the memory that it reached, words too, until it learns of its removal. So where that may happen the application
 * has its ranks use other parts of the memory after each safe point that let somebody in: covey does not do that.
 * Errors: INVAL; UNSUPPORTED: no device, device_window_bytes is 0, or covey_device_max_ranks() is above 32
 */
COVEY_API int covey_device_peers(struct covey_group *group, struct covey_device_peers *out);

/* ---- Messages ----------------------------------------------------------------------------- */

#define COVEY_TAG_ANY (-1) /* of a receive: the next message of that peer, with any tag */

/**
 * covey_send / covey_recv - one message from this rank to @peer, or from @peer to this rank
 * @buf:    @stream NULL: host memory; else device memory
 * @count:  any, also 0
 * @peer:   any rank, also this one
 * @tag:    0 or more; a receive may give COVEY_TAG_ANY
 * @result: bytes, peer and tag of the message; seq: its number between the two, from 0; mask: the two ranks
 *
 * Messages have no number among the collectives and are no part of views: two survivors do not see a change of the
 * members. If their connection breaks and comes back, nothing is lost, doubled or reordered.
 *
 *   case                           host memory                            device memory
 *   a receive matches              the oldest message with its tag        the next message
 *   order                          that of the sends, per pair and tag    that of the calls, per pair
 *   another tag comes next         it waits for its own                   MISMATCH; nothing is written, message dropped
 *   a longer message               takes what fits, drops the rest:       MISMATCH; nothing is written, message
 *                                  TRUNCATED; the send succeeds           dropped
 *   a shorter message              succeeds; `bytes` says how much        succeeds
 *   @peer is no member, or not     PEER at once; _start: in the work      PEER from the call if known then
 *   admitted at a safe point here
 *   @peer is removed               what is not complete ends with PEER;   the same; part of the buffer of such a
 *                                  messages not received are dropped      receive may have been written
 *   the rank has a new process     begins anew                            captured graphs: messages are for the process
 *                                                                         that has the rank at the replay
 *   a send succeeded               @buf is free; the message may not have been received
 *   sent before the receive        short messages may be, none must be    about 1 MB, and 192 messages
 *   to itself                      yes                                    both calls in one group of calls
 *   _start forms                   yes                                    as those of collectives: the work is decided
 *                                                                         when the stream has passed the launch
 *   @peer on another host          yes                                    UNSUPPORTED
 *   one group of calls             any number                             one launch at its end: at most 128 (else
 *                                                                         UNSUPPORTED), of one stream. A wait for a
 *                                                                         work before that end: INVAL
 *   covey_leave()                  waits until they are received          does not wait
 *   outcome                        @result                                covey_device_result(); of a _start form its
 *                                                                         work alone
 *
 * On a device a call launches a kernel on @stream and returns. The kernel holds the stream until the message is
 * through. In @result `bytes` and `tag` are the call's; in the work of a receive they are those of the message. Two
 * ranks that each first send more than about 1 MB, or more than 192 messages, to the other may deadlock, unless the calls
 * are in one group of calls.
 *
 * Threads: any, at any time; the order of messages is then that of the calls. On a device as collectives.
 * Errors:  INVAL, PEER, TRUNCATED, NOMEM, FENCED, CLOSED, ABORTED; of a launch INVAL, PEER, UNSUPPORTED
 */
COVEY_API int covey_send(const void *buf, size_t count, int dtype, int peer, int tag, struct covey_group *group,
			 struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_send_start(const void *buf, size_t count, int dtype, int peer, int tag, struct covey_group *group,
			       struct CUstream_st *stream, struct covey_work **work);
COVEY_API int covey_recv(void *buf, size_t count, int dtype, int peer, int tag, struct covey_group *group,
			 struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_recv_start(void *buf, size_t count, int dtype, int peer, int tag, struct covey_group *group,
			       struct CUstream_st *stream, struct covey_work **work);

/**
 * covey_mem_alloc / covey_mem_free - host memory of this member's window, read in place by peers on its host
 * @out: 64-byte aligned
 *
 *   an input there is not copied   in allreduce, broadcast, allgather, alltoall, reduce, reduce_scatter and gather
 *   if                             all members are on one host, the whole input is there, it is not in place, and it
 *                                  (or a block of it) has half a slot or more; else it is memory like any other
 *   other ranks                    each rank chooses for itself
 *   the operation returns          when all ranks have read
 *
 * After an error of the handle (-40 and below) an input there stays unchanged until covey_close().
 * Owner:  covey_mem_free(), or covey_close() with all of it. When an operation has returned, no peer reads its
 *         inputs, so freed memory is free at once.
 * Errors: INVAL    also: an operation under way reads or writes the memory that is to be freed
 *         NOMEM    window_bytes is too small, or the free space was a handle's and peers may still read it
 *                  (covey_ep_destroy()); the cause says which. After a barrier they do not
 */
COVEY_API int covey_mem_alloc(struct covey_group *group, size_t bytes, void **out);
COVEY_API int covey_mem_free(struct covey_group *group, void *memory);

/**
 * covey_group_start / covey_group_end - the calls between them are one step of this thread
 *
 *   call in between                     at the call   in covey_group_end()
 *   collective, message on host memory  posted        waited for; @result is written
 *   message on a device                 noted         launched
 *   collective on a device              launched
 *   covey_admit()                       refused
 *   covey_dispatch(), covey_combine()   refused; they have _send and _recv
 *
 * covey_group_end() waits for the calls of all groups and returns the first error, also that of a refused call.
 * Buffers and results stay alive until then. Pairs of start and end may be nested.
 * Errors: INVAL: an end without a start, or starts nested more than 64 deep; else those of the calls
 */
COVEY_API int covey_group_start(void);
COVEY_API int covey_group_end(void);

/* ---- Expert parallelism ------------------------------------------------------------------- */

/*
 * Dispatch sends tokens to the ranks that own their experts; combine brings the results back and sums them.
 * T = max_tokens, K = top_k, H = hidden, E = experts, R = size of the group, El = experts of this rank.
 *
 * An expert may have several *places*, ranks that hold it: replicas, shared experts and halves are one rule
 * (docs/replicas.md). Place p of expert e has the number e * P + p. Of the n places whose ranks are contributors of the
 * view in which a dispatch is decided, the one with index (source modulo n), ascending, takes the source's tokens. So all
 * members agree on it, and a death before that decision moves tokens to a living place in the same dispatch.
 */

/* The layout of tokens where they arrive, and on the way back. */
enum covey_ep_preset {
	COVEY_EP_LL = 0,      /* default: rows per (local expert, source), DeepEP's low-latency layout */
	COVEY_EP_COMPACT = 1, /* one row per (source, token) for all experts of a rank, as DeepEP's normal mode */
	COVEY_EP_FLAT = 2,    /* the rows of LL, each with its source and entry: `flat` is needed */
	/*
	 * As Ascend's MoeDistributeDispatchV2 and CombineV2: rows of an expert as in LL, but they begin where those of the
	 * expert before end, and each comes with its source, token and k: `triplets` is needed. The two are one layout; in
	 * the systems that they stand for they differ in how rows travel (docs/presets.md).
	 */
	COVEY_EP_WIN = 3,
	COVEY_EP_MESH = 4,
	/*
	 * The rows of COMPACT, by two hops where a group has several hosts: on devices a token crosses to another host once,
	 * to a rank that passes it on to its neighbours, and one sum of that host comes back. Combine adds in an order that
	 * depends on the hosts (docs/design/ep.md). On host memory it is COMPACT. On devices it takes no deadline, no
	 * active_ranks and no rows or results of integers.
	 */
	COVEY_EP_HT = 5
};

enum covey_ep_rows_as {
	COVEY_EP_ROWS_BF16 = 0, /* default: elements of dtype, also if that is COVEY_FLOAT16 */
	COVEY_EP_ROWS_E4M3 = 1, /* dispatch gives 8-bit floats, with one f32 scale for each 128 elements */
	/*
	 * Integers, with one f32 scale for a row: with m the largest |x| of the row, a code is x * (127 / m), for int4
	 * x * (7 / m), rounded to nearest even; the scale is m / 127, or m / 7.
	 *
	 *   m                       codes and scale
	 *   below 2^-100, or 0      0, and 0
	 *   infinite, or a NaN      0, and a NaN, so that all elements of the row are NaN
	 */
	COVEY_EP_ROWS_INT8 = 2,
	COVEY_EP_ROWS_INT4 = 3 /* two in a byte: the low four bits are the even element */
};

/* How the experts' results come back. */
enum covey_ep_back_as {
	COVEY_EP_BACK_PLAIN = 0, /* default: elements of dtype */
	/*
	 * Integers of 8 bits, with a scale in dtype for each 8 elements: m / 127 rounded up, with m the largest |y| of
	 * the 8. A code is y / scale, rounded to nearest even. m as for COVEY_EP_ROWS_INT8; a scale beyond the largest
	 * number of dtype is a NaN, too. All rows become such codes, also those that stay on their rank: the sum of a token
	 * does not depend on where its experts are. With COVEY_EP_PER_RANK codes are of the sum, in f32.
	 */
	COVEY_EP_BACK_INT8 = 1
};

enum covey_ep_combine_as {
	COVEY_EP_PER_EXPERT = 0, /* default: a row for each expert comes back; the sum is in the order of experts */
	/*
	 * The rows of each owner are summed, k ascending, and rounded, but not if the owner is the token's rank. These
	 * sums are added by ascending rank. On devices one row comes from each rank, and dispatch takes the weights. On
	 * host memory the experts' rows come and are summed in that order: the same bits.
	 */
	COVEY_EP_PER_RANK = 1
};

/* Words of `arrived` before those of rows. */
enum covey_ep_arrived {
	COVEY_EP_ARRIVED_AGAIN = 0, /* not 0: rows are placed anew; those announced before do not hold */
	COVEY_EP_ARRIVED_RANGE = 1, /* of count and range */
	COVEY_EP_ARRIVED_ENDED = 2, /* of the dispatch: no row arrives any more */
	COVEY_EP_ARRIVED_ROWS = 3   /* of row 0 of packed_x; the others follow */
};

#define COVEY_EP_ARRIVED 0x40000000u /* in such a word; another value is the library's */

enum covey_ep_tokens_as {
	COVEY_EP_TOKENS_COUNTS = 0, /* default: the rows of each expert */
	COVEY_EP_TOKENS_SUMS = 1    /* inclusive prefix sums of these */
};

/*
 * The most that devices take; limits of host memory: struct covey_ep_config. In a group with a device covey_ep_create()
 * warns of a handle above them, and its calls on device memory end with UNSUPPORTED. All limits: docs/limits.md.
 */
#define COVEY_DEVICE_MAX_RANKS 32 /* of the group: ranks 0..31, for all operations; covey_device_max_ranks() */
#define COVEY_DEVICE_MAX_TOKENS 16384
#define COVEY_DEVICE_MAX_HIDDEN 8192
#define COVEY_DEVICE_MAX_EXPERTS 1024
#define COVEY_DEVICE_MAX_LANES 128

/**
 * covey_device_max_ranks - the most ranks of a group with devices in this build of the library
 * COVEY_DEVICE_MAX_RANKS by default; up to 256 where it was built with -DCOVEY_DEVICE_RANKS, and then a call has fewer
 * lanes at most: 4096 divided by this. All processes of a group have libraries of one such number.
 */
COVEY_API int covey_device_max_ranks(void);

/** struct covey_ep_config - one pair of dispatch and combine; the same on all ranks */
struct covey_ep_config {
	size_t size;
	int max_tokens;		 /* T: of a rank in one dispatch: 1..1048576 */
	int hidden;		 /* H: elements of a token: 8..1048576, H * element size a multiple of 16 */
	int top_k;		 /* K: 1..32 */
	int experts;		 /* E: 1..65536, with ids 0..E-1 */
	int dtype;		 /* of tokens and results: COVEY_BFLOAT16 (default) or COVEY_FLOAT16 */
	int preset;		 /* enum covey_ep_preset; 0: COVEY_EP_LL */
	const int *expert_owner; /* [E] host memory: rank of each; NULL: blocks of ceil(E / size). [E][P] with places */
	int rows;		 /* enum covey_ep_rows_as; 0: COVEY_EP_ROWS_BF16 */
	int combine;		 /* enum covey_ep_combine_as; 0: COVEY_EP_PER_EXPERT. COMPACT has one row a rank */
	int lanes;		 /* on devices: processors that a call takes, up to 128; 0: as many as pay */
	int combine_rows;	 /* enum covey_ep_back_as; 0: COVEY_EP_BACK_PLAIN */
	int places; /* P: the most places of an expert, 1 to max_ranks; 0: 1. Above 1: expert_owner is [E][P] */
};

#ifdef __cplusplus
#define COVEY_EP_CONFIG_INIT COVEY_INIT_(covey_ep_config, covey_init_.dtype = COVEY_BFLOAT16)
#else
#define COVEY_EP_CONFIG_INIT \
	{ \
		.size = sizeof(struct covey_ep_config), .dtype = COVEY_BFLOAT16 \
	}
#endif

/**
 * covey_ep_create - lay out one pair of dispatch and combine
 * @config: the same on all ranks
 *
 * With places above 1 expert_owner is [E][P]: ranks, and -1 where an expert has fewer. Each expert has one place at
 * least, and none twice on a rank. Local experts are numbered by expert. NULL: place 0 is that of the blocks, and place
 * p is on the rank p * max(1, R / P) after it, modulo R; with fewer ranks than places the last ones are -1.
 *
 * The call is local, but all ranks make their calls of covey_ep_create() in the same order. The order decides offsets
 * in the window. So a joiner creates and destroys handles as the members did, or all ranks do so together after it is
 * admitted.
 *
 *   moment                         what to call
 *   a joiner, before its first     covey_ep_create(). covey_ep_rows() and covey_ep_route_bytes() are then those of
 *   covey_admit()                  max_ranks
 *   the joiner, after it           covey_ep_local_experts(), covey_ep_rows(), covey_ep_route_bytes() again: the handle
 *                                  is laid out for the group's size, without a remap of its own
 *   after a covey_admit() that     covey_ep_remap() on all ranks; on the joiner if the owners differ from its config
 *   changed the size
 *
 * Errors: INVAL    of the first call after a joiner's covey_admit(), too: an owner is no rank of the group
 *         NOMEM    window_bytes is too small; the cause says how much is needed. covey_ep_sizes() says it before
 */
COVEY_API int covey_ep_create(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep **out);

/**
 * struct covey_ep_sizes - what a configuration takes, in bytes of one rank
 *
 * Of one handle, whatever the size of the group:
 *   space_bytes    what covey_ep_create() takes of the rank's window, in host memory
 *   window_bytes   the least setting window_bytes with which the handle can be created, if the group has no other
 *
 * For a group of `ranks` ranks (R): rows is that of covey_ep_rows(), local_experts that of covey_ep_local_experts().
 * The other sizes are those of buffers, by their names in struct covey_dispatch_args and struct covey_combine_args.
 * 0: there is no such buffer. SIZE_MAX: its size does not fit a size_t.
 */
struct covey_ep_sizes {
	size_t size;
	size_t space_bytes;
	size_t window_bytes;
	int ranks;	   /* R */
	int local_experts; /* El of this rank */
	int rows;
	/* outputs of a dispatch */
	size_t packed_x_bytes;
	size_t packed_scales_bytes; /* not with COVEY_EP_ROWS_BF16 */
	size_t count_bytes;
	size_t src_info_bytes;
	size_t range_bytes;
	size_t recv_experts_bytes; /* COMPACT */
	size_t recv_weights_bytes; /* COMPACT */
	size_t route_bytes;	   /* in a group with a device */
	/* of a combine */
	size_t y_bytes;
	size_t out_bytes; /* of max_tokens tokens */
	/* outputs of a dispatch that may be NULL */
	size_t expert_tokens_bytes;
	size_t recv_counts_bytes; /* LL */
	size_t triplets_bytes;
	size_t flat_bytes; /* needed with FLAT */
	size_t arrived_bytes;
};

#ifdef __cplusplus
#define COVEY_EP_SIZES_INIT COVEY_INIT_(covey_ep_sizes, (void)0)
#else
#define COVEY_EP_SIZES_INIT \
	{ \
		.size = sizeof(struct covey_ep_sizes) \
	}
#endif

/**
 * covey_ep_sizes - how many bytes a configuration takes, before a handle of it is created
 * @config: as for covey_ep_create(); read before return
 * @ranks:  size of the group to count for, from this rank + 1 to max_ranks. 0: its present size, or max_ranks on a
 *          joiner before its first covey_admit()
 * @out:    initialised with COVEY_EP_SIZES_INIT; written only on success
 *
 * The call is local and takes nothing. Entries of expert_owner are ranks from 0 to @ranks - 1.
 * Errors:  INVAL as of covey_ep_create(), or @ranks is out of range; NOMEM: no memory for the table of owners
 */
COVEY_API int covey_ep_sizes(struct covey_group *group, const struct covey_ep_config *config, int ranks,
			     struct covey_ep_sizes *out);

/**
 * covey_ep_remap - lay out for new owners of the experts and the present size of the group; at a safe point
 * @expert_owner: as in struct covey_ep_config, the same on all ranks
 *
 * On devices the stream must have passed all operations of the handle, as after covey_admit(). The next call writes
 * the tables that they read.
 */
COVEY_API int covey_ep_remap(struct covey_ep *ep, const int *expert_owner);

/**
 * covey_ep_destroy - gives a handle and its space back
 * The call is local and waits for no rank, and no barrier is needed before it. All ranks make it in the same order,
 * also between calls of covey_ep_create() and covey_ep_destroy() for other handles.
 *
 * Another handle may have the space at once. The first operation of that handle is published when every member has
 * passed the last operation of the destroyed one. Until then the call or its _recv waits, as for a slow rank; a
 * deadline (timeout_ms) begins after that.
 * An operation that was sent and not received continues. Its buffers must stay alive until a later operation of the
 * group has returned.
 * On devices the stream must have passed all operations of the handle. Its device memory is freed, which waits for all
 * other work on the device.
 */
COVEY_API void covey_ep_destroy(struct covey_ep *ep);

/**
 * covey_ep_local_experts / covey_ep_rows - El, the experts that have a place here, and the rows kept in buffers
 * R * T rows are kept for each expert; with COMPACT for the rank; with WIN and MESH R * T * min(K, El) for all experts.
 */
COVEY_API int covey_ep_local_experts(const struct covey_ep *ep);
COVEY_API int covey_ep_rows(const struct covey_ep *ep);

/** covey_ep_route_bytes - bytes of `route` on a device, for the present size of the group; 0: not on devices */
COVEY_API size_t covey_ep_route_bytes(const struct covey_ep *ep);

/**
 * struct covey_dispatch_args - arguments of covey_dispatch(); all buffers are memory of the kind that the stream says
 * What begins with LL or COMPACT belongs to that preset only; FLAT has all of LL, HT all of COMPACT. WIN and MESH have all of LL but what
 * begins with WIN: for both. N = R * T * min(K, El), the rows of covey_ep_rows().
 *
 * Inputs:
 *   x              [num_tokens][H], any alignment: of the handle's dtype, or with x_scales e4m3
 *   x_scales       [num_tokens][ceil(H / 128)] f32. x then has codes in e4m3, which travel as they are: an element is
 *                  its code times the scale of its group. NULL: x is of the handle's dtype. Only with
 *                  COVEY_EP_ROWS_E4M3; ranks and calls may differ
 *   smooth         LL: [E][H] f32 or NULL, with rows in int8 or int4: an element is multiplied by that of its expert before
 *                  it becomes a code. All ranks have the same table, or none has one: else MISMATCH, which calls on
 *                  device memory do not see. Rows then travel in 16 bits, once to each rank, and receivers make codes
 *   experts        [num_tokens][K] int32; an id < 0 or >= E is skipped (zero, copy and constant experts: combine)
 *   experts64      the same in int64, if experts is NULL; ranks and calls may differ. Both: INVAL
 *   weights        [num_tokens][K] f32. COMPACT: needed. LL: only for COVEY_EP_PER_RANK on devices, and needed there
 *
 * Outputs; a rank without experts needs none:
 *   packed_x       LL: [El][R*T][H]. Rows of an expert are those of source 0, 1, ... without gaps, tokens ascending;
 *                  rows past count[e] are untouched. COMPACT: [R*T][H], with one such sequence of rows. WIN: [N][H],
 *                  the rows of expert e + 1 begin where those of e end. Elements of the handle's dtype
 *   packed_scales  f32, with rows of codes: packed_x then has bytes, H in a row, or H / 2 in int4. An element is its
 *                  code times the scale of its group: G groups, with e4m3 ceil(H / 128), else 1. LL: [El][G][R*T].
 *                  COMPACT: [R*T][G]. WIN: [N][G]
 *   count          [El] int32. LL: rows of each local expert. COMPACT: rows that name each local expert
 *   src_info       int32, index of the token on its source. LL: [El][R*T]. COMPACT: [R*T]. WIN: [N]
 *   range          int64, (count << 32) | first row, for each source. LL: [El][R], first among the rows of the expert.
 *                  COMPACT: [R]. WIN: [El][R], first among all rows. COMPACT, WIN: all rows here are count + first of
 *                  the last source
 *   recv_experts   COMPACT: [R*T][K] int32: for each row the local experts (0..El-1), at the places where its token
 *                  names them; -1 elsewhere
 *   recv_weights   COMPACT: [R*T][K] f32: their weights; 0 elsewhere
 *
 * Inputs, may be NULL or 0; ranks and calls may differ:
 *   token_mask     uint8. With mask_columns 0 or 1: [num_tokens], a token with 0 takes no part. With mask_columns K:
 *                  [num_tokens][K], an entry with 0 is skipped, as if its id were -1. The combine of these tokens gets
 *                  the same mask
 *   fill_tail      not 0: past the last row, up to R*T, src_info, recv_experts, triplets and flat are -1 and
 *                  recv_weights 0; LL: of each expert; WIN: up to N. packed_x and packed_scales stay untouched there
 *
 * Outputs, may be NULL (`flat` only without FLAT); a rank without experts gets none:
 *   expert_tokens  [El] int64: the rows of each local expert, as count, or with expert_tokens_as their inclusive prefix
 *                  sums (enum covey_ep_tokens_as). expert_alignment (0: 1): each expert's rows are rounded up to a
 *                  multiple of it, before they are added. No row moves, and no other output is rounded. WIN: 0 or 1
 *   recv_counts    LL: [El][R] int32: inclusive prefix sums of the counts of range, expert by expert: where each run
 *                  would end if the rows of all experts stood without gaps; WIN: where it ends. COMPACT: INVAL
 *   triplets       int32, (source, token, k) of each row: k is the place of the expert in the token's ids. LL:
 *                  [El][R*T][3]. WIN: [N][3], needed. COMPACT: [R*T][3], k is the first place that names an expert of
 *                  this rank
 *   flat           int32, (source, token * K + k) of each row. LL: [El][R*T][2]. COMPACT: [R*T][2]. WIN: [N][2]
 *
 * On devices token_mask takes a launch before the dispatch, and fill_tail or one of these outputs but flat a launch
 * after it.
 *
 * Input and output, may be NULL; of a rank without experts not used:
 *   arrived        uint32, 4-byte aligned, enum covey_ep_arrived words and then one for each row of packed_x. LL:
 *                  [3 + El*R*T]. COMPACT: [3 + R*T]. WIN: [3 + N]. All are 0 before the call. A word becomes COVEY_EP_ARRIVED when
 *                  what it stands for can be read, while the dispatch continues: other threads or kernels begin with
 *                  rows that are here (covey_device.h: covey_wait_row()). Whoever has read a word may make it 0 for
 *                  the next dispatch. Where COVEY_EP_ARRIVED_AGAIN is not 0 once the dispatch has ended, rows were
 *                  placed anew after some had been announced: then all is read again from the outputs, and all words
 *                  are made 0. The words stay alive until COVEY_EP_ARRIVED_ENDED is told, whatever the outcome is; a
 *                  call that is refused writes none
 *
 * Output, may be NULL if places is 0 or 1, and on devices, where it takes a launch after the dispatch; also of a rank
 * without experts:
 *   placed         [num_tokens][K] int32: the place that takes the entry, e * P + p; -1: its id is skipped, or no place
 *                  of the expert lives; on devices also an entry past T rows of one expert, and with one place each
 *                  the id, whoever lives. Written with each outcome, also one of an error unless the group has ended
 *
 * Output on devices only:
 *   route          covey_ep_route_bytes() of device memory, 16-byte aligned: for the combine of these tokens
 *
 * Input and output, may be NULL:
 *   active_ranks   [R] int32: a rank with 0 is neither waited for nor sent to. A passed deadline writes 0. The own
 *                  entry is not read
 *   waited         [R] uint64: the wait for each source, also in vain, is added: device cycles; on host memory
 *                  nanoseconds from the publishing until its part was seen
 *
 *   case                                               rows
 *   LL: a token names an expert twice                  two
 *   LL: past T rows of one source for one expert       the rest is skipped
 *   COMPACT: a token names any experts of this rank    one; none is skipped
 *   devices: a part is lost here that others have      rows past count[e] may have been overwritten; WIN: rows past
 *                                                      the last one
 *
 * active_ranks on host memory: all ranks give it or none does, else MISMATCH. It is read when the operation is
 * published. Leaving out is a matter of two: a rank that is not sent to learns so, and misses that source; all others
 * exchange tokens with both, also if a rank dies. Without a deadline the view after such a death is active when each rank
 * that some left out and others did not has called the operation, or is removed. If a rank that was left out stays away,
 * others wait for it after four more operations, as after a deadline. With a deadline a change of the view may end the
 * operation for all others as it ended for a rank that left somebody out.
 */
struct covey_dispatch_args {
	size_t size;
	int num_tokens; /* 0..max_tokens, may differ per rank */
	int timeout_ms; /* after the publishing; then missing sources are masked; 0 (default): late_ms; -1: never */
	/* inputs */
	const void *x;
	const int32_t *experts;
	const float *weights;
	/* outputs */
	void *packed_x;
	float *packed_scales;
	int32_t *count;
	int32_t *src_info;
	int64_t *range;
	int32_t *recv_experts; /* COMPACT */
	float *recv_weights;   /* COMPACT */
	void *route;	       /* devices */
	/* input and output */
	int32_t *active_ranks;
	uint64_t *waited;
	/* input */
	const float *x_scales;
	const int64_t *experts64;
	/* inputs, may be NULL or 0 */
	const uint8_t *token_mask;
	int mask_columns;
	int fill_tail;
	int expert_tokens_as; /* enum covey_ep_tokens_as; 0: COVEY_EP_TOKENS_COUNTS */
	int expert_alignment;
	/* outputs, may be NULL */
	int64_t *expert_tokens;
	int32_t *recv_counts; /* LL */
	int32_t *triplets;    /* WIN, MESH: needed */
	int32_t *flat;	      /* FLAT: needed */
	const float *smooth;  /* LL */
	/* input and output, may be NULL */
	uint32_t *arrived;
	/* output */
	int32_t *placed; /* host memory: needed with places above 1 */
};

#ifdef __cplusplus
#define COVEY_DISPATCH_INIT COVEY_INIT_(covey_dispatch_args, (void)0)
#else
#define COVEY_DISPATCH_INIT \
	{ \
		.size = sizeof(struct covey_dispatch_args) \
	}
#endif

/**
 * covey_dispatch - send each token to the ranks that own its experts
 * @args:   read before return; its buffers stay alive, inputs unchanged, until the outcome
 * @result: mask: sources whose tokens are here; a missing source has no rows
 *
 * _send posts and publishes, _recv waits for that one. Between them no other operation of the group completes; later
 * ones queue.
 *
 * On devices _send launches on @stream, and so does _recv, whose deadline_ns is not read. Between the two kernels no
 * processor is held: an event may order other kernels between them. _send sends the first step of each lane, and the
 * receive the steps after it: `ep-perf dispatch --device local` says how many steps a handle has.
 *
 * With a deadline (timeout_ms, or late_ms of the group) a rank continues without a source that is not here by then. It
 * does so for at most four operations past that source, then it waits. All ranks give a deadline or none does, else
 * MISMATCH.
 *
 *   a dispatch                        its number   its combine                                      outcome
 *   is refused                        not taken    is not called                                    none
 *   fails                             taken        is called, with the rows that came, or none      of both an error
 *   was decided without this late     taken        is called                                        0, mask empty,
 *   rank                                                                                            no rows
 *
 * On devices a rank does not wait after four operations. If others end two operations by deadlines while a rank is
 * still in an earlier one, data that it has not read are overwritten, and it is FENCED.
 *
 *   on devices                          meaning
 *   mask of covey_device_result()       sources whose rows are here, whole
 *   epoch, mask of                      a view and its contributors: the same on all members, also if views change
 *   struct covey_device_outcome         while deadlines pass
 *   missing of that struct              contributors whose rows are not here, for a deadline or a removal: of this rank
 *                                       alone
 *
 * Errors: INVAL; STALE: the group grew since create or remap; FENCED, CLOSED, ABORTED
 */
COVEY_API int covey_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, struct CUstream_st *stream,
			     struct covey_result *result);
COVEY_API int covey_dispatch_send(struct covey_ep *ep, const struct covey_dispatch_args *args,
				  struct CUstream_st *stream);
COVEY_API int covey_dispatch_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result);

/**
 * struct covey_combine_args - arguments of covey_combine(); all buffers are memory of the kind that the stream says
 *
 * Inputs:
 *   y              the experts' results, of the handle's dtype, in the rows of packed_x; devices read them in place. LL:
 *                  [El][R*T][H]. WIN: [N][H]. COMPACT: [R*T][H]: for each row the weighted sum of the experts here
 *   experts        [num_tokens][K] int32, of this rank's tokens; on devices not read
 *   experts64      the same in int64, if experts is NULL; on devices not read. The dispatch may have had the other
 *                  type. Both: INVAL
 *   weights        [num_tokens][K] f32, of this rank's tokens. COMPACT: may be NULL, is read only to renormalise
 *   token_mask     as the dispatch of these tokens had it, with mask_columns; on devices not read. What is masked adds
 *                  nothing, and its weight is not valid; a token without an entry left is a row of zeros
 *   placed         with places above 1: as the dispatch of these tokens wrote it, else INVAL; an entry of -1 adds
 *                  nothing. With one place each, and on devices, not read
 *   renormalise    not 0: scale by (sum of all valid weights) / (sum of those whose owner took part); 0: default
 *   count, src_info, range   on host memory: as the dispatch wrote them; on devices not read
 *   route          on devices only: as the dispatch of these tokens wrote it
 *
 * Input, may be NULL:
 *   expert_scale   LL: [El] f32. Each result is multiplied by that of its expert. A row that travels is rounded after it,
 *                  and with COVEY_EP_PER_EXPERT so is one that stays here; in codes it is not rounded before.
 *                  On devices with COVEY_EP_PER_RANK the factor multiplies the weight instead. Ranks and calls may
 *                  differ. COMPACT, WIN: INVAL
 *
 * Inputs, may be NULL or 0; on devices 0, else UNSUPPORTED; ranks and calls may differ:
 *   zero_experts, copy_experts, constant_experts   how many ids from E on are of each kind, in this order; no rank has
 *                  them, and nothing travels for them. A zero expert gives 0, a copy expert the token x, constant expert j
 *                  a1[j] * x + a2[j] * v[j]. The term is added in f32 with the weight of its entry: with
 *                  COVEY_EP_PER_EXPERT at its k, else after the owners' sums, k ascending. The weight is valid, and
 *                  its owner took part (renormalise). COMPACT: weights are needed. Ids past them are skipped
 *   x              [num_tokens][H], of the handle's dtype, any alignment: needed with copy or constant experts
 *   constant_a1, constant_a2   [constant_experts] f32, needed with these
 *   constant_v     [constant_experts][H] f32, needed with these
 *
 * Output:
 *   out            [num_tokens][H]. LL: out[t] = sum over k of weights[t][k] * y(t, k), in f32, k ascending. COMPACT:
 *                  out[t] = sum over owners, ascending, in f32. Of the handle's dtype: each sum is rounded to nearest
 *                  even. Past the largest number it is an infinity; a NaN is 0x7fff
 *
 * active_ranks, waited: as of dispatch.
 */
struct covey_combine_args {
	size_t size;
	int num_tokens;
	int timeout_ms; /* as of dispatch: owners that are not here take no part */
	int renormalise;
	/* inputs */
	const void *y;
	const int32_t *experts;
	const float *weights;
	/* inputs that the dispatch wrote: the first three on host memory, the last on devices */
	const int32_t *count;
	const int32_t *src_info;
	const int64_t *range;
	const void *route;
	/* output */
	void *out;
	/* input and output */
	int32_t *active_ranks;
	uint64_t *waited;
	/* input */
	const int64_t *experts64;
	/* inputs, may be NULL or 0 */
	const uint8_t *token_mask;
	int mask_columns;
	const float *expert_scale; /* LL */
	const int32_t *placed;	   /* that the dispatch wrote; host memory: needed with places above 1 */
	const void *x;
	int zero_experts, copy_experts, constant_experts;
	const float *constant_a1, *constant_a2, *constant_v;
};

#ifdef __cplusplus
#define COVEY_COMBINE_INIT COVEY_INIT_(covey_combine_args, (void)0)
#else
#define COVEY_COMBINE_INIT \
	{ \
		.size = sizeof(struct covey_combine_args) \
	}
#endif

/**
 * covey_combine - bring the experts' results back
 * @args:   read before return; its buffers stay alive, inputs unchanged, until the outcome
 * @result: mask: owners whose rows took part
 *
 * A rank that died after the dispatch has taken the results of its places with it: it is not in the mask. Survivors whose
 * masks lack it do both operations again, with all other ranks; the dispatch then moves these tokens to living places.
 * Errors:  as of covey_dispatch()
 */
COVEY_API int covey_combine(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream,
			    struct covey_result *result);
COVEY_API int covey_combine_send(struct covey_ep *ep, const struct covey_combine_args *args,
				 struct CUstream_st *stream);
COVEY_API int covey_combine_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result);

/* ---- Operators ---------------------------------------------------------------------------- */

/**
 * covey_admin_call - one request to a group's store from outside, as ep-admin and launchers make it
 * @store, @group: as in covey_config; NULL: the environment
 * @argv:  [argc] words of a request, host memory
 * @pair:  called on the caller's thread for each field of the reply, first with key "status"; may be NULL
 * @ctx:   given to @pair
 *
 *   request                       what it does
 *   peek                          reads all fields of the group but its secret
 *   ask evict R[,R]               as covey_evict()
 *   ask retire R[,R]              as covey_retire()
 *   ask recover R[,R]             as covey_recover()
 *   ask extend N                  as covey_extend()
 *   ask policy auto|manual        sets enum covey_admission
 *   ask forget                    removes a group whose processes are gone
 *   prove RANK INC KIND           says that incarnation INC of RANK is dead; KIND names the evidence
 *
 * Errors: INVAL, TIMEOUT at @deadline_ns, STORE, AUTH, VERSION; REFUSED: the pair "why" says why.
 *         The cause is in covey_last_error(NULL, ...).
 */
COVEY_API int covey_admin_call(const char *store, const char *group, int argc, const char *const *argv,
			       uint64_t deadline_ns, void (*pair)(void *ctx, const char *key, const char *value),
			       void *ctx);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif /* COVEY_H */
