/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey: expert parallelism
 *
 * Dispatch sends tokens to the ranks that own their experts; combine brings the results back and sums them. What
 * covey.h says of operations, buffers and outcomes holds here, too.
 *
 * T = max_tokens, K = top_k, H = hidden, E = experts, R = size of the group, El = experts of this rank.
 *
 * An expert may have several *places*, ranks that hold it: replicas, shared experts and halves are one rule
 * (docs/guide/replicas.md). Place p of expert e has the number e * P + p. Of the n places whose ranks are contributors of
 * the view in which a dispatch is decided, the one with index (source modulo n), ascending by p and not by rank, takes
 * the source's tokens. So all members agree on it, and a death before that decision moves tokens to a living place in
 * the same dispatch.
 *
 *   DeepEP                           here
 *   Buffer                           struct covey_ep
 *   low-latency mode, normal mode    COVEY_EP_LL, COVEY_EP_COMPACT: presets of covey_dispatch() and covey_combine()
 *   handle of a dispatch             `route` on a device; `count`, `src_info` and `range` on host memory
 *   hook, mask buffer                covey_dispatch_recv() and covey_combine_recv(); `active_ranks`
 */
#ifndef COVEY_H
#include <covey.h> /* which includes this one */
#elif !defined(COVEY_EP_H)
#define COVEY_EP_H

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* as in covey.h */
extern "C" {
#endif

/* ---- Presets ------------------------------------------------------------------------------ */

/* The layout of tokens where they arrive, and on the way back. */
enum covey_ep_preset {
	COVEY_EP_LL = 0,      /* default: rows per (local expert, source), DeepEP's low-latency layout */
	COVEY_EP_COMPACT = 1, /* one row per (source, token) for all experts of a rank, as DeepEP's normal mode */
	COVEY_EP_FLAT = 2,    /* the rows of LL, each with its source and entry: `flat` is needed */
	/*
	 * As Ascend's MoeDistributeDispatchV2 and CombineV2: rows of an expert as in LL, but they begin where those of the
	 * expert before end, and each comes with its source, token and k: `triplets` is needed. Two names for one preset: in
	 * the systems that they stand for rows travel differently (docs/reference/presets.md).
	 */
	COVEY_EP_WIN = 3,
	COVEY_EP_MESH = 3,
	/*
	 * The rows of COMPACT, by two hops where a group has several hosts: on devices a token crosses to another host once,
	 * to a rank that passes it on to its neighbours, and one sum of that host comes back. Combine adds in an order that
	 * depends on the hosts (docs/design/ep.md). On host memory it is COMPACT. On devices it takes no deadline, no
	 * active_ranks and no rows or results of integers.
	 */
	COVEY_EP_HT = 4
};

enum covey_ep_rows_as {
	COVEY_EP_ROWS_BF16 = 0, /* default: elements of dtype, also if that is COVEY_FLOAT16 */
	/*
	 * 8-bit floats, with one f32 scale for each 128 elements: with m the largest |x| of these, and 1e-4 at least, a code
	 * is x * (448 / m), rounded to nearest even; the scale is m / 448. A NaN is code 0x7f.
	 */
	COVEY_EP_ROWS_E4M3 = 1,
	/*
	 * Integers, with one f32 scale for a row: with m the largest |x| of the row, a code is x * (127 / m), for int4
	 * x * (7 / m), rounded to nearest even; the scale is m / 127, or m / 7.
	 *
	 *   m                       codes and scale
	 *   below 2^-100, or 0      0, and 0
	 *   infinite, or a NaN      0, and a NaN, so that all elements of the row are NaN
	 */
	COVEY_EP_ROWS_INT8 = 2,
	COVEY_EP_ROWS_INT4 = 3, /* two in a byte: the low four bits are the even element */
	/*
	 * As COVEY_EP_ROWS_E4M3, but the scale is a power of two, the least that is not below m * (1 / 448) in f32; a code is
	 * x / scale. With an infinite m both are as there.
	 */
	COVEY_EP_ROWS_E4M3_POW2 = 4
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
 * warns of a handle above them, and its calls on device memory end with UNSUPPORTED. All limits: docs/reference/limits.md.
 */
#define COVEY_DEVICE_MAX_TOKENS 16384
#define COVEY_DEVICE_MAX_HIDDEN 8192
#define COVEY_DEVICE_MAX_EXPERTS 1024
#define COVEY_DEVICE_MAX_LANES 128

/* ---- Handles ------------------------------------------------------------------------------ */

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

#define COVEY_EP_CONFIG_INIT COVEY_INIT_(covey_ep_config, .dtype = COVEY_BFLOAT16)

/**
 * covey_ep_create - lay out one pair of dispatch and combine
 * @config: the same on all ranks
 *
 * With places above 1 expert_owner is [E][P]: ranks, and -1 at any p where an expert has fewer. Each expert has one
 * place at least, and none twice on a rank. Local experts are numbered by expert. NULL: place 0 is that of the blocks,
 * and place p is on the rank p * max(1, R / P) after it, modulo R; with fewer ranks than places the last ones are -1.
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

#define COVEY_EP_SIZES_INIT COVEY_INIT_(covey_ep_sizes, )

/**
 * covey_ep_sizes - how many bytes a configuration takes, before a handle of it is created
 * @config: as for covey_ep_create(); read before return
 * @ranks:  size of the group to count for, from this rank + 1 to max_ranks. 0: its present size, or max_ranks on a
 *          joiner before its first covey_admit()
 * @out:    initialised with COVEY_EP_SIZES_INIT; written only on success
 *
 * The call is local and takes nothing. Entries of expert_owner are ranks from 0 to @ranks - 1.
 * Errors:  INVAL as of covey_ep_create(), or @ranks is out of range; NOMEM: no memory for the table of owners; FENCED,
 *          CLOSED, ABORTED
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
 * On devices the stream must have passed all operations of the handle. A later handle of the same sizes takes its
 * device memory, which covey_close() frees: cudaFree() waits for all that runs on the device, maybe for a peer.
 */
COVEY_API void covey_ep_destroy(struct covey_ep *ep);

/**
 * covey_ep_local_experts / covey_ep_rows - El, the experts that have a place here, and the rows kept in buffers
 * R * T rows are kept for each expert; with COMPACT for the rank; with WIN R * T * min(K, El) for all experts.
 */
COVEY_API int covey_ep_local_experts(const struct covey_ep *ep);
COVEY_API int covey_ep_rows(const struct covey_ep *ep);

/** covey_ep_route_bytes - bytes of `route` on a device, for the present size of the group; 0: not on devices */
COVEY_API size_t covey_ep_route_bytes(const struct covey_ep *ep);

/* ---- Dispatch ----------------------------------------------------------------------------- */

/**
 * struct covey_dispatch_args - arguments of covey_dispatch(); all buffers are memory of the kind that the stream says
 *
 * FLAT has all that LL has, HT all of COMPACT. WIN has all of LL but what stands beside
 * WIN. N = R * T * min(K, El), the rows of covey_ep_rows(). G, the scales of a row: ceil(H / 128) with e4m3, else 1. A
 * preset without a shape has no such buffer. A rank without experts needs no outputs of rows.
 *
 *   case                                               rows
 *   LL: a token names an expert twice                  two
 *   LL: past T rows of one source for one expert       the rest is skipped
 *   COMPACT: a token names any experts of this rank    one; none is skipped
 *   devices: a part is lost here that others have      rows past count[e] may have been overwritten; WIN: rows past
 *                                                      the last one
 *
 * On devices token_mask takes a launch before the dispatch; fill_tail, placed, and outputs that may be NULL (but flat)
 * take one after it.
 */
struct covey_dispatch_args {
	size_t size;
	int num_tokens; /* 0..max_tokens, may differ per rank */
	int timeout_ms; /* after the publishing; then missing sources are masked; 0 (default): late_ms; -1: never */

	/* Inputs. */
	const void *x; /* [num_tokens][H], any alignment: of the handle's dtype, or with x_scales e4m3 */
	/* [num_tokens][K]; an id < 0 or >= E is skipped (zero, copy and constant experts: combine) */
	const int32_t *experts;
	/* [num_tokens][K]. COMPACT: needed. LL: only for COVEY_EP_PER_RANK on devices, and needed there */
	const float *weights;

	/* Outputs. */
	/*
	 * LL: [El][R*T][H]. WIN: [N][H], the rows of expert e + 1 begin where those of e end. COMPACT: [R*T][H], one
	 * sequence of rows. Rows of an expert are those of source 0, 1, ... without gaps, tokens ascending; rows past
	 * count[e] are untouched. Elements of the handle's dtype; with codes bytes, H in a row, or H / 2 in int4
	 */
	void *packed_x;
	/* Of rows of codes. LL: [El][G][R*T]. WIN: [N][G]. COMPACT: [R*T][G]. An element is its code times its group's scale */
	float *packed_scales;
	/*
	 * [El]. LL, WIN: rows of each local expert. COMPACT: rows that name each local expert; with places above 1 those
	 * that its place here takes
	 */
	int32_t *count;
	int32_t *src_info; /* LL: [El][R*T]. WIN: [N]. COMPACT: [R*T]. Index of the token on its source */
	/*
	 * (count << 32) | first row, for each source. LL: [El][R], first among the rows of the expert. WIN: [El][R], first
	 * among all rows. COMPACT: [R]. COMPACT, WIN: all rows here are count + first of the last source
	 */
	int64_t *range;
	/*
	 * COMPACT: [R*T][K]: for each row the local experts (0..El-1), at the places where its token names them; -1
	 * elsewhere, also where another place takes the entry
	 */
	int32_t *recv_experts;
	float *recv_weights; /* COMPACT: [R*T][K]: their weights; 0 elsewhere */
	/* Devices: covey_ep_route_bytes() of device memory, 16-byte aligned, for the combine of these tokens */
	void *route;

	/* Inputs and outputs, may be NULL. */
	/* [R]: a rank with 0 is neither waited for nor sent to. A passed deadline writes 0. The own entry is not read */
	int32_t *active_ranks;
	/*
	 * [R]: the wait for each source, also in vain, is added: device cycles; on host memory nanoseconds from the
	 * publishing until its part was seen
	 */
	uint64_t *waited;

	/* Inputs, may be NULL or 0; ranks and calls may differ, but for smooth. */
	/*
	 * [num_tokens][ceil(H / 128)]: x has codes in e4m3, which travel as they are: an element is its code times the scale
	 * of its group. Only with COVEY_EP_ROWS_E4M3 and COVEY_EP_ROWS_E4M3_POW2
	 */
	const float *x_scales;
	const int64_t *experts64; /* [num_tokens][K], if experts is NULL; both: INVAL */
	/*
	 * With mask_columns 0 or 1: [num_tokens], a token with 0 takes no part. With mask_columns K: [num_tokens][K], an
	 * entry with 0 is skipped, as if its id were -1. The combine of these tokens gets the same mask
	 */
	const uint8_t *token_mask;
	int mask_columns;
	/*
	 * Not 0: past the last row, up to R*T (LL: of each expert; WIN: up to N), src_info, recv_experts, triplets and flat
	 * are -1 and recv_weights 0. packed_x and packed_scales stay untouched there
	 */
	int fill_tail;
	int expert_tokens_as; /* enum covey_ep_tokens_as; 0: COVEY_EP_TOKENS_COUNTS */
	/* Of expert_tokens: rows of an expert are rounded up to a multiple of it, before they are added. 0: 1. WIN: 0 or 1 */
	int expert_alignment;

	/* Outputs, may be NULL (flat only without FLAT); a rank without experts gets none. */
	/* [El]: rows of each local expert, or their inclusive prefix sums. No row moves, and no other output is rounded */
	int64_t *expert_tokens;
	/*
	 * LL, WIN: [El][R]: inclusive prefix sums of the counts of range, expert by expert: where each run would end if the
	 * rows of all experts stood without gaps; WIN: where it ends. COMPACT: INVAL
	 */
	int32_t *recv_counts;
	/*
	 * (source, token, k) of each row: k is the place of the expert in the token's ids. LL: [El][R*T][3]. WIN: [N][3],
	 * needed. COMPACT: [R*T][3], k is the first place that names an expert of this rank
	 */
	int32_t *triplets;
	int32_t *flat; /* (source, token * K + k) of each row. LL: [El][R*T][2]. WIN: [N][2]. COMPACT: [R*T][2] */
	/*
	 * An input. LL: [E][H], with rows in int8 or int4: an element is multiplied by that of its expert before it becomes a
	 * code. All ranks have the same table, or none has one: else MISMATCH, which calls on device memory do not see. Rows
	 * then travel in 16 bits, once to each rank, and receivers make codes
	 */
	const float *smooth;
	/*
	 * Input and output, 4-byte aligned, all 0 before the call: enum covey_ep_arrived words, then one for each row of
	 * packed_x. LL: [3 + El*R*T]. WIN: [3 + N]. COMPACT: [3 + R*T]. A word becomes COVEY_EP_ARRIVED when what it stands
	 * for can be read, while the dispatch continues: other threads or kernels begin with rows that are here
	 * (covey_device.h: covey_wait_row()). Whoever has read a word may make it 0 for the next dispatch. Where
	 * COVEY_EP_ARRIVED_AGAIN is not 0 once the dispatch has ended, rows were placed anew after some had been announced:
	 * then all is read again from the outputs, and all words are made 0. The words stay alive until
	 * COVEY_EP_ARRIVED_ENDED is told, whatever the outcome is; a call that is refused writes none
	 */
	uint32_t *arrived;
	/*
	 * An output, also of a rank without experts. [num_tokens][K]: the place that takes the entry, e * P + p; -1: its id is
	 * skipped, or no place of the expert lives; on devices also an entry past T rows of one expert, and with one place
	 * each the id, whoever lives. Needed on host memory with places above 1. Written with each outcome, also one of an
	 * error unless the group has ended. Of a dispatch that was decided without this late rank: by who is a member when
	 * this rank learns so
	 */
	int32_t *placed;
};

#define COVEY_DISPATCH_INIT COVEY_INIT_(covey_dispatch_args, )

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
 * active_ranks on host memory: all ranks give it or none does, else MISMATCH. It is read when the operation is
 * published. Leaving out is a matter of two: a rank that is not sent to learns so, and misses that source; all others
 * exchange tokens with both, also if a rank dies. Without a deadline the view after such a death is active when each rank
 * that some left out and others did not has called the operation, or is removed. If a rank that was left out stays away,
 * others wait for it after four more operations, as after a deadline. If it has not called the operation when the view
 * changes, and every other member has decided it or this rank retires, its outcome is that of a late rank (below). With
 * a deadline a change of the view may end the operation for all others as it ended for a rank that left somebody out.
 *
 *   a dispatch                        its number   its combine                                      outcome
 *   is refused                        not taken    is not called                                    none
 *   fails                             taken        is called, with the rows that came, or none      an error; that of
 *                                                                                                   the combine is its
 *                                                                                                   own, also 0
 *   was decided without this late     taken        is called                                        0, mask empty,
 *   rank                                                                                            no rows
 *
 * After a dispatch that failed, `count` and `range` are of rows that it has placed, also of other sources than
 * result->mask names, or of none: the combine takes them, but its `out` is no result even if it ends with 0. The caller
 * does the pair again. On devices, if the dispatch ended with the group (FENCED, CLOSED, ABORTED), they are 0, or of rows
 * that were announced and may not be there.
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

/* ---- Combine ------------------------------------------------------------------------------ */

/** struct covey_combine_args - arguments of covey_combine(); buffers and presets as in struct covey_dispatch_args */
struct covey_combine_args {
	size_t size;
	int num_tokens;
	int timeout_ms; /* as of dispatch: owners that are not here take no part */
	/*
	 * Not 0: the sum of a token is multiplied by (sum of all valid weights) / (sum of those whose owner took part), in
	 * f32, before it is rounded; by 1 if the latter is 0
	 */
	int renormalise;

	/* Inputs. */
	/*
	 * The experts' results, of the handle's dtype, in the rows of packed_x; devices read them in place. LL: [El][R*T][H].
	 * WIN: [N][H]. COMPACT: [R*T][H]: for each row the weighted sum of the experts here. May be NULL if no row came; rows
	 * past the last one are not read, so a shorter buffer will do. On devices the call does not see how many rows came
	 */
	const void *y;
	const int32_t *experts; /* [num_tokens][K], of this rank's tokens; on devices not read */
	const float *weights;	/* [num_tokens][K]. COMPACT: may be NULL, is read only to renormalise */

	/* Inputs that the dispatch of these tokens wrote. */
	const int32_t *count; /* this and the next two: on devices not read */
	const int32_t *src_info;
	const int64_t *range;
	const void *route; /* devices */

	/*
	 * Output, [num_tokens][H], of the handle's dtype. LL: out[t] = sum over k of weights[t][k] * y(t, k), in f32, k
	 * ascending. COMPACT: out[t] = sum over owners, ascending, in f32. Each sum is rounded to nearest even. Past the
	 * largest number it is an infinity; a NaN is 0x7fff
	 */
	void *out;

	/* Inputs and outputs, may be NULL: as of dispatch. */
	int32_t *active_ranks;
	uint64_t *waited;

	/* Inputs, may be NULL or 0. */
	const int64_t *experts64; /* as experts, if that is NULL; both: INVAL. The dispatch may have had the other type */
	/*
	 * As the dispatch of these tokens had it, with mask_columns; on devices not read. A masked entry adds nothing, and its
	 * weight is not valid; a token without an entry left is a row of zeros
	 */
	const uint8_t *token_mask;
	int mask_columns;
	/*
	 * LL: [El]. Each result is multiplied by that of its expert. The row is rounded after it, also one that stays here; in
	 * codes it is not rounded before. On devices with COVEY_EP_PER_RANK the factor multiplies the weight instead. Ranks
	 * and calls may differ. COMPACT, WIN: INVAL
	 */
	const float *expert_scale;
	/*
	 * With places above 1: as the dispatch of these tokens wrote it, else INVAL; an entry of -1 adds nothing. With one
	 * place each, and on devices, not read
	 */
	const int32_t *placed;

	/* Experts without a rank; on devices NULL and 0, else UNSUPPORTED; ranks and calls may differ. */
	const void *x; /* [num_tokens][H], of the handle's dtype, any alignment: needed with copy or constant experts */
	/*
	 * How many ids from E on are of each kind, in this order. Nothing travels for them. A zero expert gives 0, a copy
	 * expert the token x, constant expert j a1[j] * x + a2[j] * v[j]. The term is added in f32 with the weight of its
	 * entry: with COVEY_EP_PER_EXPERT at its k, else after the owners' sums, k ascending. The weight is valid, and its
	 * owner took part (renormalise). COMPACT: weights are needed. Ids past them are skipped
	 */
	int zero_experts, copy_experts, constant_experts;
	const float *constant_a1, *constant_a2; /* [constant_experts] */
	const float *constant_v;		/* [constant_experts][H] */

	/* [num_tokens][H], may be NULL: each sum begins with it, and renormalise multiplies it, too. On devices UNSUPPORTED */
	const float *bias;
};

#define COVEY_COMBINE_INIT COVEY_INIT_(covey_combine_args, )

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

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

#endif /* COVEY_EP_H */
