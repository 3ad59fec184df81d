/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey - elastic, fault-tolerant collective communication
 *
 * Processes join a *group*, and each takes a *rank*. All ranks call the same operations in the same order; `seq` is the
 * number of an operation. When a rank dies, also in the middle of an operation, the survivors agree on the next *view*:
 * a set of ranks with an `epoch`. Every survivor then ends the operation with the same outcome. Dead ranks are
 * replaced, and the group grows, at safe points: covey_admit().
 *
 *   covey.h           the group, its views, collectives, messages. It includes the others, which stand alone, too
 *   covey_ep.h        dispatch and combine of Mixture-of-Experts models
 *   covey_device.h    what is special on device memory; kernels of the application that reach peers
 *   covey_admin.h     for operators, launchers and tools: requests from outside, algorithms that are taken
 *
 *   NCCL                             here
 *   communicator, ncclCommInitRank   struct covey_group, covey_join()
 *   collectives                      the same arguments; `group` for the communicator, then `stream` and `result`
 *   ncclGroupStart, ncclGroupEnd     covey_group_start(), covey_group_end()
 *   ncclMemAlloc, ncclCommRegister   covey_device_mem_alloc(), covey_mem_alloc()
 *   ncclCommShrink, ncclCommGrow     by itself; covey_admit()
 *
 * Functions return 0 or a negative COVEY_ERR_* code. They write outputs only on success, unless they say otherwise; of
 * operations see "Outcomes". Argument structs begin with `size`, which their *_INIT initialiser sets. Counts and sizes are
 * in elements where a datatype is given, else in bytes. *_ms are milliseconds; deadline_ns is an absolute time on
 * CLOCK_MONOTONIC in nanoseconds, 0 (default): no deadline.
 *
 * The stream of a call says where the buffers of a collective, a message, a dispatch or a combine are. NULL: all in host
 * memory, also pinned or managed; else all in memory of the device with which the group was joined. The other kind is
 * INVAL. A buffer that the call does not use, or that has no bytes, may be NULL. Everything else is host memory: structs,
 * strings, `result`, `state`, and arrays of ranks, counts, displacements and owners.
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
 * Groups are independent of each other. A call leaves errno and the signal mask as they were. In a child made by fork()
 * all calls on a handle return COVEY_ERR_FORKED, and covey_close() only frees memory. What the library takes from a
 * process (threads, signals, descriptors, limits, cores): docs/operate/process.md. dlclose() leaves the library mapped.
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

/* ---- Version and handles ------------------------------------------------------------------ */

/** covey_version - returns the version of the library, static, as "0.2.0"; that of this header is above */
COVEY_API const char *covey_version(void);

struct covey_group; /* a member of a group, or a process that is joining one */
struct covey_work;  /* an operation or a request under way */
struct covey_ep;    /* buffers and layout of one pair of dispatch and combine */

/* ---- Errors ------------------------------------------------------------------------------- */

/*
 * X(name, code, text). The range of a code says what is lost: -1..-19 this call, -20..-39 one peer, -40..-59 this group
 * handle, -60..-79 this process. Numbers are never reused.
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
/* How peers map memory of a device. VMM: cuMemCreate, exported as descriptors, without which it is an error. IPC: CUDA
 * IPC, only for ranks of one host and of different processes. AUTO (default): VMM if the device has it, else IPC. */
enum covey_device_memory { COVEY_DEVICE_MEMORY_AUTO, COVEY_DEVICE_MEMORY_VMM, COVEY_DEVICE_MEMORY_IPC };
/* Contributors lack a rank of the last covey_admit() or join. CONTINUE (default): they are fewer; FAIL: it is PEER. */
enum covey_on_loss { COVEY_ON_LOSS_CONTINUE, COVEY_ON_LOSS_FAIL };
/* A rank was masked as late. WAIT (default): it stays a member; EVICT: the others ask for its removal. */
enum covey_late { COVEY_LATE_WAIT, COVEY_LATE_EVICT };
/* FIRST forms a group. NEVER is for replacements and joiners. DEFAULT: COVEY_CREATE says so, else FIRST. */
enum covey_create { COVEY_CREATE_DEFAULT, COVEY_CREATE_NEVER, COVEY_CREATE_FIRST };

#define COVEY_RANK_ANY (-1)

/* An initialiser: all zero, then size, then @set, as designated ones, which C++ has since C++20. */
#ifdef __cplusplus
#define COVEY_INIT_(type, set) \
	([] { \
		struct type covey_init_ = {}; \
		covey_init_.size = sizeof(covey_init_); \
		(void)(covey_init_ set); \
		return covey_init_; \
	}())
#else
#define COVEY_INIT_(type, set) \
	{ \
		.size = sizeof(struct type), set \
	}
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
	int create;		    /* enum covey_create */
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
	size_t slot_bytes;	    /* 0: 128 KiB; n * 4096, the same on all ranks */
	size_t window_bytes;	    /* 0: 4 GiB of addresses, touched as used; n * 4096, the same on all ranks */
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
	size_t device_window_bytes; /* 0: none; for covey_device_mem_alloc(); n * 2 MiB, the same on all ranks */
	const char *queues;	    /* direct,assisted,ring,tcp: ways of devices to other hosts; NULL: all */
	int device_memory;	    /* enum covey_device_memory; 0: COVEY_DEVICE_MEMORY_AUTO; the same on all ranks */
	const char *job;	    /* identity of the job that forms the group; NULL: the launcher's, or none */
};

#define COVEY_CONFIG_INIT COVEY_INIT_(covey_config, .rank = COVEY_RANK_ANY)

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
 * All cases: docs/reference/environment.md, "Jobs".
 * Errors: INVAL    also: `world`, or a setting that must be the same, differs from that of another process
 *         TIMEOUT  after join_ms; the cause names the missing ranks
 *         BUSY     also: the rank was given to another process too
 *         NOMEM, STORE, AUTH, FULL, CLOSED, VERSION
 *         The cause is in covey_last_error(NULL, ...), and is logged at level error. Nothing continues after an error.
 * Owner:  the caller; covey_close() frees @out
 */
COVEY_API int covey_join(const struct covey_config *config, struct covey_group **out);

/**
 * covey_join_start / covey_join_wait - covey_join() in two steps, of which the first does not wait
 * The first returns INVAL or NOMEM; the second 0 when joined, else another error of the join, or TIMEOUT at @deadline_ns:
 * the join continues and may be waited for again. After join_ms it ends with TIMEOUT, and so does every later wait.
 */
COVEY_API int covey_join_start(const struct covey_config *config, struct covey_group **out);
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
	COVEY_EVENT_JOIN_REQUESTED, /* rank has a connected joiner, which waits for covey_recover() or covey_extend() */
	COVEY_EVENT_FENCED,	    /* this process was left out */
	COVEY_EVENT_STORE_LOST,
	COVEY_EVENT_STORE_BACK,
	COVEY_EVENT_JOIN_LOST /* the joiner of rank is not connected any longer */
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
 * covey_event_next - takes the oldest of the last 256 events; older ones are dropped
 * Errors: INVAL; AGAIN: there is none
 */
COVEY_API int covey_event_next(struct covey_group *group, struct covey_event *event);

/* ---- Outcomes and works ------------------------------------------------------------------- */

/*
 * Outcomes on host memory; on devices: covey_device.h. An operation is decided when this rank has its outcome: status,
 * epoch, mask and bytes. Cures of errors: docs/operate/errors.md; deaths by operation: docs/guide/losses.md.
 *
 *   a call returned                    its number   then                                  @result
 *   INVAL, NOMEM, STALE, UNSUPPORTED   not taken    others wait until it succeeds here    unchanged
 *   AGAIN, of covey_set_slice()        taken        covey_work_resume()                   status, seq
 *   FENCED, CLOSED, ABORTED, FORKED    -            the handle has ended                  -
 *   any other error                    taken        the next call is the next operation   written
 *
 *   status     cause                                                         on
 *   ROOT       the root is dead                                              all ranks
 *   PEER       COVEY_ON_LOSS_FAIL: the mask lacks a rank                     all ranks, or those whose mask lacks one
 *   LOST       allreduce, reduce, alltoall(v) in place above undo_bytes:     all ranks
 *              a death
 *   LOST       reduce_scatter, scatter: the part was lost with a dead rank   this rank alone; do not use recv
 *   MISMATCH   ranks made different calls; the cause names both              all ranks; if one names a dead root, some
 *                                                                            may have ROOT instead
 *
 * A call that took no number has written no output. Once a number is taken, an error (also FENCED, CLOSED, ABORTED) may
 * leave what the operation receives into written, whole or in part: `recv`, which in place is the input, and all
 * outputs of a dispatch or combine. Other inputs stay as they are.
 *
 * Where masks differ by rank (alltoall(v), reduce_scatter, gather, scatter, dispatch, combine), the part of a living rank
 * may be lost like that of a dead one, if it was in flight on a connection that broke.
 *
 * A broadcast, a scatter, or a covey_admit() that lets nobody in, may end on some ranks before they hear from the
 * others. On these the next operation that waits for a rank finds the mismatch, and it is MISMATCH on all. A root that
 * calls only broadcast or scatter finds it after 4 * slot_bytes of data at the latest.
 *
 * INVAL at once: a root that was never admitted; buffers that overlap but are not in place; blocks of recv that overlap.
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
	struct covey_mask mask; /* contributors; of alltoall(v), dispatch and combine the sources whose part is here */
	uint64_t wait_ns;	/* from the call to the outcome on this rank */
	size_t bytes;		/* send, recv: bytes moved, on devices see covey_device.h; else 0 */
	int peer, tag;		/* send, recv: the other rank, and the tag of the message; else -1, 0 */
};

/**
 * covey_work_test - 0 when decided, also with an error in @result, which may be NULL; else COVEY_ERR_AGAIN
 * A work begins with a _start form or a request: covey_recover() and its siblings. It may be asked any number of times.
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
 * covey_work_progress - writes one line into @text: what the work waits for, and for which rank if that is known
 * Before the end of its group of calls, for a message on a device: that covey_group_end() launches it.
 */
COVEY_API int covey_work_progress(const struct covey_work *work, char *text, size_t bytes);

/**
 * covey_work_free - frees a work, before covey_close()
 * An operation that is not decided continues, and its buffers must stay alive until it is.
 */
COVEY_API void covey_work_free(struct covey_work *work);

/**
 * covey_set_slice - bounds the wait of blocking collectives on host memory, for languages that look at signals between
 * @ms: a call with a @result that is not decided then returns AGAIN, and the number in @result->seq; 0 (default): no bound
 */
COVEY_API int covey_set_slice(struct covey_group *group, int ms);

/** covey_work_resume - gives the work of a call that returned AGAIN; INVAL: no such call has the number @seq */
COVEY_API int covey_work_resume(struct covey_group *group, uint64_t seq, struct covey_work **out);

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

/* Numbers of types and reductions are NCCL's; types that NCCL does not have begin at 12. */
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

enum covey_redop { COVEY_SUM = 0, COVEY_PROD = 1, COVEY_MAX = 2, COVEY_MIN = 3, COVEY_AVG = 4 };

/**
 * covey_set_on_loss - sets the choice for the operations that are posted from here on
 * @on_loss: enum covey_on_loss; all ranks give the same value at the same place of their sequence
 */
COVEY_API int covey_set_on_loss(struct covey_group *group, int on_loss);

/*
 * Argument order, counts and places in place are NCCL's. Buffers may have any alignment. @dtype is of enum covey_dtype,
 * @redop of enum covey_redop. A plain form returns the status of the outcome, and @result may be NULL. A _start form
 * returns 0, and a work.
 *
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
 *   reduction      a left fold in ascending rank, so bits are the same on all ranks and from run to run; devices of
 *                  several hosts: covey_device.h
 *   f16, bf16      accumulated in f32
 *   integers       wrap
 *   avg            the sum divided by the number of contributors; integers truncate towards zero
 *   min, max       of a NaN and a number: the number
 *   sum, prod      that are no number: the quiet NaN without payload
 *   a lost block   of allgather(v), gather, alltoall(v): zero
 */

/** covey_allreduce - recv[i] = op over contributors of send[i] */
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
 *   a receive matches              the oldest message with its tag; a message with another tag waits for its own
 *   order                          that of the sends, of whatever thread, per pair and tag
 *   a longer message               takes what fits, drops the rest: TRUNCATED; the send succeeds
 *   a shorter message              succeeds; `bytes` says how much
 *   @peer is no member, or not     PEER at once; _start: in the work
 *   admitted at a safe point here
 *   @peer is removed               what is not complete ends with PEER; messages not received are dropped
 *   the rank has a new process     begins anew
 *   a send succeeded               @buf is free; the message may not have been received
 *   sent before the receive        short messages may be, none must be
 *   covey_leave()                  waits until they are received
 *
 * On device memory some of this differs: covey_device.h.
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
 * An input there is not copied in allreduce, broadcast, allgather, alltoall, reduce, reduce_scatter and gather, if all
 * members are on one host, the whole input is there, it is not in place, and it (or a block of it) has half a slot or
 * more. Else it is memory like any other. Each rank chooses for itself. The operation returns when all ranks have read.
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
 * Buffers and results stay alive until then. Pairs of start and end may be nested. If this thread closes a group in
 * between, its calls end with CLOSED.
 * Errors: INVAL: an end without a start, or starts nested more than 64 deep; else those of the calls
 */
COVEY_API int covey_group_start(void);
COVEY_API int covey_group_end(void);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#include <covey_admin.h>
#include <covey_device.h> /* and covey_ep.h */

#endif /* COVEY_H */
