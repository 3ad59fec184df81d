/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey - elastic, fault-tolerant collective communication
 *
 * The whole public interface. A process joins a group and takes a *rank*; the ranks run
 * collective operations, numbered by `seq`, in one order. When a rank dies, in the middle of an
 * operation too, the survivors agree on the next *view* (a set of ranks with an `epoch`) and every
 * one of them ends the operation with the same outcome. Dead ranks are replaced, and the group
 * grows, at safe points: covey_admit().
 *
 * Functions return 0 or a negative COVEY_ERR_* code and write outputs only on success unless they
 * say otherwise. Sizes are in elements where a datatype is given, else in bytes; times are in
 * milliseconds for durations and in nanoseconds on CLOCK_MONOTONIC for absolute deadlines
 * (0: no deadline). Argument structs begin with `size` and are set by their *_INIT initialiser.
 *
 * Threads. Which calls may run at once on one group:
 *
 *   collectives, covey_admit, covey_ep_*, dispatch, combine  one thread at a time per group (an
 *       operation takes its number when it is called); a waiting thread does not count
 *   covey_send, covey_recv                         any thread at any time; on device memory as collectives
 *   covey_work_*                                   any thread, one at a time per work
 *   view, events, last_error, recover/extend/retire/evict, abort   any thread at any time
 *   covey_leave, covey_close                       one thread, after all other calls returned;
 *                                                  call covey_abort first to make waits return
 *
 * Groups are independent of each other. In a child made by fork() every handle is poisoned: calls
 * return COVEY_ERR_FORKED and covey_close() only frees memory. docs/process.md says what the library
 * takes from a process: threads, signals, descriptors, limits, cores. dlclose() leaves it mapped.
 */
#ifndef COVEY_H
#define COVEY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
/* A call and what it fills have one name, as covey_view: in C++ the one hides the constructor of the other. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
extern "C" {
#endif

#define COVEY_VERSION_MAJOR 0
#define COVEY_VERSION_MINOR 1
#define COVEY_VERSION_PATCH 0

#if defined(__GNUC__)
#define COVEY_API __attribute__((visibility("default")))
#else
#define COVEY_API
#endif

/* A stream of the CUDA runtime (cudaStream_t). NULL: the buffers are host memory. */
struct CUstream_st;

struct covey_group; /* a joined (or joining) member of a group */
struct covey_work;  /* an operation or an elastic request under way */
struct covey_ep;    /* buffers and layout of one expert-parallel dispatch/combine pair */

/* ---- Errors ------------------------------------------------------------------------------- */

/*
 * X(name, code, text). Codes are grouped by what is lost: -1..-19 this call, -20..-39 one peer,
 * -40..-59 this group handle, -60..-79 this process. Numbers are never reused.
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

/** covey_strerror - one line of English for an error code; never NULL, static */
COVEY_API const char *covey_strerror(int err);

/** struct covey_error_info - what went wrong last on a group */
struct covey_error_info {
	int err;	 /* COVEY_ERR_*, 0 if nothing did */
	int rank;	 /* the rank concerned, -1: none */
	uint32_t epoch;	 /* epoch known here at that time */
	uint64_t seq;	 /* operation concerned, 0: none */
	char cause[240]; /* one line: what was seen */
};

/** covey_last_error - copies the last error seen on @group; a NULL group: the last failed join of this thread */
COVEY_API int covey_last_error(const struct covey_group *group, struct covey_error_info *info);

/* ---- Log ---------------------------------------------------------------------------------- */

enum covey_log_level { COVEY_LOG_ERROR = 1, COVEY_LOG_WARN, COVEY_LOG_INFO, COVEY_LOG_DEBUG };

typedef void (*covey_log_fn)(void *ctx, int level, const char *line);

/**
 * covey_log_set - where log lines go and from which level on
 * @fn:    receives whole lines without newline, from any thread; NULL: standard error
 * @level: lines above it are dropped; 0: as COVEY_LOG says (default warn)
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

enum covey_transport {
	COVEY_TRANSPORT_AUTO, /* shm on one host, tcp between hosts */
	COVEY_TRANSPORT_SHM,
	COVEY_TRANSPORT_TCP,
	COVEY_TRANSPORT_VERBS,	  /* shm on one host, RDMA between hosts; an error where that is not to be had */
	COVEY_TRANSPORT_VERBS_TCP /* tcp there instead */
};
enum covey_admission { COVEY_ADMISSION_AUTO = 1, COVEY_ADMISSION_MANUAL };
enum covey_device_memory {
	COVEY_DEVICE_MEMORY_AUTO, /* VMM where the device has it, else IPC */
	COVEY_DEVICE_MEMORY_VMM,  /* cuMemCreate, exported as descriptors; an error where that is not to be had */
	COVEY_DEVICE_MEMORY_IPC	  /* CUDA IPC: ranks of one host and of different processes only */
};
enum covey_on_loss { COVEY_ON_LOSS_CONTINUE, COVEY_ON_LOSS_FAIL };
enum covey_late { COVEY_LATE_WAIT, COVEY_LATE_EVICT };
enum covey_create { COVEY_CREATE_FIRST, COVEY_CREATE_NEVER }; /* NEVER: replacements and joiners */

#define COVEY_RANK_ANY (-1)

#ifdef __cplusplus
/* What the initialisers below are in C++, which has no designated ones before C++20: all zero, then size, then @set. */
#define COVEY_INIT_(type, set) \
	([] { \
		struct type covey_init_ = {}; \
		covey_init_.size = sizeof(covey_init_); \
		set; \
		return covey_init_; \
	}())
#endif

/**
 * struct covey_config - how to join. A field left at its default is taken from the environment
 * (COVEY_*, then RANK, WORLD_SIZE or those of another launcher), then from the built-in default. Strings are copied.
 */
struct covey_config {
	size_t size;
	const char *store;	    /* redis://[user:password@]host[:port][/db], redis+unix:///path[?db=N],
			    * rediss:// with TLS, then also ?ca=FILE&cert=FILE&key=FILE,
			    * redis+sentinel://[user:password@]host[:port][,host[:port]...]/MASTER[/db];
			    * parameters of the fields below may follow as ?group=..&world=.. */
	const char *group;	    /* name; default "covey" */
	int rank;		    /* 0..max_ranks-1; COVEY_RANK_ANY (default): the environment, else any */
	int world;		    /* processes that form the group; 0: the environment */
	int max_ranks;		    /* fixed by the creator; 0: 64 */
	int create;		    /* enum covey_create */
	int admission;		    /* enum covey_admission, set by the creator; 0: auto */
	int transport;		    /* enum covey_transport */
	const char *host;	    /* overrides the identity of this host */
	const char *interface;	    /* what peers on other hosts dial: eth0, eth, =eth0, 10.0.0.0/8, ^docker,lo */
	const char *secret_file;    /* file with the group secret; NULL: the store holds it */
	int join_ms;		    /* 0: 60000 */
	int heartbeat_ms;	    /* 0: 10; idle beat on one host */
	int hang_ms;		    /* 0: 100; silence on one host; -1: never */
	int link_ms;		    /* 0: 1000; silence between hosts; -1: never */
	int lease_ms;		    /* 0: 5000; silence in the store; -1: never */
	size_t slot_bytes;	    /* 0: 128 KiB; alike on all ranks */
	size_t window_bytes;	    /* 0: 4 GiB of addresses, touched as used; alike on all ranks */
	size_t undo_bytes;	    /* 0: 64 MiB; in-place inputs up to here are kept until decided */
	int tcp_connections;	    /* 0: 1; of a link between hosts, for large messages; at most 8 */
	const char *metrics;	    /* where to serve metrics: unix:PATH or tcp:[HOST:]PORT; NULL: nowhere */
	const char *flight;	    /* directory for the record of the last operations; NULL: memory of this process */
	const char *algo;	    /* algorithms to take, OPERATION[:FROM-TO]=ALGORITHM,...; alike on all ranks */
	int late_ms;		    /* 0: none; deadline of dispatch and combine calls that give no timeout_ms */
	int late;		    /* enum covey_late: what becomes of a rank that was masked as late */
	const char *device;	    /* CUDA device: a number, "local" or "none" (default) */
	const char *rdma_device;    /* NAME, NAME:PORT or NAME:PORT/GID; NULL: any with an address */
	int rdma_ms;		    /* 0: 500; an RDMA peer that does not answer is lost after this */
	size_t device_window_bytes; /* 0: none; device memory that covey_device_mem_alloc() gives; alike on all ranks */
	const char *topology;	    /* HOSTSxRANKS: of which hosts devices pass for, 2x2; NULL: of their own */
	const char *queues; /* copy,direct,assisted,ring,tcp: how devices reach other hosts; NULL: these but copy */
	int device_memory;  /* enum covey_device_memory: how peers map memory of the device; alike on all ranks */
	const char *job;    /* identity of the job that forms the group; NULL: the launcher's, or none */
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
 * covey_join - become a member; returns when the group is formed, or, for a joiner, when it is
 * connected to all members (its first operation is then covey_admit())
 * @config: NULL: everything from the environment
 * @out:    NULL after an error
 * Errors:  INVAL (also: world, or a setting that must be alike, differs from that of another process), TIMEOUT after
 *          join_ms (names the missing ranks), STORE, AUTH, BUSY (the rank was given to another process too, or others
 *          use the name of the group), FULL, CLOSED, VERSION; covey_last_error(NULL, ...) has the cause, which is also
 *          logged at level error. Nothing goes on then
 * Owner:   the caller; covey_close() frees @out
 *
 * COVEY_CREATE_FIRST forms a group with world - 1 others and never joins one that others have formed: where those live
 * it is BUSY, where they have left or are gone the name is taken over. See docs/environment.md, "Jobs".
 */
COVEY_API int covey_join(const struct covey_config *config, struct covey_group **out);

/**
 * covey_join_start - the same without waiting; finish with covey_join_wait()
 * Errors: INVAL, NOMEM at once; the others from covey_join_wait()
 */
COVEY_API int covey_join_start(const struct covey_config *config, struct covey_group **out);

/** covey_join_wait - 0 when joined, TIMEOUT at @deadline_ns (the join goes on and may be waited for again), else the
 * error. After join_ms the join itself ends with TIMEOUT, and so does every later wait */
COVEY_API int covey_join_wait(struct covey_group *group, uint64_t deadline_ns);

/**
 * covey_leave - finish what is queued, wait until nobody needs this rank, leave the view
 * Errors: TIMEOUT at @deadline_ns (0: 10 s): the rank is left to be found dead
 */
COVEY_API int covey_leave(struct covey_group *group, uint64_t deadline_ns);

/** covey_abort - every call under way and to come on @group returns COVEY_ERR_ABORTED; any thread */
COVEY_API void covey_abort(struct covey_group *group);

/** covey_close - frees the handle; never waits for a peer or the store. Peers see a death unless
 * covey_leave() came first. Free the works of the group before. NULL is fine. */
COVEY_API void covey_close(struct covey_group *group);

/* ---- View and events ---------------------------------------------------------------------- */

struct covey_view {
	uint32_t epoch;
	int size; /* 1 + highest rank ever admitted */
	int max_ranks;
	int rank;		   /* own */
	uint64_t incarnation;	   /* own */
	uint64_t base_seq;	   /* operation this view began with */
	uint64_t done_seq;	   /* last operation decided here */
	int active;		   /* 0 while a change is under way */
	struct covey_mask members; /* admitted ranks */
	struct covey_mask pending; /* joiners that wait for covey_admit() */
};

/** covey_view - copies the last view learned here; of a joiner that no view lists yet, the one that it is connected to */
COVEY_API int covey_view(const struct covey_group *group, struct covey_view *view);

enum covey_event_kind {
	COVEY_EVENT_VIEW = 1,	    /* a view became active: left, came */
	COVEY_EVENT_SUSPECT,	    /* rank is suspected: cause */
	COVEY_EVENT_JOIN_REQUESTED, /* rank has a joiner that waits to be asked for */
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

/** covey_event_fd - readable while an event waits; owned by the group */
COVEY_API int covey_event_fd(const struct covey_group *group);

/** covey_event_next - takes the oldest event; COVEY_ERR_AGAIN if there is none. 256 are kept, the oldest are dropped */
COVEY_API int covey_event_next(struct covey_group *group, struct covey_event *event);

/* ---- Outcomes and works ------------------------------------------------------------------- */

/**
 * struct covey_result - the outcome of one operation
 * It is written when the operation is decided, with an error too: then status says which, and mask names no valid data.
 * A call that returns an error before its operation has a number leaves it as it was.
 */
struct covey_result {
	int status;	/* 0 or COVEY_ERR_* */
	uint32_t epoch; /* view it completed in; alike on all survivors */
	uint64_t seq;
	int size;		/* size of the group for this operation */
	struct covey_mask mask; /* contributors; for alltoall(v), dispatch and combine the
				 * sources whose part is valid here */
	uint64_t wait_ns;	/* from call to outcome on this rank */
	size_t bytes;		/* send and recv: what was moved; else 0 */
	int peer, tag;		/* send and recv: the other rank, and the tag of the message; else -1, 0 */
};

/** covey_work_test - 0 when decided (@result may be NULL), COVEY_ERR_AGAIN before */
COVEY_API int covey_work_test(struct covey_work *work, struct covey_result *result);

/** covey_work_wait - as test, after waiting until @deadline_ns (0: none); TIMEOUT ends the wait,
 * not the operation. Returns result->status once decided. */
COVEY_API int covey_work_wait(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result);

/** covey_work_progress - one line on what it waits for, into @text */
COVEY_API int covey_work_progress(const struct covey_work *work, char *text, size_t bytes);

/** covey_work_free - the operation goes on if it is not decided; its buffers must stay alive until it is */
COVEY_API void covey_work_free(struct covey_work *work);

/* ---- Growth and repair of the group ------------------------------------------------------- */

/**
 * covey_admit - the safe point: the only place where ranks are added
 * @state: [bytes] in for members, out for joiners (the lowest member's); alike sized on all, <= 4096
 * @result: mask and size from here to the next covey_admit(); may be NULL
 *
 * Every rank calls it at the same place of its sequence; when nobody waits to come in it costs a
 * store per peer. A joiner's first operation; it blocks until the members come by. It also
 * acknowledges losses under COVEY_ON_LOSS_FAIL.
 * Errors: INVAL, TIMEOUT (joiner, after join_ms), FENCED, CLOSED
 */
COVEY_API int covey_admit(struct covey_group *group, void *state, size_t bytes, struct covey_result *result);

/**
 * covey_admit_async - covey_admit() of a group with a device, that waits for no stream
 * @stream: where operations on device memory are launched; those before this call are done without the newcomers, those
 *          after it with them. A newcomer's stream waits until the others' come by. Not while it is captured
 *
 * Members and newcomers may mix the two. covey_admit() first waits until all that was launched on any stream has ended:
 * TIMEOUT after join_ms, and the next call goes on with that.
 * Errors: as covey_admit(); UNSUPPORTED: a stream, and the group has no device
 */
COVEY_API int covey_admit_async(struct covey_group *group, void *state, size_t bytes, struct CUstream_st *stream,
				struct covey_result *result);

/**
 * covey_recover / covey_extend / covey_retire / covey_evict - ask for a change of the members
 * recover: joiners of @ranks (count @n) may come in; done when all are admitted
 * extend:  joiners of the ranks size..@size-1 may come in; done when all are admitted
 * retire:  a healthy rank leaves once nobody needs its data; evict: a sick one is fenced at once
 * @out:    a work; wait with a deadline; idempotent, any member may ask
 * Errors:  INVAL; REFUSED with a cause in covey_last_error()
 */
COVEY_API int covey_recover(struct covey_group *group, const int *ranks, int n, struct covey_work **out);
COVEY_API int covey_extend(struct covey_group *group, int size, struct covey_work **out);
COVEY_API int covey_retire(struct covey_group *group, int rank, struct covey_work **out);
COVEY_API int covey_evict(struct covey_group *group, int rank, struct covey_work **out);

/* ---- Collectives -------------------------------------------------------------------------- */

enum covey_dtype { /* NCCL's numbers; those that NCCL does not have begin at 12 */
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

/** covey_set_on_loss - for the operations posted from now on; alike on all ranks at the same place.
 * FAIL: an operation whose contributors lack a rank of the last covey_admit() (or join) ends with
 * COVEY_ERR_PEER on all survivors. */
COVEY_API int covey_set_on_loss(struct covey_group *group, int on_loss);

/** covey_explain - which algorithm each operation takes at which size in the present view, and why; a table, then
 * one of forms on device memory where the group has a device; cut to @bytes (8192 is enough). Local. Errors: INVAL,
 * and those of the group */
COVEY_API int covey_explain(struct covey_group *group, char *text, size_t bytes);

/*
 * Argument order and counts are NCCL's. Blocking forms return the status; @result may be NULL.
 * *_start forms return a work. Buffers: any alignment; in place as in NCCL (allreduce,
 * broadcast, reduce: send == recv; allgather, gather: send == recv + rank * count; allgatherv:
 * send == recv + recvdispls[rank]; reduce_scatter, scatter: recv == send + rank * count;
 * alltoall(v): send == recv).
 * Owner: the caller keeps buffers alive and inputs unchanged until the outcome is decided.
 * Floating sums are a left fold in ascending rank, f16 and bf16 accumulated in f32, so bits are
 * alike on all ranks and from run to run. Integers wrap. avg divides the sum by the number of
 * contributors (integers truncate towards zero). min and max of a NaN and a number are the number; a
 * sum or product that is no number is the quiet NaN without payload. Missing blocks of allgather(v),
 * gather and alltoall(v) are zero. @stream is for device memory, below; NULL for host memory.
 * Errors: INVAL, STALE, FENCED, CLOSED, ABORTED, ROOT, PEER, LOST, MISMATCH.
 * INVAL, NOMEM, STALE, UNSUPPORTED from the call itself: it has no number, the others wait for it, @result is as it was.
 * All others: it has its number, and the next call is the next operation (table in docs/errors.md). PEER is alike on all
 * ranks only where masks are.
 * Ranks that make different calls: MISMATCH on all, naming both calls. A broadcast or scatter ends on some ranks
 * without a word of the others: there the next operation that waits for anybody says so, on all (for a root that goes
 * on to broadcast or scatter alone: within 4 slots). What this rank can see is INVAL at once: a root that was never
 * admitted, buffers that overlap but not in place, blocks of recv that stand over each other.
 * A root that is dead: ROOT for all. Of reduce_scatter and scatter a rank may lose its part when
 * another dies: LOST on that rank alone, and recv is not to be used.
 * allgather, alltoall, reduce_scatter, gather, scatter: buffers hold size blocks, size being what the
 * last covey_admit() or join gave.
 */

/** covey_allreduce - recv[i] = op over contributors of send[i]; in place above undo_bytes a death may end it with
 * LOST, alike on all */
COVEY_API int covey_allreduce(const void *send, void *recv, size_t count, int dtype, int redop,
			      struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allreduce_start(const void *send, void *recv, size_t count, int dtype, int redop,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_broadcast - recv = root's send; send is read on @root only */
COVEY_API int covey_broadcast(const void *send, void *recv, size_t count, int dtype, int root,
			      struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_broadcast_start(const void *send, void *recv, size_t count, int dtype, int root,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_allgather - recv [size][count]: block r is rank r's send [count] */
COVEY_API int covey_allgather(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			      struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allgather_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
				    struct CUstream_st *stream, struct covey_work **work);

/** covey_alltoall - send, recv [size][count]: recv block r is block `own rank` of rank r's send */
COVEY_API int covey_alltoall(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
			     struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_alltoall_start(const void *send, void *recv, size_t count, int dtype, struct covey_group *group,
				   struct CUstream_st *stream, struct covey_work **work);

/** covey_alltoallv - counts and displacements [size] in elements, copied at the call; what rank r sends
 * here must equal recvcounts[r], else MISMATCH on this rank's result, and of the own rank INVAL. In place: block r is
 * replaced where it stands (senddispls == recvdispls) */
COVEY_API int covey_alltoallv(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
			      const size_t *recvcounts, const size_t *recvdispls, int dtype, struct covey_group *group,
			      struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_alltoallv_start(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
				    const size_t *recvcounts, const size_t *recvdispls, int dtype,
				    struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_reduce - recv on @root = op over contributors of send; elsewhere recv is not touched, may be NULL.
 * Who is done knows that the root has all contributions. In place (on the root) as allreduce */
COVEY_API int covey_reduce(const void *send, void *recv, size_t count, int dtype, int redop, int root,
			   struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_reduce_start(const void *send, void *recv, size_t count, int dtype, int redop, int root,
				 struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_reduce_scatter - send [size][recvcount], recv [recvcount]: op over contributors of their block `own rank` */
COVEY_API int covey_reduce_scatter(const void *send, void *recv, size_t recvcount, int dtype, int redop,
				   struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_reduce_scatter_start(const void *send, void *recv, size_t recvcount, int dtype, int redop,
					 struct covey_group *group, struct CUstream_st *stream,
					 struct covey_work **work);

/** covey_allgatherv - recv + recvdispls[r] = rank r's send [recvcounts[r]]; recvcounts [size] in elements, alike on all
 * ranks (else MISMATCH), recvdispls [size] in elements, each rank's own; both copied at the call;
 * sendcount == recvcounts[own rank] */
COVEY_API int covey_allgatherv(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
			       const size_t *recvdispls, int dtype, struct covey_group *group,
			       struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_allgatherv_start(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
				     const size_t *recvdispls, int dtype, struct covey_group *group,
				     struct CUstream_st *stream, struct covey_work **work);

/** covey_gather - recv on @root [size][count]: block r is rank r's send [count]; recv may be NULL elsewhere */
COVEY_API int covey_gather(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			   struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_gather_start(const void *send, void *recv, size_t count, int dtype, int root,
				 struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_scatter - recv [count] = block `own rank` of send [size][count] on @root; send may be NULL elsewhere */
COVEY_API int covey_scatter(const void *send, void *recv, size_t count, int dtype, int root, struct covey_group *group,
			    struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_scatter_start(const void *send, void *recv, size_t count, int dtype, int root,
				  struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/** covey_barrier - completes when every member of the view has called it */
COVEY_API int covey_barrier(struct covey_group *group, struct CUstream_st *stream, struct covey_result *result);
COVEY_API int covey_barrier_start(struct covey_group *group, struct CUstream_st *stream, struct covey_work **work);

/* ---- Device memory ------------------------------------------------------------------------ */

/*
 * Of a group that was joined with a device (struct covey_config), buffers may be memory of that device. The call then
 * launches one kernel on @stream (NULL: the legacy default stream) and returns; the outcome is known to the stream.
 * Kernels of yours in it that let the next one begin early (programmatic dependent launch) wait for those before them.
 * One stream at a time per group. Captured graphs stay valid when ranks die, are replaced or added: contributors are
 * read when the kernel runs. Host and device operations are counted apart; when ranks come in covey_admit() waits for
 * what was launched, covey_admit_async() does not. All ranks have a device. In place as for host memory, but for
 * alltoall(v), which is UNSUPPORTED; so are the _start forms. Counts of alltoallv and allgatherv are part of a
 * captured graph: a rank that has come since gets no block there. A rank without bytes passes buffers of the device all
 * the same, or NULL for both and a stream. On a device calls are not compared: ranks that make different ones, or name
 * different roots or counts, are not found.
 * A survivor of a death completes each operation with the same contributors and bytes as all others; in place, an
 * operation above 256 KiB may end with LOST, alike on all.
 */

/** struct covey_device_outcome - of the last operation on the device, as later kernels may read it */
struct covey_device_outcome {
	int32_t status; /* 0 or COVEY_ERR_* */
	uint32_t epoch;
	uint64_t seq;	  /* of the device's operations, from 0 */
	uint64_t mask;	  /* contributors: rank r is bit r */
	uint64_t missing; /* of these, ranks whose part is not here (alltoall, reduce_scatter, gather, scatter,
			   * dispatch, combine): of this rank alone */
};

/** covey_device_outcome_at - address of it in device memory, valid until covey_close() */
COVEY_API int covey_device_outcome_at(struct covey_group *group, const struct covey_device_outcome **out);

/**
 * covey_device_mem_alloc / covey_device_mem_free - device memory of this member's window, 64-byte aligned, that the
 * devices of all peers read as it is. From 16 MiB a block on, allreduce, reduce_scatter, allgather, alltoall and
 * broadcast copy nothing into library memory where the inputs of all ranks lie there at multiples of 16 (with more
 * than two ranks the outputs of allreduce and broadcast, too; in place only allreduce). Each rank may use any part
 * of its window; where one rank's buffer does not lie there, all go by packets. Such an operation ends when all
 * ranks have read.
 * Owner:  covey_device_mem_free(), or covey_close() with all of it. The stream must have passed every operation on
 *         it; then all ranks have read, and the memory may be given out again at once
 * Errors: INVAL; UNSUPPORTED: no device; NOMEM: device_window_bytes is too small
 */
COVEY_API int covey_device_mem_alloc(struct covey_group *group, size_t bytes, void **out);
COVEY_API int covey_device_mem_free(struct covey_group *group, void *memory);

/** covey_device_outcome - copies it to the host, without waiting for the stream */
COVEY_API int covey_device_outcome(struct covey_group *group, struct covey_device_outcome *outcome);

/** struct covey_device_message_outcome - of the first message on the device that failed */
struct covey_device_message_outcome {
	int32_t status; /* 0: none has, or COVEY_ERR_* */
	int32_t peer;	/* -1: none */
	int32_t tag;	/* that its call had */
	int32_t sending;
};

/**
 * covey_device_message_outcome - what became of the messages on the device that have ended since this was called
 * before: the first that failed is kept until it is told here. Reads what is there now: wait for the stream first
 * Errors: INVAL; UNSUPPORTED: no device
 */
COVEY_API int covey_device_message_outcome(struct covey_group *group, struct covey_device_message_outcome *outcome);

/* ---- Messages ----------------------------------------------------------------------------- */

#define COVEY_TAG_ANY (-1) /* of a receive: the next message of that peer, whatever its tag */

/**
 * covey_send / covey_recv - one message from this rank to @peer, or from @peer to this rank
 * @tag:    0 or more; a receive takes the oldest message of @peer with its tag
 * @result: bytes, peer and tag of the message; seq is its number between the two, from 0;
 *          mask: the two ranks
 *
 * Messages of one pair and tag are received in the order in which they were sent. They are not numbered
 * with the collectives and are not part of views: a change of the members is not seen between two
 * survivors, and nothing is lost, doubled or reordered when their connection breaks and comes again.
 * When @peer is removed, what is not complete ends with COVEY_ERR_PEER on this side, messages of it that
 * nobody received are dropped, and the next process with that rank begins anew. A rank that is no member,
 * or has not been admitted at a safe point of this rank yet: COVEY_ERR_PEER at once (of _start: in the work).
 * Any size, zero too; to itself, too. A send that succeeded says that its buffer is free, not that @peer
 * took the message; short ones may be sent before @peer receives, none need to be. A receive for more than
 * was sent succeeds and says how much came; one for less takes what fits, drops the rest and ends with
 * COVEY_ERR_TRUNCATED, the send with success. covey_leave() waits until its messages were received.
 * Threads: any, at any time; then the order is that in which the calls were made.
 * Errors:  INVAL, PEER, TRUNCATED, NOMEM, FENCED, CLOSED, ABORTED
 *
 * With @buf in memory of the group's device (NULL and a stream: no bytes) the call launches a kernel on @stream,
 * which holds up the stream until the message is through, and returns; a group of calls, of one stream, is one
 * launch at its end. Then messages between two ranks match in the order of their calls: a receive whose tag is not
 * that of the next message, or that has too little room for it, writes nothing and ends with MISMATCH, and that
 * message is dropped. Such ends, and PEER, are told by covey_device_message_outcome(), not by @result (bytes and tag
 * there are the call's); a call returns PEER only if it is known then. What a receive that ended with PEER was given
 * may be written in part. In captured graphs a message is for whoever has the rank when the graph is replayed. About
 * 1 MB goes before the receive is there; outside of a group two ranks that first send more to each other wait for
 * ever. To itself: both calls in one group. covey_leave() waits for none. Errors of the launch: INVAL, PEER;
 * UNSUPPORTED: _start, more than 128 in a group, or the peer is on another host
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
 * covey_mem_alloc / covey_mem_free - memory of this member's window, 64-byte aligned, that peers on its host read as it
 * is. allreduce, broadcast, allgather, alltoall, reduce, reduce_scatter and gather copy no input that lies there,
 * whole, not in place, and of half a slot or more (of a block, where there are blocks), where all members are on one
 * host; everywhere else it is memory like any other. Each rank for itself: inputs of some ranks may lie there and
 * those of others not. Such an operation returns when all ranks have read.
 * After an error of the handle (-40 and below) what was an input there stays unchanged until covey_close().
 * Owner:  covey_mem_free(), or covey_close() with all of it. Memory that an operation under way reads or writes is not
 *         taken back: INVAL. What was lent is nobody's when its operation has returned, so free memory is free at once
 * Errors: INVAL; NOMEM: window_bytes is too small, or the space that is free was a handle's and peers may still read
 *         it (covey_ep_destroy): the cause says which. After a barrier they do not
 */
COVEY_API int covey_mem_alloc(struct covey_group *group, size_t bytes, void **out);
COVEY_API int covey_mem_free(struct covey_group *group, void *memory);

/**
 * covey_group_start / covey_group_end - calls between them are one step of this thread
 * Blocking collectives and messages return when they are posted and write @result in covey_group_end(),
 * which waits for all of them, of all groups, and returns the first error, also of a call that was refused. Messages on
 * devices are launched there instead; collectives on devices are when they are called.
 * Buffers and results stay alive until then. They nest. covey_admit(), covey_dispatch() and covey_combine()
 * are refused (dispatch and combine have _send and _recv).
 * Errors:  INVAL: end without start, or start nested more than 64 times; else of the calls
 */
COVEY_API int covey_group_start(void);
COVEY_API int covey_group_end(void);

/* ---- Expert parallelism ------------------------------------------------------------------- */

/* How tokens stand where they arrive, and come back. */
enum covey_ep_preset {
	COVEY_EP_LL = 0, /* rows per (local expert, source), DeepEP's low-latency layout */
	COVEY_EP_COMPACT =
		1 /* a row per (source, token), whatever experts of the rank it names, as DeepEP's normal mode */
};

enum covey_ep_rows_as {
	COVEY_EP_ROWS_BF16 = 0,
	COVEY_EP_ROWS_E4M3 = 1 /* dispatch gives 8-bit floats, with one f32 scale for each 128 elements */
};

enum covey_ep_combine_as {
	COVEY_EP_PER_EXPERT = 0, /* a row for each expert comes back, and is summed in the order of the experts */
	/*
	 * Each rank's rows are summed, k ascending, and rounded, then ranks are added, ascending; the own are not rounded.
	 * On devices one row comes from each rank, and dispatch takes the weights; on host memory the experts' rows come
	 * and are summed in that order: the same bits.
	 */
	COVEY_EP_PER_RANK = 1
};

/*
 * What devices take at most; host memory takes what stands at the fields below. In a group with a device
 * covey_ep_create() warns of a handle that is above, and calls of it on device memory end with UNSUPPORTED. All other
 * limits: docs/limits.md
 */
#define COVEY_DEVICE_MAX_RANKS 32 /* of the group: ranks 0..31, for all operations */
#define COVEY_DEVICE_MAX_TOKENS 16384
#define COVEY_DEVICE_MAX_HIDDEN 8192
#define COVEY_DEVICE_MAX_EXPERTS 1024

struct covey_ep_config {
	size_t size;
	int max_tokens;		 /* T: per rank and dispatch, alike on all: 1..1048576 */
	int hidden;		 /* H: elements of a token: 8..1048576, H * element size a multiple of 16 */
	int top_k;		 /* K: 1..32 */
	int experts;		 /* E: 1..65536, ids 0..E-1 */
	int dtype;		 /* COVEY_BFLOAT16 */
	int preset;		 /* enum covey_ep_preset */
	const int *expert_owner; /* [experts] rank of each, alike on all; NULL: blocks of ceil(E / size) */
	int rows;		 /* enum covey_ep_rows_as */
	int combine;		 /* enum covey_ep_combine_as; nothing to COVEY_EP_COMPACT, which has one row a rank */
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
 * covey_ep_create - lay out one dispatch/combine pair; local, but called in the same order with
 * the same config on all ranks. A joiner does so before its first covey_admit(). When that has returned the handle
 * is laid out for the size that the group has then, without a remap of its own: take covey_ep_local_experts() after
 * it, and covey_ep_rows() and covey_ep_route_bytes(), which before it are those of max_ranks. After a covey_admit()
 * that changed the size all ranks call covey_ep_remap(), the joiner too if the owners are not those of its config.
 * Offsets in the window follow from the order of the calls:
 * a joiner makes and destroys handles as the members did, or they do so together after it was let in
 * Errors: INVAL; of the first call after a joiner's covey_admit(), too: an owner is no rank of the group; NOMEM:
 *         window_bytes is too small, the cause says what it takes
 */
COVEY_API int covey_ep_create(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep **out);

/** covey_ep_remap - new owners of the experts, at a safe point, alike on all; also lays out for the
 * present size of the group. expert_owner [experts]; NULL: blocks. On devices the stream must have passed all
 * operations of the handle, as after covey_admit(): the tables that they read are written with the next call */
COVEY_API int covey_ep_remap(struct covey_ep *ep, const int *expert_owner);

/**
 * covey_ep_destroy - gives the handle and its space back; local, but called in the same order on all ranks, between
 * the creates and destroys of other handles, too. It waits for nobody, and no barrier is needed before it.
 * The space is another handle's at once. Its first operation is published when every member has passed the last
 * operation of the handle that was destroyed; until then it waits, as it would for a slow rank, inside the call or
 * _recv, and a deadline (timeout_ms) begins after that.
 * What was sent and is not received goes on: its buffers stay alive until a later operation of the group has returned.
 * On devices the stream must have passed all operations of the handle; its memory there is freed, which waits for what
 * else runs on the device.
 */
COVEY_API void covey_ep_destroy(struct covey_ep *ep);

/** covey_ep_local_experts - El: how many experts this rank owns; covey_ep_rows: R * T, rows kept for each */
COVEY_API int covey_ep_local_experts(const struct covey_ep *ep);
COVEY_API int covey_ep_rows(const struct covey_ep *ep);

/** covey_ep_route_bytes - what `route` takes on a device, for the present size of the group; 0: not on devices */
COVEY_API size_t covey_ep_route_bytes(const struct covey_ep *ep);

/**
 * struct covey_dispatch_args - Shapes (T = max_tokens, R = size of the group, El = local experts):
 *   x           [num_tokens][hidden], 16-byte aligned or not
 *   experts     [num_tokens][top_k] int32; < 0 or >= experts: skipped. A token that names an expert
 *               twice takes two rows there; past T rows of one source for one expert the rest is skipped
 *   packed_x    [El][R*T][hidden]; rows of expert e are those of source 0, 1, ... without gaps,
 *               tokens ascending; rows past count[e] are untouched
 *   count       [El] int32: rows of each local expert
 *   src_info    [El][R*T] int32: token index on its source
 *   range       [El][R] int64: (count << 32) | first row, for each source
 * With COVEY_EP_ROWS_E4M3 packed_x has bytes, and
 *   packed_scales [El][ceil(hidden / 128)][R*T] f32: an element is its code times the scale of its group
 * With COVEY_EP_COMPACT a token that names any experts of this rank has one row here (none is skipped). Unlike above:
 *   weights     [num_tokens][top_k] f32, needed
 *   packed_x    [R*T][hidden]; rows of source 0, 1, ... without gaps, tokens ascending
 *   packed_scales [R*T][ceil(hidden / 128)]
 *   count       [El] int32: rows that name each local expert
 *   src_info    [R*T] int32
 *   range       [R] int64; rows here are count + first of the last
 *   recv_experts, recv_weights [R*T][top_k] int32, f32: of each row the local experts (0..El-1), in the places where
 *               its token names them, and their weights; -1 and 0 elsewhere
 * A rank without experts needs none of these outputs.
 * On devices (memory of the one that the group was joined with; the call returns at once, the stream has it done):
 *   weights     [num_tokens][top_k] f32, needed with COVEY_EP_PER_RANK
 *   route       covey_ep_route_bytes(), 16-byte aligned, for the combine of these tokens
 * On devices a part that is lost while others have it may leave rows past count[e] overwritten.
 * Where the tokens are, host memory or device:
 *   active_ranks [R] int32 or NULL: ranks with 0 are neither waited for nor sent to; becomes 0 where a deadline passed.
 *               The own entry is not read. On host memory all ranks give it or none does, else MISMATCH; it is read
 *               when the operation is published. A rank that is not sent to is told so, and that source is missing
 *               there. Four operations past a rank that was left out and does not come a rank waits for it, as after
 *               a deadline
 *   waited      [R] uint64 or NULL: what was waited for each source, also in vain, is added: device cycles, on host
 *               memory nanoseconds from the publishing until its part was seen
 */
struct covey_dispatch_args {
	size_t size;
	int num_tokens; /* 0..max_tokens, may differ per rank */
	const void *x;
	const int32_t *experts;
	void *packed_x;
	int32_t *count;
	int32_t *src_info;
	int64_t *range;
	int timeout_ms; /* after it was published, sources that are not here are masked; 0: late_ms; -1: never */
	float *packed_scales;
	const float *weights;
	void *route;
	int32_t *active_ranks;
	uint64_t *waited;
	int32_t *recv_experts;
	float *recv_weights;
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
 * covey_dispatch - send each token to the ranks that hold its experts
 * @args:   read before return; the buffers it names stay alive, inputs unchanged, until the outcome
 * @result: mask = sources whose tokens are here; a missing source has zero rows
 * _send posts and publishes; _recv waits for that one. Between them no other operation of the group
 * completes (later ones queue).
 * With a deadline (timeout_ms, or late_ms of the group) a rank goes on without a source that is not here
 * by then: at most four operations past it, then it waits. All ranks give a deadline or none does,
 * else MISMATCH. A dispatch that fails but is not refused has its place, and so has its combine: without rows, unless
 * some had come. Who was late may find an operation decided without it: status 0, mask empty, no rows.
 * On devices a rank does not wait there: where others end two operations by deadlines while a rank is still in one
 * without, what it has not read is written over, and that rank is FENCED. struct covey_device_outcome tells two things.
 * `epoch` and `mask`, a view and its contributors, are alike on all members, also when views change while deadlines
 * pass. `missing` is of this rank alone: contributors whose rows are not here, for a deadline or a removal. The rows of
 * all other contributors are here, whole.
 * Errors: INVAL, STALE (the group grew since create or remap), FENCED, CLOSED, ABORTED
 */
COVEY_API int covey_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, struct CUstream_st *stream,
			     struct covey_result *result);
COVEY_API int covey_dispatch_send(struct covey_ep *ep, const struct covey_dispatch_args *args,
				  struct CUstream_st *stream);
COVEY_API int covey_dispatch_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result);

/**
 * struct covey_combine_args - out[t] = sum over k of weights[t][k] * y(t, k), in f32, k ascending
 *   y           [El][R*T][hidden]: the experts' results in the rows of packed_x
 *   count, src_info, range: as the dispatch filled them
 *   experts, weights [num_tokens][top_k]: of this rank's tokens; weights f32
 *   out         [num_tokens][hidden]
 *   renormalise: scale by (sum of all valid weights) / (sum of those whose owner took part)
 * active_ranks and waited as of dispatch. On devices: route is what the dispatch of these tokens left (count, src_info
 * and range are not read). y is read where it stands.
 * With COVEY_EP_COMPACT y is [R*T][hidden]: for each row what the experts here make of it in all, weighted. out[t]
 * is the sum over owners, ascending, in f32; weights may be NULL and are read to renormalise.
 */
struct covey_combine_args {
	size_t size;
	int num_tokens;
	int renormalise;
	const void *y;
	const int32_t *count;
	const int32_t *src_info;
	const int64_t *range;
	const int32_t *experts;
	const float *weights;
	void *out;
	int timeout_ms; /* as of dispatch: owners that are not here take no part */
	const void *route;
	int32_t *active_ranks;
	uint64_t *waited;
};

#ifdef __cplusplus
#define COVEY_COMBINE_INIT COVEY_INIT_(covey_combine_args, (void)0)
#else
#define COVEY_COMBINE_INIT \
	{ \
		.size = sizeof(struct covey_combine_args) \
	}
#endif

/** covey_combine - bring the experts' results back; result->mask: owners whose rows took part */
COVEY_API int covey_combine(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream,
			    struct covey_result *result);
COVEY_API int covey_combine_send(struct covey_ep *ep, const struct covey_combine_args *args,
				 struct CUstream_st *stream);
COVEY_API int covey_combine_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result);

/* ---- Operators ---------------------------------------------------------------------------- */

/**
 * covey_admin_call - one request to a group's store from outside (what ep-admin and launchers do)
 * @store, @group: as in covey_config; NULL: the environment
 * @argv:  [argc] `peek`, `ask KIND ARGS`, `prove RANK INC KIND`; see src/membership/store.h
 * @pair:  called for each field of the reply, first with key "status"; on the caller's thread
 * Errors: INVAL, TIMEOUT at @deadline_ns, STORE, AUTH, VERSION; REFUSED: pair "why" says why;
 *         the cause is in covey_last_error(NULL, ...)
 */
COVEY_API int covey_admin_call(const char *store, const char *group, int argc, const char *const *argv,
			       uint64_t deadline_ns, void (*pair)(void *ctx, const char *key, const char *value),
			       void *ctx);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif /* COVEY_H */
