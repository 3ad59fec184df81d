/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatch/combine pair inside the library: its layout and the operations under way. */
#ifndef CVY_EP_H
#define CVY_EP_H

#include "covey_ep.h"
#include "engine.h"
#include "ep_layout.h"
#include "ep_places.h"

struct covey_ep {
	struct covey_group *group;
	struct cvy_ep_shape shape;
	int rank;
	int size;			      /* R of the present layout */
	int el;				      /* local experts */
	int *owner;			      /* [experts][places], -1: no place */
	int waits;			      /* for the size of this joiner's first safe point */
	int *given;			      /* [experts][places] owners to lay out then, NULL: blocks */
	int *local;			      /* [experts][places] index among the own experts, -1: of another rank */
	uint64_t sign;			      /* hash of config, owners and place: the same on all ranks */
	size_t dispatch, combine;	      /* offsets of CVY_SLOTS slots each in every window */
	uint64_t behind;		      /* the last operation whose old data others may still read there */
	uint64_t last;			      /* operation posted last, 0: none */
	int refs;			      /* the handle, and calls that have not ended */
	size_t dispatch_bytes, combine_bytes; /* of one slot */
	struct cvy_op *sent[2];		      /* posted and not received: dispatch, combine */
	int dtype;			      /* enum covey_dtype: of tokens and results */
	int rows_as, combine_as, back_as;
	int lanes;		      /* of calls on devices; 0: as many as pay */
	struct cvy_ep_device *device; /* its state on the group's device, made with the first call there */
};

/* priv of an operation. Arguments are copied at the call; buffers belong to the caller. */
/* Rows of one bin in y. */
struct cvy_ep_own {
	size_t shift; /* to the number of a row in the own run: gives its number in y */
	size_t rows;
};

struct cvy_ep_call {
	struct covey_ep *ep;
	union {
		struct covey_dispatch_args dispatch;
		struct covey_combine_args combine;
	};
	int32_t *active;   /* [size] of the caller, NULL: all are active; 0: not waited for, and sent nothing */
	uint64_t *waited;  /* [size] of the caller, NULL: none */
	uint64_t *ns;	   /* [size] time to add to `waited` at the end */
	uint64_t since_ns; /* when it was published */
	/* dispatch: ranks whose places take tokens; of the view of the last publish or consume */
	struct covey_mask living;
	struct covey_mask seen;	   /* sources that have come, or are not waited for */
	struct covey_mask missing; /* sources or owners whose part is not here; computed by every consume */
	int consumed;		   /* outputs are written; else a repair decided before this rank entered */
	uint32_t *place;	   /* combine [bins of all]: next row of each in its owner's run for this rank */
	uint32_t *rows;		/* combine [bins of all]: rows of each; dispatch, close [bins][size]: of each source */
	struct cvy_ep_run *run; /* combine [size]: run in each owner's slot; count: rows expected from it */
	const uint8_t **from;	/* combine [size]: first row of the run, NULL: owner is missing */
	struct cvy_ep_own *own; /* combine [own bins]: where the own rows for this rank are in y */
	int own_stays;		/* they are summed from there, not from the own slot */
	float *sum, *part;	/* combine [hidden], part: of one owner */
	uint16_t *row;		/* combine [hidden]: part, as it would travel */
};

/*
 * The routing rule that both ends follow: ids outside 0..experts-1 are skipped, and at most T rows of one source enter
 * one bin. Only an expert that one token names twice can exceed that bound.
 */
static inline int cvy_ep_valid(const struct cvy_ep_shape *s, int64_t id)
{
	return id >= 0 && id < s->experts;
}

/* Is it the number of a place? Of one place each they are those of experts. */
static inline int cvy_ep_is_place(const struct cvy_ep_shape *s, int v)
{
	return v >= 0 && v < cvy_ep_all_places(s);
}

/* An id of the caller as it travels, where -1 is skipped. */
static inline int32_t cvy_ep_id_or_none(const struct cvy_ep_shape *s, int64_t id)
{
	return cvy_ep_valid(s, id) ? (int32_t)id : -1;
}

/* Is entry @i of the own tokens, by token then k, masked? @columns of @mask: top_k, or one, that is 0 or 1. */
static inline int cvy_ep_masked(const struct cvy_ep_shape *s, const uint8_t *mask, int columns, size_t i)
{
	return mask && !mask[columns > 1 ? i : i / (size_t)s->top_k];
}

/*
 * ep_special.c: experts that no rank has, with ids from E on. How many there are; a term of the sum call->sum of the own
 * token @t, where @id is one of them.
 */
static inline int64_t cvy_ep_specials(const struct covey_combine_args *a)
{
	return (int64_t)a->zero_experts + a->copy_experts + a->constant_experts;
}

static inline int cvy_ep_is_special(const struct cvy_ep_shape *s, const struct covey_combine_args *a, int64_t id)
{
	return id >= s->experts && id - s->experts < cvy_ep_specials(a);
}

int cvy_ep_check_specials(struct covey_ep *ep, const struct covey_combine_args *a, const struct CUstream_st *stream);
void cvy_ep_add_special(struct cvy_ep_call *call, size_t t, int32_t id, float weight);

/* Bins of the rows here; bins of all ranks; the bin of a place's rows among these. */
static inline int cvy_ep_bins(const struct covey_ep *ep)
{
	return cvy_ep_pack_of(ep->shape.preset)->once ? ep->el > 0 : ep->el;
}

static inline int cvy_ep_all_bins(const struct covey_ep *ep)
{
	return cvy_ep_pack_of(ep->shape.preset)->once ? ep->size : cvy_ep_all_places(&ep->shape);
}

/* Rows of the buffers for each bin, or for all if they stand close; and row @at of @bin in them. */
static inline size_t cvy_ep_bin_rows(const struct covey_ep *ep)
{
	return (size_t)cvy_ep_rows_kept(&ep->shape, ep->size, ep->el);
}

static inline size_t cvy_ep_row_at(const struct covey_ep *ep, int bin, size_t at)
{
	return cvy_ep_pack_of(ep->shape.preset)->close ? at : (size_t)bin * cvy_ep_bin_rows(ep) + at;
}

static inline int cvy_ep_bin(const struct covey_ep *ep, int place)
{
	return cvy_ep_pack_of(ep->shape.preset)->once ? ep->owner[place] : place;
}

/* The place of @expert that takes the tokens of @source, -1: none; @living: struct covey_mask.word. */
static inline int cvy_ep_serves(const struct covey_ep *ep, int expert, int source, const uint64_t *living)
{
	const struct cvy_ep_places t = { ep->owner, cvy_ep_places(&ep->shape), NULL };

	return cvy_ep_place_of(&t, expert, source, living);
}

static inline size_t cvy_ep_dispatch_slot(const struct covey_ep *ep, const struct cvy_op *op)
{
	return ep->dispatch + (size_t)cvy_slot_index(op, 0) * ep->dispatch_bytes;
}

static inline size_t cvy_ep_combine_slot(const struct covey_ep *ep, const struct cvy_op *op)
{
	return ep->combine + (size_t)cvy_slot_index(op, 0) * ep->combine_bytes;
}

static inline int cvy_ep_source_missing(const struct cvy_engine *e, int k)
{
	const struct cvy_site *here = cvy_site(e);

	return here->set.gone[k] || covey_mask_has(&here->lost, here->set.rank[k]);
}

/* R of the last safe point; 0: of a joiner before its first. */
int cvy_ep_group_size(struct cvy_engine *e);
/* Checks @config against the group: @c has its fields, @shape what follows from them and max_ranks. */
int cvy_ep_take_config(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep_config *c,
		       struct cvy_ep_shape *shape);
/* Fills owner[experts][places] for @size ranks. @given: NULL: as cvy_ep_spread(); else it must name ranks of them. */
int cvy_ep_owners(struct covey_group *group, const int *given, const struct cvy_ep_shape *shape, int size, int *owner);

/* INVAL, or @err, with the cause as the group's last error. */
#define cvy_ep_refuse(group, ...) cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0, __VA_ARGS__)
int cvy_ep_fail(struct covey_group *group, int err, const char *cause);
/*
 * An argument struct of another version: a shorter one reads as zero-filled, a longer one must be zero past our fields.
 */
int cvy_ep_take_struct(struct covey_group *group, void *to, size_t known, const void *from, const char *name);
int cvy_ep_settle(
	struct covey_ep *ep); /* lays a joiner's handle out if its group has a size by now; 0, or COVEY_ERR_* */

/* Which of covey_ep.sent. */
enum { CVY_EP_DISPATCHES, CVY_EP_COMBINES };

/* May the call be made, with these arguments? *copy: they, whole. */
int cvy_ep_check_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, const struct CUstream_st *stream,
			  struct covey_dispatch_args *copy);
int cvy_ep_check_combine(struct covey_ep *ep, const struct covey_combine_args *args, const struct CUstream_st *stream,
			 struct covey_combine_args *copy);

/* Parts of the operations that need no engine, and have unit tests. */

/*
 * Copies ids (others than 0..experts-1 become -1) and rows of @args into a slot. Rows that the caller gives in e4m3 are
 * codes, then scales, each where a row of elements would be. Returns what a reader is told: the tokens, and of what kind.
 */
uint64_t cvy_ep_dispatch_write(const struct covey_ep *ep, const struct covey_dispatch_args *args, uint8_t *slot);
/* The word of a slot with a bit, for 64 ranks, for each rank that gets nothing. */
static inline uint64_t *cvy_ep_dispatch_skips(const struct covey_ep *ep, uint8_t *slot, int rank)
{
	return (uint64_t *)(void *)(slot + cvy_ep_dispatch_skips_at(&ep->shape)) + rank / 64;
}
/*
 * Appends the rows of source @src that places here take (call->living) to the outputs. NULL slot, or @told is not what a
 * source may tell: none, returns -1. Where bins stand close, cvy_ep_dispatch_take_all() has counted before.
 */
int cvy_ep_dispatch_take(const struct cvy_ep_call *call, int src, const uint8_t *slot, uint64_t told);
/* The same of all sources, slot[size] and told[size]: also where bins stand close. Adds to call->missing. */
void cvy_ep_dispatch_take_all(struct cvy_ep_call *call, const uint8_t *const *slot, const uint64_t *told);
/* The same of a handle of one place each, where it does not matter who lives; not where bins stand close. */
static inline int cvy_ep_dispatch_read(const struct covey_ep *ep, const struct covey_dispatch_args *args, int src,
				       const uint8_t *slot, uint64_t told)
{
	const struct cvy_ep_call call = { .ep = (struct covey_ep *)(uintptr_t)ep, .dispatch = *args };

	return cvy_ep_dispatch_take(&call, src, slot, told);
}
/* Fills `placed` by call->living: the places that take the own tokens. */
void cvy_ep_dispatch_placed(const struct cvy_ep_call *call);
/* ep_outputs.c: the outputs that follow from those that all sources' reads have given. */
void cvy_ep_dispatch_outputs(const struct covey_ep *ep, const struct covey_dispatch_args *args);
/* Writes run @src of the owner's slot and its rows, from row @first on; returns the next free row. */
uint32_t cvy_ep_combine_write(const struct covey_ep *ep, const struct covey_combine_args *args, int src, uint32_t first,
			      uint8_t *slot);
/* Finds the run of this rank in each owner's slot (slot[rank], NULL: missing), then sums. Fills call->missing. */
void cvy_ep_combine_read(struct cvy_ep_call *call, const uint8_t *const *slot);

/* ---- on devices (ep_device.c) ---- */

enum { CVY_EP_SEND_PHASE = 1, CVY_EP_BOTH_PHASES = 3 };

/* Is memory of a device, which only a group with one can know? */
int cvy_ep_on_device(const struct covey_ep *ep, const void *at);
int cvy_ep_device_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, struct CUstream_st *stream,
			   int phases, struct covey_result *result);
int cvy_ep_device_combine(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream,
			  int phases, struct covey_result *result);
/* The second phase of a send phase on the device. */
#define CVY_EP_NOT_SENT 1 /* there was no send phase */
int cvy_ep_device_receive(struct covey_ep *ep, int combine, struct covey_result *result);
int cvy_ep_settled(const struct covey_ep *ep); /* 0, or why the layout of a joiner's handle does not fit its group */
int cvy_ep_device_sent(const struct covey_ep *ep);
void cvy_ep_device_stale(struct covey_ep *ep); /* owners or size have changed */
void cvy_ep_device_free(struct covey_ep *ep);
/* Does the shape fit devices, in a group of @size ranks? If not, @why names each field that is above its limit. */
int cvy_ep_device_takes(const struct cvy_ep_shape *shape, int size, char *why, size_t bytes);
void cvy_ep_device_warn(const struct covey_ep *ep); /* in a group with a device, if the shape does not fit it */

/* ep_active.c: which ranks take part, and how long each was waited for. */
int cvy_ep_active_open(struct cvy_ep_call *call, int32_t *active, uint64_t *waited); /* 0 or NOMEM */
void cvy_ep_active_begin(struct cvy_engine *e, struct cvy_op *op);		     /* when it is published */
int cvy_ep_left_out(const struct cvy_ep_call *call, int rank);
void cvy_ep_active_look(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
void cvy_ep_active_finish(struct cvy_engine *e, struct cvy_ep_call *call);

void cvy_ep_put(struct covey_ep *ep);	/* drops a reference */
void cvy_ep_release(struct cvy_op *op); /* the release of both kinds */
/* A call with the arrays of a combine beside its arguments; NULL: no memory */
struct cvy_ep_call *cvy_ep_call_new(struct covey_ep *ep, int combine);
void cvy_ep_call_free(struct cvy_ep_call *call);

#endif
