/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of every operation when it has ended on a rank: what the status word says is alike on all who are in the
 * view (G2), it tells the truth about every byte, by the host engine's own functions (G3), and inputs are intact (G6).
 */
#include "device.h"

#include <string.h>

#include "ep_oracle.h"

static void same(struct process *p, size_t op, const char *of, const void *got, const void *want, size_t bytes)
{
	const uint8_t *g = (const uint8_t *)got, *w = (const uint8_t *)want;

	for (size_t i = 0; i < bytes; i++)
		if (g[i] != w[i]) {
			const struct cvy_gpu_status *s = &p->outcome[op].status;

			sim_fail("G3",
				 "rank %d, operation %zu of kind %d: %s: byte %zu is %02x, not %02x (epoch %u, mask "
				 "%llx, missing %llx)",
				 p->rank, op, plan[op].kind, of, i, g[i], w[i], s->epoch, (unsigned long long)s->mask,
				 (unsigned long long)s->missing);
			return;
		}
}

/* ---- dispatch and combine ---- */

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

	same(p, op, "packed_x", b->at[PACKED] + bin * rows * row, want + bin * rows * row, used * row);
	same(p, op, "src_info", b->at[SRC] + bin * rows * 4, &room->src[bin * rows], used * 4);
	for (size_t g = 0; setup.shape.code && g < groups; g++)
		for (size_t i = 0; i < used; i++) {
			size_t at =
				setup.shape.once || setup.shape.close ? i * groups + g : (bin * groups + g) * rows + i;

			same(p, op, "scales", b->at[SCALES] + at * 4, &room->scales[at], 4);
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
		sim_fail("G3", "rank %d, operation %zu: %zu rows were announced when the end was told, and then %zu",
			 p->rank, op, b->rows_at_end, rows);
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
			sim_fail("G3", "rank %d, operation %zu: range is announced, and run %zu is %llx", p->rank, op,
				 i, (unsigned long long)range);
	}
	for (size_t e = 0; arrived[COVEY_EP_ARRIVED_RANGE] == COVEY_EP_ARRIVED && e < b->bytes[COUNT] / 4; e++)
		if (count[e] > rows)
			sim_fail("G3", "rank %d, operation %zu: range is announced, and expert %zu has %x rows",
				 p->rank, op, e, count[e]);
	for (size_t i = 0; i < b->bytes[ARRIVED] / 4 - COVEY_EP_ARRIVED_ROWS; i++)
		if (arrived[COVEY_EP_ARRIVED_ROWS + i] == COVEY_EP_ARRIVED &&
		    (flat[2 * i] >= (uint32_t)setup.size ||
		     flat[2 * i + 1] >= (uint32_t)(setup.shape.tokens * setup.shape.top_k)))
			sim_fail("G3", "rank %d, operation %zu: row %zu is announced, of entry %x of rank %x", p->rank,
				 op, i, flat[2 * i + 1], flat[2 * i]);
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
		sim_fail("G3", "rank %d, operation %zu: the end is not told: %x", p->rank, op,
			 arrived[COVEY_EP_ARRIVED_ENDED]);
	check_announced(p, op);
	if (arrived[COVEY_EP_ARRIVED_AGAIN])
		return;
	for (const struct seen &seen : b->seen)
		same(p, op, "a row that was announced", b->at[PACKED] + seen.row * row, seen.bytes.data(), row);
	for (size_t i = 0; i < rows * (size_t)bins; i++) {
		const uint32_t want = i % rows < rows_in(room, p->rank, (int)(i / rows)) ? COVEY_EP_ARRIVED : 0;

		same(p, op, "arrived", &arrived[COVEY_EP_ARRIVED_ROWS + i], &want, 4);
		if (want && ((int32_t *)b->at[FLAT])[2 * i + 1] / setup.shape.top_k != room->src[i])
			sim_fail("G3", "rank %d, operation %zu: row %zu is of entry %d", p->rank, op, i,
				 ((int32_t *)b->at[FLAT])[2 * i + 1]);
	}
}

static void check_dispatch(struct process *p, size_t op)
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
	same(p, op, "count", b->at[COUNT], room.count.data(), b->bytes[COUNT]);
	same(p, op, "range", b->at[RANGE], room.range.data(), b->bytes[RANGE]);
	for (int bin = 0; bin < bins; bin++) {
		size_t used = rows_in(&room, p->rank, bin);

		same_rows(p, op, b, &room, (size_t)bin, used);
		if (setup.shape.once)
			for (int i = NAMED; i <= NAMED_WEIGHTS; i++)
				same(p, op, "recv_experts", b->at[i],
				     i == NAMED ? (void *)room.named.data() : (void *)room.named_weights.data(),
				     used * (size_t)setup.shape.top_k * 4);
	}
	if (b->bytes[ARRIVED])
		check_arrived(p, op, b, &room, bins);
	if (low_ranks(*(cvy_ranks *)b->at[ROUTE]) != s->missing)
		sim_fail("G3", "rank %d, operation %zu: the route lacks %llx, the status says %llx", p->rank, op,
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

static void check_combine(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	struct buffers *b = &p->buffers[plan[op].step];
	const size_t token = (size_t)setup.shape.hidden * 2;
	const size_t piece = (size_t)setup.form[1].slice_lines * CVY_EP_LINE_WORDS * 8;
	std::vector<uint8_t> out;

	if (!combined(p, op, (s->mask & ~s->missing), &out)) {
		sim_fail("G3", "rank %d, operation %zu: a part of a rank which has no dispatch", p->rank, op);
		return;
	}
	for (int t = 0; t < steps[plan[op].step].given[p->rank].num_tokens; t++)
		for (size_t of = 0; of < token; of += piece) {
			const size_t at = (size_t)t * token + of, bytes = token - of < piece ? token - of : piece;

			if (!kept(p, op, at, bytes))
				same(p, op, "out", (const uint8_t *)b->at[OUT] + at, &out[at], bytes);
		}
}

/* ---- collectives ---- */

static int32_t expected(const struct op *o, const struct step *s, int rank, uint64_t members, size_t i)
{
	size_t block = i / o->count, at = i % o->count;
	uint32_t sum = 0;

	if (o->kind == CVY_GPU_ALLGATHER || o->kind == CVY_GPU_ALLTOALL) {
		size_t from = o->kind == CVY_GPU_ALLTOALL ? (size_t)rank * o->count + at : at;

		return members >> block & 1 ? s->given[block].send[from] : 0;
	}
	if (cvy_gpu_is_broadcast(o->kind))
		return s->given[o->call.root].send[at];
	if (cvy_gpu_is_reduce(o->kind) && rank != o->call.root) /* untouched */
		return (int32_t)(POISON * 0x01010101u);
	for (int r = 0; r < setup.size; r++)
		if (members >> r & 1)
			sum += (uint32_t)s->given[r]
				       .send[o->kind == CVY_GPU_REDUCE_SCATTER ? (size_t)rank * o->count + at : at];
	return (int32_t)sum;
}

static void check_plain(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct step *step = &steps[o->step];
	struct buffers *b = &p->buffers[o->step];
	const int32_t *got = (const int32_t *)b->at[o->in_place >> p->rank & 1 ? SEND : RECV];
	int blocks = o->kind == CVY_GPU_ALLGATHER || o->kind == CVY_GPU_ALLTOALL ? setup.size : 1;

	if (s->missing && !cvy_gpu_is_private(o->kind))
		sim_fail("G3", "rank %d, operation %zu of kind %d is not private and lacks %llx", p->rank, op, o->kind,
			 (unsigned long long)s->missing);
	for (size_t i = 0; i < o->count * (size_t)blocks; i++) {
		int32_t want = expected(o, step, p->rank, (s->mask & ~s->missing), i);

		if (got[i] != want) {
			same(p, op, "recv", &got[i], &want, 4);
			return;
		}
	}
}

/* What lies between blocks stays as it was. */
static void check_uneven(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const int32_t *got = (const int32_t *)p->buffers[o->step].at[RECV];

	for (int r = 0; r < setup.size; r++) {
		const int32_t *from = &steps[o->step].given[r].send[(size_t)p->rank * o->count];
		size_t at, n = plan_pair(o, r, p->rank, &at);

		for (size_t i = 0; i < o->count; i++) {
			int here = (s->mask & ~s->missing) >> r & 1;
			int32_t want = i - at < n ? (here ? from[i] : 0) : (int32_t)(POISON * 0x01010101u);

			if (got[(size_t)r * o->count + i] == want)
				continue;
			sim_tell("rank %d, operation %zu: element %zu of the block of rank %d, which begins at %zu and "
				 "has %zu",
				 p->rank, op, i, r, at, n);
			same(p, op, "recv", &got[(size_t)r * o->count + i], &want, 4);
			return;
		}
	}
}

/* ---- all ---- */

static void check_buffers(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	struct buffers *b = &p->buffers[o->step];
	const struct given *g = &steps[o->step].given[p->rank];

	for (int i = 0; i < PARTS; i++)
		for (int j = 0; j < CANARY; j++)
			if (b->at[i][-1 - j] != POISON &&
			    (i == 0 || b->at[i] - 1 - j >= b->at[i - 1] + b->bytes[i - 1])) {
				sim_fail("G3", "rank %d, operation %zu of kind %d: a canary before part %d died",
					 p->rank, op, o->kind, i);
				return;
			}
	if (!g->x.empty() &&
	    (memcmp(b->at[X], g->x.data(), b->bytes[X]) || memcmp(b->at[IDS], g->ids.data(), b->bytes[IDS])))
		sim_fail("G6", "rank %d, operation %zu: inputs are changed", p->rank, op);
	if (!g->send.empty() && !(o->in_place >> p->rank & 1) && memcmp(b->at[SEND], g->send.data(), b->bytes[SEND]))
		sim_fail("G6", "rank %d, operation %zu: inputs are changed", p->rank, op);
}

/* What a rank lacks of an operation of which each has a part of its own is its own loss. */
static int same_status(size_t op, const struct cvy_gpu_status *a, const struct cvy_gpu_status *b)
{
	return a->status == b->status || (cvy_gpu_is_private(plan[op].kind) && a->missing != b->missing);
}

/* An ADMIT that takes it in has no outcome for a newcomer but the number. */
static int comes_with(const struct process *p, size_t op)
{
	return plan[op].kind == CVY_GPU_ADMIT && p->first == op;
}

static int is_in(const struct process *p)
{
	return p->alive && process_of(p->rank) == p && !process_leaves(p);
}

/* Who has left by itself had the outcomes of those who are left. */
static void check_alike(struct process *p, size_t op)
{
	const struct cvy_gpu_status *mine = &p->outcome[op].status;

	for (struct process *q : processes) {
		const struct cvy_gpu_status *theirs;

		if (q == p || !(same_view(p, q) || (q->left && is_in(p))) || q->outcome.size() <= op ||
		    !q->outcome[op].done)
			continue;
		theirs = &q->outcome[op].status;
		if ((comes_with(p, op) || comes_with(q, op)) && mine->op == theirs->op)
			continue;
		if (!same_status(op, mine, theirs) || mine->epoch != theirs->epoch || mine->op != theirs->op ||
		    mine->mask != theirs->mask)
			sim_fail("G2",
				 "operation %zu of kind %d: rank %d has status %d epoch %u number %llu mask %llx, rank "
				 "%d has %d, %u, %llu, %llx",
				 op, plan[op].kind, p->rank, mine->status, mine->epoch, (unsigned long long)mine->op,
				 (unsigned long long)mine->mask, q->rank, theirs->status, theirs->epoch,
				 (unsigned long long)theirs->op, (unsigned long long)theirs->mask);
	}
}

/* ---- views ---- */

struct words { /* with which the members of a view go on */
	int known;
	uint64_t base;
	uint64_t mask;
	uint64_t members;
	int width; /* ranks of a host, in operations of two levels */
};
static std::vector<struct words> words; /* by epoch */

void check_begin(void)
{
	words.clear();
}

static const struct member_view *view_of(uint32_t epoch)
{
	return epoch && epoch <= committed.size() ? &committed[epoch - 1] : NULL;
}

/*
 * G1: an outcome names a committed view that this rank has learned and was a member of, and none before that of the operation
 * before. Contributors are members of that view, and who is missing is one of them.
 */
static void check_view(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct member_view *v = view_of(s->epoch);
	uint32_t before = 0;

	for (size_t i = 0; i < op; i++)
		if (p->outcome[i].done && p->outcome[i].status.epoch > before)
			before = p->outcome[i].status.epoch;
	if (!v || s->epoch > p->learned->epoch || s->epoch < before || !(v->members >> p->rank & 1) ||
	    v->inc[p->rank] != p->inc)
		sim_fail("G1",
			 "rank %d.%d, operation %zu of kind %d: epoch %u is of no view of this rank, which has learned "
			 "%u and had an outcome of %u",
			 p->rank, (int)p->inc, op, plan[op].kind, s->epoch, p->learned->epoch, before);
	else if (s->mask & ~(uint64_t)v->members || s->missing & ~s->mask)
		sim_fail("G1", "rank %d, operation %zu of kind %d: epoch %u has members %llx, mask %llx, missing %llx",
			 p->rank, op, plan[op].kind, s->epoch, (unsigned long long)v->members,
			 (unsigned long long)s->mask, (unsigned long long)s->missing);
}

/* G1: all members of a view go on from the same operation, and with the same contributors. */
void check_words(const struct process *p)
{
	const struct cvy_device *d = p->device;
	struct words *w;

	if (words.size() <= p->learned->epoch)
		words.resize(p->learned->epoch + 1);
	w = &words[p->learned->epoch];
	if (!w->known) {
		*w = { 1, d->verdict.base, low_ranks(d->lanes[0].mask), low_ranks(d->roll.members),
		       CVY_GPU_WIDTH(d->lanes[0].failed) };
		return;
	}
	if (w->width != CVY_GPU_WIDTH(d->lanes[0].failed))
		sim_fail("G1", "rank %d.%d goes on in epoch %u with hosts of %d ranks, another with hosts of %d",
			 p->rank, (int)p->inc, p->learned->epoch, CVY_GPU_WIDTH(d->lanes[0].failed), w->width);
	if (w->base != d->verdict.base || w->mask != low_ranks(d->lanes[0].mask) ||
	    w->members != low_ranks(d->roll.members))
		sim_fail("G1",
			 "rank %d.%d goes on in epoch %u from operation %llu with contributors %llx of %llx, another "
			 "from %llu with %llx of %llx",
			 p->rank, (int)p->inc, p->learned->epoch, (unsigned long long)d->verdict.base,
			 (unsigned long long)low_ranks(d->lanes[0].mask),
			 (unsigned long long)low_ranks(d->roll.members), (unsigned long long)w->base,
			 (unsigned long long)w->mask, (unsigned long long)w->members);
}

/* Nobody is missing for nothing: without deadlines, only who is no member any more. */
static void check_missing(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const uint64_t left_out = app_left_out(&plan[op], p->rank);
	int all_here = 1;

	for (const struct process *q : processes)
		all_here &= q->alive && q->out == OUT_NOT && !q->ever_slow;
	/* A dispatch of several steps that is completed after a change is empty, and says so. */
	all_here &= setup.form[0].steps == 1 || view.epoch == 1 || setup.shape.hops;
	for (size_t i = 0; i <= op; i++)
		all_here &= !plan[i].timeout_ms;
	if (left_out & s->mask & ~s->missing)
		sim_fail("G3", "rank %d, operation %zu of kind %d: %llx are left out, and only %llx are missing",
			 p->rank, op, plan[op].kind, (unsigned long long)left_out, (unsigned long long)s->missing);
	if (s->missing & ~left_out && all_here)
		sim_fail("G3", "rank %d, operation %zu of kind %d: %llx are missing, and all are here", p->rank, op,
			 plan[op].kind, (unsigned long long)s->missing);
	if (s->missing && setup.shape.hops && (plan[op].kind == CVY_GPU_DISPATCH || plan[op].kind == CVY_GPU_COMBINE))
		sim_fail("G3", "rank %d, operation %zu of kind %d: %llx are missing over two hops", p->rank, op,
			 plan[op].kind, (unsigned long long)s->missing);
	if (!(s->mask >> p->rank & 1))
		sim_fail("G3", "rank %d, operation %zu of kind %d: its mask is %llx", p->rank, op, plan[op].kind,
			 (unsigned long long)s->mask);
}

/* Has @q gone on without rank @rank from an operation with a deadline, or may it have done so from a step of one? */
static int went_on(const struct process *q, size_t op, int rank)
{
	const int combine = plan[op].kind == CVY_GPU_COMBINE;

	if (op < q->next && app_left_out(&plan[op], q->rank) >> rank & 1)
		return 1;
	if (!plan[op].timeout_ms || op >= q->next)
		return 0;
	if (op == q->completed && (combine || plan[op].kind == CVY_GPU_DISPATCH))
		return setup.form[combine].steps > 1;
	return op + 1 < q->next && op < q->outcome.size() && (q->outcome[op].without >> rank & 1);
}

/*
 * Nobody gives up but who is in an operation without a deadline while another has gone on, without it, from a later one that
 * has a deadline.
 */
void check_gives_up(const struct process *p, const char *why)
{
	size_t at = p->completed;

	sim_tell("rank %d.%d gives up in %zu: %s", p->rank, (int)p->inc, at, why);
	for (const struct process *q : processes)
		for (size_t op = at + 1; op < plan.size() && op < q->next; op++)
			if (!plan[at].timeout_ms && q->rank != p->rank && went_on(q, op, p->rank))
				return;
	sim_fail("G5", "rank %d gives up: %s", p->rank, why);
}

static int lacks_root(const struct op *o, const struct cvy_gpu_status *s)
{
	return (cvy_gpu_is_broadcast(o->kind) || cvy_gpu_is_reduce(o->kind)) && !(s->mask >> o->call.root & 1);
}

/* Of a dispatch that has no outcome: nothing is named that it has not placed. */
static void check_no_rows(const struct process *p, size_t op)
{
	const struct buffers *b = &p->buffers[plan[op].step];

	for (size_t e = 0; e < b->bytes[COUNT] / 4; e++)
		if (((const uint32_t *)b->at[COUNT])[e] > app_kept(p->rank))
			sim_fail("G5", "rank %d, operation %zu has no outcome, and %#x rows of expert %zu", p->rank, op,
				 ((const uint32_t *)b->at[COUNT])[e], e);
}

void check_ended(struct process *p, size_t op)
{
	struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct op *o = &plan[op];

	if (p->device->ended && o->kind == CVY_GPU_DISPATCH && o->phase != CVY_EP_SEND)
		check_no_rows(p, op);
	if (p->device->ended || o->phase == CVY_EP_SEND)
		return;
	p->device->ops->status_read(p->device->gpu, s);
	p->outcome[op].without = s->missing;
	if (p->out != OUT_NOT)
		return;
	p->outcome[op].done = 1;
	sim_tell("rank %d.%d has %zu: status %d epoch %u number %llu mask %llx missing %llx", p->rank, (int)p->inc, op,
		 s->status, s->epoch, (unsigned long long)s->op, (unsigned long long)s->mask,
		 (unsigned long long)s->missing);
	check_alike(p, op);
	check_view(p, op);
	check_missing(p, op);
	check_buffers(p, op);
	if (s->status == COVEY_ERR_LOST || (s->status == COVEY_ERR_ROOT && lacks_root(o, s)))
		return;
	if (s->status || lacks_root(o, s))
		sim_fail("G5", "rank %d, operation %zu of kind %d ends with %d", p->rank, op, o->kind, s->status);
	else if (o->kind == CVY_GPU_DISPATCH)
		check_dispatch(p, op);
	else if (o->kind == CVY_GPU_COMBINE)
		check_combine(p, op);
	else if (o->kind == CVY_GPU_ALLTOALLV)
		check_uneven(p, op);
	else if (o->kind != CVY_GPU_ADMIT && o->kind != CVY_GPU_BARRIER)
		check_plain(p, op);
}
