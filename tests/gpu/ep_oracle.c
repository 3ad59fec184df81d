/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine by the host engine's own functions, without an engine (ep_oracle.h). */
#include "ep_oracle.h"

#include <stdlib.h>
#include <string.h>

#include "ep.h"
#include "ep_hops.h"
#include "ep_quant.h"
#include "mask.h"
#include "reduce.h"

static void *need(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		abort();
	return p;
}

static int all_places(const struct oracle *o)
{
	return o->experts * (o->places > 1 ? o->places : 1);
}

static struct covey_ep *handle(const struct oracle *o, int rank)
{
	struct covey_ep *ep = need(sizeof(*ep));
	const int of_experts = o->per_rank && !cvy_ep_pack_of(o->preset)->once; /* sums become codes, and not these */

	ep->shape = (struct cvy_ep_shape){
		o->tokens, o->hidden, o->top_k, o->experts, o->size, o->preset, of_experts ? CVY_EP_AS_IS : o->back, 0
	};
	ep->dtype = o->dtype;
	ep->rank = rank;
	ep->size = o->size;
	ep->shape.places = o->places;
	ep->owner = need((size_t)all_places(o) * sizeof(int));
	memcpy(ep->owner, o->owner, (size_t)all_places(o) * sizeof(int));
	ep->local = need((size_t)all_places(o) * sizeof(int));
	ep->el = cvy_ep_locals(all_places(o), o->owner, rank, ep->local);
	return ep;
}

static void put_back(struct covey_ep *ep)
{
	free(ep->owner);
	free(ep->local);
	free(ep);
}

int oracle_local(const struct oracle *o, int rank)
{
	struct covey_ep *ep = handle(o, rank);
	int el = ep->el;

	put_back(ep);
	return el;
}

static int has(const struct oracle *o, int rank)
{
	return o->members >> rank & 1;
}

static struct covey_dispatch_args dispatch_args(const struct oracle *o, const struct oracle_rank *r)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

	a.num_tokens = r->num_tokens;
	a.x = r->x;
	a.x_scales = r->x_scales;
	a.smooth = r->smooth;
	a.experts = r->ids;
	a.weights = r->weights;
	a.recv_experts = r->recv_experts;
	a.recv_weights = r->recv_weights;
	a.packed_x = r->codes ? (void *)r->codes : (void *)r->packed;
	a.packed_scales = r->scales;
	a.count = r->count;
	a.src_info = r->src_info;
	a.range = r->range;
	a.token_mask = r->mask;
	a.mask_columns = o->mask_columns;
	a.fill_tail = o->fill_tail;
	a.expert_tokens = r->expert_tokens;
	a.expert_tokens_as = o->sums ? COVEY_EP_TOKENS_SUMS : COVEY_EP_TOKENS_COUNTS;
	a.expert_alignment = o->alignment;
	a.recv_counts = r->recv_counts;
	a.triplets = r->triplets;
	a.flat = r->flat;
	return a;
}

static struct covey_mask living(const struct oracle *o)
{
	struct covey_mask m = { .word = { o->living ? o->living : o->members } };

	return m;
}

void oracle_dispatch(const struct oracle *o, int rank)
{
	const struct oracle_rank *r = &o->rank[rank];
	struct covey_ep *ep = handle(o, rank);
	struct cvy_ep_call *call = cvy_ep_call_new(ep, 0);
	const uint8_t *slot[ORACLE_RANKS] = { NULL };
	uint8_t *slots[ORACLE_RANKS] = { NULL };
	uint64_t told[ORACLE_RANKS] = { 0 };

	ep->rows_as = o->code;
	memset(r->count, 0, (size_t)ep->el * sizeof(int32_t));
	call->dispatch = dispatch_args(o, r);
	call->dispatch.placed = r->placed;
	call->living = living(o);
	for (int s = 0; s < o->size; s++) {
		struct covey_dispatch_args from = dispatch_args(o, &o->rank[s]);

		if (!has(o, s))
			continue;
		slot[s] = slots[s] = need(cvy_ep_dispatch_bytes(&ep->shape));
		told[s] = cvy_ep_dispatch_write(ep, &from, slots[s]);
	}
	cvy_ep_dispatch_take_all(call, slot, told);
	cvy_ep_dispatch_placed(call);
	cvy_ep_dispatch_outputs(ep, &call->dispatch);
	cvy_ep_call_free(call);
	for (int s = 0; s < o->size; s++)
		free(slots[s]);
	put_back(ep);
}

static struct covey_combine_args combine_args(const struct oracle *o, const struct oracle_rank *r)
{
	struct covey_combine_args a = COVEY_COMBINE_INIT;

	a.num_tokens = r->num_tokens;
	a.renormalise = o->renormalise;
	a.y = r->y;
	a.count = r->count;
	a.src_info = r->src_info;
	a.range = r->range;
	a.experts = r->ids;
	a.token_mask = r->mask;
	a.mask_columns = o->mask_columns;
	a.weights = r->weights;
	a.out = r->out;
	a.expert_scale = o->per_rank && !cvy_ep_pack_of(o->preset)->once ? NULL : r->expert_scale;
	return a;
}

/* The places that take the own tokens of @rank: [num_tokens][top_k]. */
static int32_t *places_of(const struct oracle *o, int rank)
{
	const struct oracle_rank *r = &o->rank[rank];
	struct covey_ep *ep = handle(o, rank);
	struct cvy_ep_call call = { .ep = ep, .dispatch = dispatch_args(o, r), .living = living(o) };

	call.dispatch.placed = need((size_t)r->num_tokens * (size_t)o->top_k * sizeof(int32_t));
	cvy_ep_dispatch_placed(&call);
	put_back(ep);
	return call.dispatch.placed;
}

/* Row of @rank's token for place @id at its owner, NULL: not there. @used: rows of each place until now. */
static const uint16_t *result_of(const struct oracle *o, int rank, int32_t id, uint32_t *used)
{
	const struct oracle_rank *owner = &o->rank[o->owner[id]];
	uint32_t nth = used[id]++;
	struct covey_ep *ep;
	size_t first;
	int64_t range;

	if (nth >= (uint32_t)o->tokens || !has(o, o->owner[id]))
		return NULL;
	ep = handle(o, o->owner[id]);
	range = owner->range[(size_t)ep->local[id] * (size_t)o->size + (size_t)rank];
	first = cvy_ep_row_at(ep, ep->local[id], cvy_ep_range_first(range));
	put_back(ep);
	if (nth >= cvy_ep_range_count(range))
		return NULL;
	return owner->y + (first + nth) * (size_t)o->hidden;
}

static float wide(const struct oracle *o, uint16_t half)
{
	return o->dtype == COVEY_FLOAT16 ? cvy_f16_f32(half) : cvy_bf16_f32(half);
}

static uint16_t narrow(const struct oracle *o, float v)
{
	if (v != v)
		return 0x7fff;
	return o->dtype == COVEY_FLOAT16 ? cvy_f32_f16(v) : cvy_f32_bf16(v);
}

/* By what a row of expert @id is multiplied where its owner sums. */
static float factor(const struct oracle *o, int32_t id)
{
	const struct oracle_rank *owner = &o->rank[o->owner[id]];
	struct covey_ep *ep = handle(o, o->owner[id]);
	const float by = owner->expert_scale ? owner->expert_scale[ep->local[id]] : 1;

	put_back(ep);
	return by;
}

/* One row per rank: the rows of each owner are summed and rounded there, but for the own. */
static void sum_per_rank(const struct oracle *o, int rank, const int32_t *placed)
{
	const struct oracle_rank *r = &o->rank[rank];
	size_t hidden = (size_t)o->hidden, top_k = (size_t)o->top_k;
	float *all = need(hidden * sizeof(float)), *part = need(hidden * sizeof(float));
	uint32_t *used = need((size_t)all_places(o) * sizeof(uint32_t));
	const uint16_t **row = need(top_k * sizeof(*row));
	float *by = need(top_k * sizeof(*by));
	uint8_t *coded = need(2 * hidden);

	for (size_t t = 0; t < (size_t)r->num_tokens; t++) {
		memset(all, 0, hidden * sizeof(float));
		for (size_t k = 0; k < top_k; k++) {
			size_t i = t * top_k + k;
			row[k] = placed[i] < 0 ? NULL : result_of(o, rank, placed[i], used);
			by[k] = row[k] ? r->weights[i] * factor(o, placed[i]) : 0;
		}
		for (int p = 0; p < o->size; p++) {
			memset(part, 0, hidden * sizeof(float));
			for (size_t k = 0; k < top_k; k++)
				for (size_t h = 0; h < hidden && row[k] && o->owner[placed[t * top_k + k]] == p; h++)
					part[h] += by[k] * wide(o, row[k][h]);
			if (o->back) {
				cvy_ep_quantise_sum(part, o->dtype, hidden, coded);
				cvy_ep_weigh_eights(all, coded, o->dtype, 1, hidden);
				continue;
			}
			for (size_t h = 0; h < hidden; h++)
				all[h] += p == rank ? part[h] : wide(o, narrow(o, part[h]));
		}
		for (size_t h = 0; h < hidden; h++)
			r->out[t * hidden + h] = narrow(o, all[h]);
	}
	free(all);
	free(part);
	free(used);
	free(row);
	free(by);
	free(coded);
}

/* The row that @owner has for token @t of @rank, where a token has one at a rank; NULL: none. */
static const uint16_t *row_at(const struct oracle *o, int rank, int owner, int t)
{
	const struct oracle_rank *r = &o->rank[owner];
	const size_t first = cvy_ep_range_first(r->range[rank]), n = cvy_ep_range_count(r->range[rank]);

	for (size_t i = first; i < first + n; i++)
		if (r->src_info[i] == t)
			return r->y + i * (size_t)o->hidden;
	return NULL;
}

/* All weights of token @t, over those whose owners take part. */
static float weight_left(const struct oracle *o, int rank, size_t t, const int32_t *placed)
{
	const struct oracle_rank *r = &o->rank[rank];
	float all = 0, left = 0;

	for (size_t k = 0; k < (size_t)o->top_k; k++) {
		const size_t i = t * (size_t)o->top_k + k;
		const int named =
			r->ids[i] >= 0 && r->ids[i] < o->experts && (!r->mask || r->mask[o->mask_columns > 1 ? i : t]);

		all += named ? r->weights[i] : 0;
		left += placed[i] >= 0 && has(o, o->owner[placed[i]]) ? r->weights[i] : 0;
	}
	return left != all && left != 0 ? all / left : 1;
}

/* Forwarders add what their host has, and round; the source adds what comes, by ascending rank of those that bring it. */
static void sum_two_hops(const struct oracle *o, int rank, const int32_t *placed)
{
	const struct oracle_rank *r = &o->rank[rank];
	const size_t hidden = (size_t)o->hidden;
	float *all = need(hidden * sizeof(float)), *part = need(hidden * sizeof(float));
	struct cvy_ep_hosts hosts = { o->members, { 0 } };
	uint8_t host[CVY_GPU_RANKS] = { 0 };

	memcpy(host, o->host, (size_t)o->size);
	for (int p = 0; p < o->size; p++)
		hosts.of[p] = cvy_ep_of_host(host, o->members, p);
	for (size_t t = 0; t < (size_t)r->num_tokens; t++) {
		const uint16_t *row[ORACLE_RANKS] = { NULL };
		const float scale = o->renormalise ? weight_left(o, rank, t, placed) : 1;

		memset(all, 0, hidden * sizeof(float));
		for (size_t k = 0; k < (size_t)o->top_k; k++) {
			const int32_t id = placed[t * (size_t)o->top_k + k];

			if (id >= 0 && has(o, o->owner[id]))
				row[o->owner[id]] = row_at(o, rank, o->owner[id], (int)t);
		}
		for (int b = 0; b < o->size; b++) {
			const int far = has(o, b) && !cvy_ep_of_one_host(&hosts, rank, b);

			if (!has(o, b) || (far && !cvy_ep_forwards(&hosts, b, rank)))
				continue;
			memset(part, 0, hidden * sizeof(float));
			for (int p = 0; p < o->size; p++)
				for (size_t h = 0; h < hidden && row[p] && (far ? hosts.of[b] >> p & 1 : p == b); h++)
					part[h] += wide(o, row[p][h]);
			for (size_t h = 0; h < hidden; h++)
				all[h] += wide(o, narrow(o, part[h]));
		}
		for (size_t h = 0; h < hidden; h++)
			r->out[t * hidden + h] = narrow(o, scale == 1 ? all[h] : all[h] * scale);
	}
	free(all);
	free(part);
}

uint64_t oracle_combine(const struct oracle *o, int rank)
{
	const uint8_t *slot[ORACLE_RANKS] = { NULL };
	uint8_t *slots[ORACLE_RANKS] = { NULL };
	struct covey_ep *ep = handle(o, rank);
	struct cvy_ep_call *call = cvy_ep_call_new(ep, 1);
	int32_t *placed = places_of(o, rank);
	uint64_t missing;

	for (int s = 0; s < o->size; s++) {
		struct covey_ep *there = handle(o, s);
		struct covey_combine_args a = combine_args(o, &o->rank[s]);

		if (has(o, s)) {
			slot[s] = slots[s] = need(cvy_ep_combine_bytes(&there->shape));
			cvy_ep_combine_write(there, &a, rank, 0, slots[s]);
		}
		put_back(there);
	}
	call->combine = combine_args(o, &o->rank[rank]);
	call->combine.placed = placed;
	cvy_ep_combine_read(call, slot);
	if (o->per_rank && !cvy_ep_pack_of(o->preset)->once)
		sum_per_rank(o, rank, placed);
	if (o->host)
		sum_two_hops(o, rank, placed);
	free(placed);
	missing = call->missing.word[0];
	cvy_ep_call_free(call);
	for (int s = 0; s < o->size; s++)
		free(slots[s]);
	put_back(ep);
	return missing;
}
