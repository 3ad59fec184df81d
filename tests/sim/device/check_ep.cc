/* SPDX-License-Identifier: Apache-2.0 */
/* G3 of dispatch and combine: every byte is what the host engine's own functions give by the status word. */
#include "device.h"

#include <string.h>

#include "ep_oracle.h"

/* What the oracle writes, for one rank. */
struct room {
	std::vector<uint16_t> packed, out;
	std::vector<uint8_t> codes;
	std::vector<float> scales, named_weights;
	std::vector<int32_t> count, src, named;
	std::vector<int64_t> range;
};

static struct oracle oracle_of(const struct step *s, uint64_t members)
{
	struct oracle o = {};

	o.size = setup.size;
	o.tokens = setup.shape.tokens;
	o.hidden = setup.shape.hidden;
	o.top_k = setup.shape.top_k;
	o.experts = setup.shape.experts / setup.places;
	o.places = setup.places;
	o.owner = setup.owner;
	o.members = members;
	o.per_rank = setup.shape.per_rank;
	o.renormalise = setup.renormalise;
	o.code = setup.shape.code;
	o.back = setup.shape.back;
	o.dtype = setup.fp16 ? COVEY_FLOAT16 : COVEY_BFLOAT16;
	o.preset = setup.shape.once ? COVEY_EP_COMPACT : setup.shape.close ? COVEY_EP_WIN : COVEY_EP_LL;
	for (int r = 0; r < setup.size; r++) {
		o.rank[r].num_tokens = s->given[r].num_tokens;
		o.rank[r].x = s->given[r].x.data();
		o.rank[r].ids = s->given[r].ids.data();
		o.rank[r].weights = s->given[r].weights.data();
	}
	return o;
}

static void give_room(struct oracle_rank *r, int rank, struct room *room)
{
	int el;
	size_t rows = (size_t)app_bins(rank, &el) * app_kept(rank), hidden = (size_t)setup.shape.hidden;
	size_t groups = (size_t)cvy_ep_div(setup.shape.hidden, CVY_EP_GROUP);

	room->packed.assign(rows * hidden + 1, 0);
	room->scales.assign(rows * groups + 1, 0);
	room->count.assign((size_t)el + 1, 0);
	room->src.assign(rows + 1, 0);
	room->range.assign((size_t)app_runs(rank) * (size_t)setup.size + 1, 0);
	room->named.assign(rows * (size_t)setup.shape.top_k + 1, 0);
	room->named_weights.assign(rows * (size_t)setup.shape.top_k + 1, 0);
	r->packed = room->packed.data();
	r->scales = room->scales.data();
	r->count = room->count.data();
	r->src_info = room->src.data();
	r->range = room->range.data();
	r->recv_experts = room->named.data();
	r->recv_weights = room->named_weights.data();
	if (setup.shape.code) {
		room->codes.assign(rows * hidden + 1, 0);
		r->codes = room->codes.data();
	}
}

static void same_rows(struct process *p, size_t op, struct buffers *b, const struct room *room, size_t bin, size_t used)
{
	size_t rows = app_kept(p->rank), hidden = (size_t)setup.shape.hidden;
	size_t groups = (size_t)cvy_ep_div(setup.shape.hidden, CVY_EP_GROUP), row = hidden * (setup.shape.code ? 1 : 2);
	const uint8_t *want = setup.shape.code ? room->codes.data() : (const uint8_t *)room->packed.data();

	check_same(p, op, "packed_x", b->at[PACKED] + bin * rows * row, want + bin * rows * row, used * row);
	check_same(p, op, "src_info", b->at[SRC] + bin * rows * 4, &room->src[bin * rows], used * 4);
	for (size_t g = 0; setup.shape.code && g < groups; g++)
		for (size_t i = 0; i < used; i++) {
			size_t at =
				setup.shape.once || setup.shape.close ? i * groups + g : (bin * groups + g) * rows + i;

			check_same(p, op, "scales", b->at[SCALES] + at * 4, &room->scales[at], 4);
		}
}

/* No row is announced behind the end. */
static void check_end(struct process *p, size_t op, struct buffers *b)
{
	const uint32_t *arrived = (const uint32_t *)b->at[ARRIVED];
	size_t rows = 0;

	if (arrived[COVEY_EP_ARRIVED_ENDED] != COVEY_EP_ARRIVED)
		return;
	for (size_t i = COVEY_EP_ARRIVED_ROWS; i < b->bytes[ARRIVED] / 4; i++)
		rows += arrived[i] == COVEY_EP_ARRIVED;
	if (b->ended && rows != b->rows_at_end)
		WRONG("G3", p, op, "%zu rows were announced when the end was told, and then %zu", b->rows_at_end, rows);
	b->ended = 1;
	b->rows_at_end = rows;
}

void check_announced(struct process *p, size_t op)
{
	struct buffers *b = &p->buffers[plan[op].step];
	const uint32_t *arrived = (const uint32_t *)b->at[ARRIVED], *count = (const uint32_t *)b->at[COUNT];
	const uint32_t *flat = (const uint32_t *)b->at[FLAT];
	const uint32_t rows = (uint32_t)(setup.size * setup.shape.tokens);

	for (size_t i = 0;
	     setup.shape.close && arrived[COVEY_EP_ARRIVED_RANGE] == COVEY_EP_ARRIVED && i < b->bytes[RANGE] / 8; i++) {
		const int64_t range = ((const int64_t *)b->at[RANGE])[i];

		if ((uint64_t)(uint32_t)range + (uint64_t)(range >> 32) > app_kept(p->rank))
			WRONG("G3", p, op, "range is announced, and run %zu is %llx", i, (unsigned long long)range);
	}
	for (size_t e = 0; arrived[COVEY_EP_ARRIVED_RANGE] == COVEY_EP_ARRIVED && e < b->bytes[COUNT] / 4; e++)
		if (count[e] > rows)
			WRONG("G3", p, op, "range is announced, and expert %zu has %x rows", e, count[e]);
	for (size_t i = 0; i < b->bytes[ARRIVED] / 4 - COVEY_EP_ARRIVED_ROWS; i++)
		if (arrived[COVEY_EP_ARRIVED_ROWS + i] == COVEY_EP_ARRIVED &&
		    (flat[2 * i] >= (uint32_t)setup.size ||
		     flat[2 * i + 1] >= (uint32_t)(setup.shape.tokens * setup.shape.top_k)))
			WRONG("G3", p, op, "row %zu is announced, of entry %x of rank %x", i, flat[2 * i + 1],
			      flat[2 * i]);
	check_end(p, op, b);
}

/* Rows of @bin: up to the end of its last run. */
static size_t rows_in(const struct room *room, int rank, int bin)
{
	const int el_or_one = setup.shape.close ? app_runs(rank) : bin + 1;
	const int64_t end = room->range[(size_t)el_or_one * (size_t)setup.size - 1];

	return (size_t)(uint32_t)end + (size_t)(end >> 32);
}

/* A row that was announced stands as it was then, and each that is here was, unless rows were placed anew. */
static void check_arrived(struct process *p, size_t op, struct buffers *b, const struct room *room, int bins)
{
	const size_t rows = app_kept(p->rank), row = app_row_bytes();
	const uint32_t *arrived = (const uint32_t *)b->at[ARRIVED];

	if (arrived[COVEY_EP_ARRIVED_ENDED] != COVEY_EP_ARRIVED)
		WRONG("G3", p, op, "the end is not told: %x", arrived[COVEY_EP_ARRIVED_ENDED]);
	check_announced(p, op);
	if (arrived[COVEY_EP_ARRIVED_AGAIN])
		return;
	for (const struct seen &seen : b->seen)
		check_same(p, op, "a row that was announced", b->at[PACKED] + seen.row * row, seen.bytes.data(), row);
	for (size_t i = 0; i < rows * (size_t)bins; i++) {
		const uint32_t want = i % rows < rows_in(room, p->rank, (int)(i / rows)) ? COVEY_EP_ARRIVED : 0;

		check_same(p, op, "arrived", &arrived[COVEY_EP_ARRIVED_ROWS + i], &want, 4);
		if (want && ((int32_t *)b->at[FLAT])[2 * i + 1] / setup.shape.top_k != room->src[i])
			WRONG("G3", p, op, "row %zu is of entry %d", i, ((int32_t *)b->at[FLAT])[2 * i + 1]);
	}
}

void check_dispatch(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	struct step *step = &steps[plan[op].step];
	struct buffers *b = &p->buffers[plan[op].step];
	struct oracle o = oracle_of(step, (s->mask & ~s->missing));
	int el, bins = app_bins(p->rank, &el);
	struct room room;

	o.living = b->living = s->mask;
	give_room(&o.rank[p->rank], p->rank, &room);
	oracle_dispatch(&o, p->rank);
	check_same(p, op, "count", b->at[COUNT], room.count.data(), b->bytes[COUNT]);
	check_same(p, op, "range", b->at[RANGE], room.range.data(), b->bytes[RANGE]);
	for (int bin = 0; bin < bins; bin++) {
		size_t used = rows_in(&room, p->rank, bin);

		same_rows(p, op, b, &room, (size_t)bin, used);
		if (setup.shape.once)
			for (int i = NAMED; i <= NAMED_WEIGHTS; i++)
				check_same(p, op, "recv_experts", b->at[i],
					   i == NAMED ? (void *)room.named.data() : (void *)room.named_weights.data(),
					   used * (size_t)setup.shape.top_k * 4);
	}
	if (b->bytes[ARRIVED])
		check_arrived(p, op, b, &room, bins);
	if (low_ranks(*(cvy_ranks *)b->at[ROUTE]) != s->missing)
		WRONG("G3", p, op, "the route lacks %llx, the status says %llx",
		      (unsigned long long)low_ranks(*(cvy_ranks *)b->at[ROUTE]), (unsigned long long)s->missing);
	step->dispatched[p->rank] = p;
	b->dispatched = 1;
}

/* By the view that the outcome names. */
static void hosts_of(uint32_t epoch, uint8_t host[RANKS])
{
	for (int r = 0; r < RANKS && epoch && epoch <= committed.size(); r++)
		host[r] = committed[epoch - 1].inc[r] ? process_by(committed[epoch - 1].inc[r])->host : 0;
}

/* What a combine gives @p with the parts of @members; 0: one of them has no dispatch. */
static int combined(struct process *p, size_t op, uint64_t members, std::vector<uint8_t> *out)
{
	struct step *step = &steps[plan[op].step];
	struct buffers *b = &p->buffers[plan[op].step];
	struct oracle o = oracle_of(step, members);
	uint8_t host[RANKS] = {};

	hosts_of(p->outcome[op].status.epoch, host);
	o.host = setup.shape.hops ? host : NULL;
	o.living = b->living;
	out->assign(b->bytes[OUT] + 2, POISON);
	for (int r = 0; r < setup.size; r++) {
		struct process *q = step->dispatched[r];
		struct buffers *theirs = q ? &q->buffers[plan[op].step] : NULL;

		if (!(members >> r & 1))
			continue;
		if (!q)
			return 0;
		o.rank[r].y = (uint16_t *)theirs->at[Y];
		o.rank[r].count = (int32_t *)theirs->at[COUNT];
		o.rank[r].src_info = (int32_t *)theirs->at[SRC];
		o.rank[r].range = (int64_t *)theirs->at[RANGE];
	}
	o.rank[p->rank].out = (uint16_t *)out->data();
	o.rank[p->rank].y = (uint16_t *)b->at[Y];
	oracle_combine(&o, p->rank);
	return 1;
}

/* Of several steps the earlier keep what they had of who was late in a later one: such a piece has some of the missing. */
static int kept(struct process *p, size_t op, size_t at, size_t bytes)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const uint8_t *got = (const uint8_t *)p->buffers[plan[op].step].at[OUT] + at;
	uint64_t missing = s->mask & s->missing;
	std::vector<uint8_t> out;

	if (setup.form[1].steps == 1)
		return 0;
	for (uint64_t some = missing; some; some = (some - 1) & missing)
		if (!combined(p, op, (s->mask & ~s->missing) | some, &out)) /* nobody knows yet what it had */
			return 1;
		else if (!memcmp(got, &out[at], bytes))
			return 1;
	return 0;
}

void check_combine(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	struct buffers *b = &p->buffers[plan[op].step];
	const size_t token = (size_t)setup.shape.hidden * 2;
	const size_t piece = (size_t)setup.form[1].slice_lines * CVY_EP_LINE_WORDS * 8;
	std::vector<uint8_t> out;

	if (!combined(p, op, (s->mask & ~s->missing), &out)) {
		WRONG("G3", p, op, "a part of a rank which has no dispatch");
		return;
	}
	for (int t = 0; t < steps[plan[op].step].given[p->rank].num_tokens; t++)
		for (size_t of = 0; of < token; of += piece) {
			const size_t at = (size_t)t * token + of, bytes = token - of < piece ? token - of : piece;

			if (!kept(p, op, at, bytes))
				check_same(p, op, "out", (const uint8_t *)b->at[OUT] + at, &out[at], bytes);
		}
}
