/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine on the group's device: turns the arguments of a call into those of a launch. A handle's state
 * there (tables of owners, a few words per lane) is made with its first call and follows its layout; rows travel
 * through the chunks that all operations use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "device_explain.h"
#include "ep.h"
#include "ep_call.h"
#include "ep_outputs.h"
#include "handle.h"
#include "log.h"

struct cvy_ep_device {
	struct cvy_ep_state *state;
	int laid_out;		     /* state follows the present owners */
	struct cvy_ep_form form[3];  /* dispatch, combine, dispatch with smooth */
	struct cvy_ep_args sent;     /* the send phase that was not received; phases 0: none */
	struct cvy_ep_beside beside; /* of the last call */
	struct CUstream_st *stream;
};

int cvy_ep_on_device(const struct covey_ep *ep, const void *at)
{
	return cvy_device_holds(ep->group->device, at);
}

static int back_of(const struct covey_ep *ep)
{
	return ep->back_as == COVEY_EP_BACK_INT8 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS;
}

static struct cvy_ep_shape_gpu shape_of(const struct covey_ep *ep)
{
	struct cvy_ep_shape_gpu s = { ep->shape.tokens,
				      ep->shape.hidden,
				      ep->shape.top_k,
				      cvy_ep_all_places(&ep->shape),
				      ep->size,
				      ep->rows_as,
				      ep->combine_as == COVEY_EP_PER_RANK,
				      0,
				      cvy_ep_pack_of(ep->shape.preset)->once,
				      ep->shape.max_ranks < CVY_GPU_RANKS ? ep->shape.max_ranks : CVY_GPU_RANKS,
				      back_of(ep),
				      0,
				      cvy_ep_pack_of(ep->shape.preset)->close,
				      cvy_ep_pack_of(ep->shape.preset)->hops };
	int of[CVY_GPU_RANKS] = { 0 };

	for (int e = 0; e < s.experts; e++)
		if (ep->owner[e] >= 0 && ++of[ep->owner[e]] > s.most_local)
			s.most_local = of[ep->owner[e]];
	return s;
}

_Static_assert(COVEY_DEVICE_MAX_TOKENS == CVY_EP_TOKENS && COVEY_DEVICE_MAX_HIDDEN == CVY_EP_HIDDEN &&
		       COVEY_DEVICE_MAX_EXPERTS == CVY_EP_EXPERTS &&
		       (CVY_GPU_IS_WIDE ||
			(COVEY_DEVICE_MAX_RANKS == CVY_GPU_RANKS && COVEY_DEVICE_MAX_LANES == CVY_GPU_LANES)),
	       "covey.h says what kernels take");

int cvy_ep_device_takes(const struct cvy_ep_shape *s, int size, char *why, size_t bytes)
{
	const struct {
		const char *name;
		int value, most;
	} limits[] = { { "the ranks of the group", size, CVY_GPU_RANKS },
		       { "max_tokens", s->tokens, CVY_EP_TOKENS },
		       { "hidden", s->hidden, CVY_EP_HIDDEN },
		       { s->places > 1 ? "experts * places" : "experts", cvy_ep_all_places(s), CVY_EP_EXPERTS } };
	size_t used = 0;

	why[0] = '\0';
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		if (limits[i].value > limits[i].most && used < bytes)
			used += (size_t)snprintf(why + used, bytes - used, "%s%s: %d, at most %d", used ? "; " : "",
						 limits[i].name, limits[i].value, limits[i].most);
	return !used;
}

/* Logged early, and no error: the handle may be meant for host memory. A joiner does not know the size yet. */
void cvy_ep_device_warn(const struct covey_ep *ep)
{
	char why[160];

	if (ep->group->device && !ep->waits && !cvy_ep_device_takes(&ep->shape, ep->size, why, sizeof(why)))
		cvy_warn("ep", "covey_ep_create: calls on device memory will be refused, as devices do not take %s",
			 why);
}

static int check_shape(const struct covey_ep *ep)
{
	char why[160];

	if (cvy_ep_device_takes(&ep->shape, ep->size, why, sizeof(why)))
		return 0;
	return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_UNSUPPORTED, -1, 0, "devices do not take %s", why);
}

static void tables_of(const struct covey_ep *ep, struct cvy_ep_tables *t)
{
	int at = 0;

	memset(t, 0, sizeof(*t));
	memset(t->owner, 0xff, sizeof(t->owner)); /* CVY_EP_NOBODY */
	for (int r = 0; r < ep->size; r++) {
		t->first[r] = (uint16_t)at;
		for (int e = 0; e < cvy_ep_all_places(&ep->shape); e++) {
			if (ep->owner[e] != r)
				continue;
			t->owner[e] = (uint8_t)r;
			t->local[e] = (uint16_t)(at++ - t->first[r]);
		}
		t->first[r + 1] = (uint16_t)at;
	}
}

static void tell_forms(const struct cvy_ep_shape_gpu *shape, const struct cvy_ep_form form[2])
{
	char text[2][80];

	for (int combine = 0; combine < 2; combine++)
		cvy_device_ep_form(shape, combine, &form[combine], text[combine], sizeof(text[combine]));
	cvy_debug("ep", "a handle of max_tokens %d in %d lanes: dispatch %s; combine %s", shape->tokens, form->lanes,
		  text[0], text[1]);
}

/* Bytes behind the state; with 0 lanes, before it is laid out, there is no state. */
static size_t behind(const struct covey_ep *ep)
{
	return (size_t)ep->device->form[0].lanes * sizeof(int32_t) *
	       cvy_ep_placed_words(ep->shape.tokens, ep->shape.top_k, cvy_ep_places(&ep->shape));
}

static int lay_out(struct covey_ep *ep)
{
	struct cvy_ep_device *x = ep->device;
	struct cvy_ep_shape_gpu shape;
	struct cvy_ep_tables *tables;
	int err = check_shape(ep), lanes;

	if (err || (x && x->laid_out))
		return err;
	if (!x)
		x = ep->device = calloc(1, sizeof(*x));
	tables = malloc(sizeof(*tables));
	if (!x || !tables) {
		free(tables);
		return cvy_ep_fail(ep->group, COVEY_ERR_NOMEM, "no memory for the handle");
	}
	shape = shape_of(ep);
	lanes = ep->lanes ? ep->lanes : cvy_ep_lanes_of(&shape);
	if (lanes > CVY_GPU_LANES) /* a build for more ranks has fewer */
		lanes = CVY_GPU_LANES;
	if (!cvy_ep_form_of(&shape, lanes, 0, &x->form[0]) || !cvy_ep_form_of(&shape, lanes, 1, &x->form[1]))
		err = cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_UNSUPPORTED, -1, 0,
			       "devices do not take rows of hidden %d for top_k %d, with %d experts on one rank",
			       shape.hidden, shape.top_k, shape.most_local);
	if (!err && cvy_ep_in_ints(shape.code) && !shape.once) {
		shape.whole = 1;
		if (!cvy_ep_form_of(&shape, lanes, 0, &x->form[2]))
			err = cvy_ep_fail(ep->group, COVEY_ERR_UNSUPPORTED,
					  "devices do not take rows of this handle with smooth");
		shape.whole = 0;
	}
	tables_of(ep, tables);
	if (!err)
		tell_forms(&shape, x->form);
	if (!err)
		err = cvy_device_ep_state(ep->group->device, tables, behind(ep), &x->state);
	x->laid_out = !err;
	free(tables);
	return err;
}

void cvy_ep_device_stale(struct covey_ep *ep)
{
	if (ep->device)
		ep->device->laid_out = 0;
}

void cvy_ep_device_free(struct covey_ep *ep)
{
	if (ep->device)
		cvy_device_ep_free(ep->group->device, ep->device->state, behind(ep));
	free(ep->device);
	ep->device = NULL;
}

int cvy_ep_device_sent(const struct covey_ep *ep)
{
	return ep->device && ep->device->sent.phases;
}

COVEY_API size_t covey_ep_route_bytes(const struct covey_ep *ep)
{
	if (!ep || !ep->group->device || cvy_ep_settled(ep))
		return 0;
	return cvy_ep_route_bytes(ep->size, ep->shape.tokens, ep->shape.top_k, cvy_ep_places(&ep->shape));
}

/* Fills the fields of both kinds. The route: a head, rows, their weights, the own tokens' experts. */
static void fill(const struct covey_ep *ep, struct cvy_ep_args *a, int combine, uint8_t *route, int num_tokens)
{
	const struct cvy_ep_pack *pack = cvy_ep_pack_of(ep->shape.preset);
	size_t items = cvy_ep_route_items(ep->size, ep->shape.tokens, ep->shape.top_k);

	memset(a, 0, sizeof(*a));
	memset(&ep->device->beside, 0, sizeof(ep->device->beside));
	a->call.kind = combine ? CVY_GPU_COMBINE : CVY_GPU_DISPATCH;
	a->call.size = ep->size;
	a->form = ep->device->form[combine];
	a->state = ep->device->state;
	a->tokens = ep->shape.tokens;
	a->hidden = ep->shape.hidden;
	a->top_k = ep->shape.top_k;
	a->experts = cvy_ep_all_places(&ep->shape);
	a->el = combine && pack->close && ep->el > a->top_k ? a->top_k : ep->el; /* a combine asks for its rows alone */
	a->num_tokens = num_tokens;
	a->code = ep->rows_as;
	if (combine)
		a->back = back_of(ep);
	else
		a->close = pack->close;
	a->fp16 = ep->dtype == COVEY_FLOAT16;
	a->once = pack->once;
	a->hops = pack->hops;
	a->per_rank = a->once || ep->combine_as == COVEY_EP_PER_RANK;
	a->lost = (cvy_ranks *)(void *)route;
	a->route = (int32_t *)(void *)(route + CVY_EP_ROUTE_HEAD);
	a->route_weights = (float *)(void *)(a->route + items);
	a->sent = a->route + 2 * items;
}

/*
 * With a mask the dispatch reads the ids that are left in the route: where it writes what it sent. With several places it
 * writes these and no ids, so the ids are behind them.
 */
static void fill_masking(const struct covey_ep *ep, const struct covey_dispatch_args *args, struct cvy_ep_args *a)
{
	struct cvy_ep_masking *m = &ep->device->beside.masking;

	if (!args->token_mask)
		return;
	m->mask = args->token_mask;
	m->columns = args->mask_columns;
	m->ids = args->experts;
	m->ids64 = args->experts64;
	m->to = a->sent + (cvy_ep_places(&ep->shape) > 1 ? (size_t)ep->shape.tokens * (size_t)ep->shape.top_k : 0);
	m->num_tokens = args->num_tokens;
	m->top_k = ep->shape.top_k;
	a->ids = m->to;
	a->ids64 = NULL;
}

static void fill_outputs(const struct covey_ep *ep, const struct covey_dispatch_args *args, const struct cvy_ep_args *a)
{
	struct cvy_ep_outputs *o = &ep->device->beside.outputs;

	o->count = args->count;
	o->route = a->route;
	o->range = args->range;
	o->sent = a->sent;
	o->placed = args->placed;
	o->num_tokens = args->num_tokens;
	o->expert_tokens = args->expert_tokens;
	o->recv_counts = args->recv_counts;
	o->triplets = args->triplets;
	o->flat = args->flat;
	o->src_info = args->src_info;
	o->recv_experts = args->recv_experts;
	o->recv_weights = args->recv_weights;
	o->size = ep->size;
	o->tokens = ep->shape.tokens;
	o->top_k = ep->shape.top_k;
	o->el = ep->el;
	o->once = a->once;
	o->kept = a->close ? (int)cvy_ep_bin_rows(ep) : 0;
	o->fill_tail = args->fill_tail != 0;
	o->sums = args->expert_tokens_as == COVEY_EP_TOKENS_SUMS;
	o->alignment = args->expert_alignment > 1 ? args->expert_alignment : 1;
}

/* What two hops cannot do: a deadline cannot tell who of a path is late, and forwarders add elements alone. */
static int check_hops(struct covey_ep *ep, int timeout_ms, const int32_t *active)
{
	const int ms = timeout_ms ? timeout_ms : cvy_engine_late_ms(cvy_handle_engine(ep->group));

	if (!cvy_ep_pack_of(ep->shape.preset)->hops)
		return 0;
	if (CVY_GPU_IS_WIDE)
		return cvy_ep_fail(ep->group, COVEY_ERR_UNSUPPORTED,
				   "COVEY_EP_HT is not in a library for more than 32 ranks: lay the handle out with "
				   "COVEY_EP_COMPACT, or take one that is built with COVEY_DEVICE_RANKS=32");
	if (ms > 0)
		return cvy_fail(
			cvy_handle_box(ep->group), COVEY_ERR_UNSUPPORTED, -1, 0,
			"COVEY_EP_HT has no deadlines on devices, and this call has one of %d ms: give timeout_ms "
			"-1, or lay the handle out with COVEY_EP_COMPACT",
			ms);
	if (active)
		return cvy_ep_fail(
			ep->group, COVEY_ERR_UNSUPPORTED,
			"COVEY_EP_HT does not take active_ranks on devices: give NULL, or lay the handle out "
			"with COVEY_EP_COMPACT");
	if (cvy_ep_in_ints(ep->rows_as) || back_of(ep) != CVY_EP_AS_IS)
		return cvy_ep_fail(ep->group, COVEY_ERR_UNSUPPORTED,
				   "COVEY_EP_HT has no rows or results of integers on devices: lay the handle out with "
				   "COVEY_EP_ROWS_BF16 or COVEY_EP_ROWS_E4M3 and COVEY_EP_BACK_PLAIN, or with "
				   "COVEY_EP_COMPACT");
	return 0;
}

static int ready(struct covey_ep *ep, const void *route, int timeout_ms, const int32_t *active)
{
	int err;

	if (cvy_device_holds(ep->group->device, route) != 1 || (uintptr_t)route % 16)
		return cvy_ep_refuse(ep->group,
				     "route must be covey_ep_route_bytes() of the group's device, 16-byte aligned");
	if (timeout_ms < -1)
		return cvy_ep_refuse(ep->group, "timeout_ms must be -1 or more");
	if (cvy_ep_device_sent(ep))
		return cvy_ep_refuse(ep->group, "the one sent before was not received");
	err = check_hops(ep, timeout_ms, active);
	return err ? err : lay_out(ep);
}

static int launch(struct covey_ep *ep, struct cvy_ep_args *a, struct CUstream_st *stream, int phases, int timeout_ms,
		  struct covey_result *result)
{
	int late_ms = cvy_engine_late_ms(cvy_handle_engine(ep->group)), err;

	a->phases = phases;
	a->timeout_ms = timeout_ms ? timeout_ms : late_ms;
	err = cvy_device_ep_run(ep->group->device, a, &ep->device->beside, stream, result);
	if (err || phases != CVY_EP_SEND)
		return err;
	ep->device->sent = *a;
	ep->device->stream = stream;
	return 0;
}

int cvy_ep_device_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, struct CUstream_st *stream,
			   int phases, struct covey_result *result)
{
	int err = ready(ep, args->route, args->timeout_ms, args->active_ranks);
	struct cvy_ep_args a;

	if (!err && ep->combine_as == COVEY_EP_PER_RANK && args->num_tokens && !args->weights)
		err = cvy_ep_refuse(ep->group, "weights must not be NULL where combine sums per rank");
	if (err)
		return err;
	fill(ep, &a, 0, args->route, args->num_tokens);
	a.x = args->x;
	a.x_scales = args->x_scales;
	a.smooth = args->smooth;
	if (a.smooth)
		a.form = ep->device->form[2];
	a.ids = args->experts;
	a.ids64 = args->experts64;
	a.weights = args->weights;
	a.packed = args->packed_x;
	a.scales = args->packed_scales;
	a.count = args->count;
	a.src_info = args->src_info;
	a.range = args->range;
	a.recv_experts = args->recv_experts;
	a.recv_weights = args->recv_weights;
	a.active = args->active_ranks;
	a.waited = args->waited;
	a.places = cvy_ep_places(&ep->shape);
	a.flat = args->flat;
	a.arrived = ep->el ? args->arrived : NULL;
	fill_masking(ep, args, &a);
	fill_outputs(ep, args, &a);
	return launch(ep, &a, stream, phases, args->timeout_ms, result);
}

int cvy_ep_device_combine(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream,
			  int phases, struct covey_result *result)
{
	int err = ready(ep, args->route, args->timeout_ms, args->active_ranks);
	struct cvy_ep_args a;

	if (err)
		return err;
	fill(ep, &a, 1, (uint8_t *)(uintptr_t)args->route, args->num_tokens); /* not written */
	a.y = args->y;
	a.out = args->out;
	a.weights = args->weights;
	a.renormalise = args->renormalise;
	a.expert_scale = args->expert_scale;
	a.active = args->active_ranks;
	a.waited = args->waited;
	return launch(ep, &a, stream, phases, args->timeout_ms, result);
}

int cvy_ep_device_receive(struct covey_ep *ep, int combine, struct covey_result *result)
{
	struct cvy_ep_args a;
	int err;

	if (!cvy_ep_device_sent(ep) || (ep->device->sent.call.kind == CVY_GPU_COMBINE) != combine)
		return CVY_EP_NOT_SENT;
	a = ep->device->sent;
	a.phases = CVY_EP_RECV;
	err = cvy_handle_check(ep->group);
	if (!err)
		err = cvy_device_ep_run(ep->group->device, &a, &ep->device->beside, ep->device->stream, result);
	if (!err)
		ep->device->sent.phases = 0;
	return err;
}
