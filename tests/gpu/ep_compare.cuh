/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte of what came of dispatch and combine, compared with what the host engine's functions give. */
#ifndef EP_COMPARE_CUH
#define EP_COMPARE_CUH

#include "ep_world.cuh"

static inline void complain(const struct setup *s, const char *what, int r, const char *of, size_t at, unsigned got,
			    unsigned want)
{
	if (failures++ > 20)
		return;
	fprintf(stderr,
		"%s: rank %d: %s: byte %zu is %02x, not %02x (tokens %d hidden %d top %d of %d, code %d (given by %x) "
		"smooth %d, back %d, ids in int64 by %x, per rank %d, lanes %d, split %d, routing %d, once %d, close "
		"%d, fp16 %d, odd %d, masked %x of %d, asked %x, sums %d by %d, tail %d, scaled %d, places %d, hops "
		"%d)\n",
		what, r, of, at, got, want, s->shape.tokens, s->shape.hidden, s->shape.top_k, s->shape.experts,
		s->shape.code, s->given, s->smooth, s->shape.back, s->wide, s->shape.per_rank, s->lanes, s->split,
		s->routing, s->shape.once, s->shape.close, s->fp16, s->odd, s->masked, s->mask_columns, s->asked,
		s->sums, s->alignment, s->fill_tail, s->scaled, s->places, s->shape.hops);
}

static const uint8_t *fetch(int r, int which)
{
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemcpy(side[r].got, side[r].part[which].device, side[r].part[which].bytes + 2 * CANARY,
			cudaMemcpyDeviceToHost));
	return side[r].got;
}

/* All of a buffer with its canaries; @bytes of it, the rest poisoned. */
static inline void same(const struct setup *s, const char *what, int r, int which, const char *of, size_t bytes)
{
	const uint8_t *got = fetch(r, which), *want = side[r].part[which].host;

	checks++;
	for (size_t i = 0; i < bytes + 2 * CANARY; i++) {
		if (got[i] != want[i]) {
			complain(s, what, r, of, i - CANARY, got[i], want[i]);
			return;
		}
	}
}

/* Of bin @e, as the host has it: the last source's first row and how many. */
static size_t rows_in(int r, size_t e)
{
	const size_t runs = side[r].bins == 1 ? (size_t)side[r].runs : e + 1;
	int64_t last = ((int64_t *)host_at(r, RANGE))[runs * (size_t)n - 1];

	return (size_t)(uint32_t)last + (size_t)(last >> 32);
}

/* Of the own tokens; on devices an entry past the T rows of a place has none. */
static inline void same_placed(const struct setup *s, const char *what, int r)
{
	const int32_t *got = (const int32_t *)(fetch(r, PLACED) + CANARY), *want = (int32_t *)host_at(r, PLACED);
	uint32_t *used = (uint32_t *)calloc((size_t)s->shape.experts, sizeof(*used));

	checks++;
	for (int i = 0; i < side[r].num_tokens * s->shape.top_k; i++) {
		const int past = want[i] >= 0 && used[want[i]]++ >= (uint32_t)s->shape.tokens;

		if (got[i] != (past && !s->shape.once ? -1 : want[i]))
			complain(s, what, r, "placed", (size_t)i * 4, (unsigned)got[i], (unsigned)want[i]);
	}
	free(used);
}

/* Rows up to the last one; past them nothing was touched. */
static inline void same_rows(const struct setup *s, const char *what, int r, const uint8_t *want, size_t row_bytes,
			     int whole)
{
	size_t rows = side[r].kept;
	const uint8_t *got = fetch(r, PACKED) + CANARY;

	checks++;
	for (size_t e = 0; e < (size_t)side[r].bins; e++) {
		size_t used = rows_in(r, e) * row_bytes, base = e * rows * row_bytes;

		for (size_t i = 0; i < rows * row_bytes; i++) {
			unsigned expect = i < used ? want[base + i] : POISON;

			if (got[base + i] != expect && (whole || i < used)) {
				complain(s, what, r, "packed_x", base + i, got[base + i], expect);
				return;
			}
		}
	}
}

static inline void same_scales(const struct setup *s, const char *what, int r, const float *want)
{
	size_t rows = side[r].kept;
	size_t groups = cvy_ep_code_groups(cvy_ep_code_of(s->shape.code), (size_t)s->shape.hidden);
	const float *got = (const float *)(fetch(r, SCALES) + CANARY);

	checks++;
	for (size_t e = 0; e < (size_t)side[r].bins; e++) {
		for (size_t g = 0; g < groups; g++) {
			for (size_t i = 0; i < rows_in(r, e); i++) {
				size_t at =
					s->shape.once || s->shape.close ? i * groups + g : (e * groups + g) * rows + i;

				if (memcmp(&got[at], &want[at], 4)) {
					complain(s, what, r, "scales", at * 4, 0, 0);
					return;
				}
			}
		}
	}
}

/* The outputs beside the rows. */
static inline void same_named(const struct setup *s, const char *what, int r)
{
	size_t rows = s->fill_tail ? (size_t)n * (size_t)s->shape.tokens : rows_in(r, 0);
	size_t bytes = rows * (size_t)s->shape.top_k * 4;

	checks++;
	for (int part = NAMED; part <= NAMED_WEIGHTS; part++)
		if (memcmp(fetch(r, part) + CANARY, host_at(r, part), bytes))
			complain(s, what, r, part == NAMED ? "recv_experts" : "recv_weights", bytes, 0, 0);
}

/* The outputs that a call may ask for: all of each, with the parts that must not be touched. */
static inline void same_asked(const struct setup *s, const char *what, int r)
{
	static const char *const names[] = { "expert_tokens", "recv_counts", "triplets", "flat" };

	for (int part = EXPERT_TOKENS; part <= FLAT; part++)
		same(s, what, r, part, names[part - EXPERT_TOKENS], side[r].part[part].bytes);
}

/* Who waits for rows learns that none comes any more. Where none was placed anew, each was announced, and no other. */
static inline void check_arrived(const struct setup *s, const char *what, int r)
{
	const uint32_t *got = (const uint32_t *)(fetch(r, ARRIVED) + CANARY), *row = got + COVEY_EP_ARRIVED_ROWS;
	const size_t rows = side[r].kept;

	if (!asks(s, ARRIVED) || !side[r].el)
		return;
	checks++;
	if (got[COVEY_EP_ARRIVED_ENDED] != COVEY_EP_ARRIVED)
		complain(s, what, r, "arrived: the end", 0, got[COVEY_EP_ARRIVED_ENDED], COVEY_EP_ARRIVED);
	if (got[COVEY_EP_ARRIVED_AGAIN])
		return;
	if (got[COVEY_EP_ARRIVED_RANGE] != COVEY_EP_ARRIVED)
		complain(s, what, r, "arrived: range", 0, got[COVEY_EP_ARRIVED_RANGE], COVEY_EP_ARRIVED);
	for (size_t i = 0; i < rows * (size_t)side[r].bins; i++) {
		const uint32_t want = i % rows < rows_in(r, i / rows) ? COVEY_EP_ARRIVED : 0;

		if (row[i] != want) {
			complain(s, what, r, "arrived: row", i, row[i], want);
			return;
		}
	}
}

static inline void expect_first_attempt(const struct setup *s, int r)
{
	const uint32_t *got = (const uint32_t *)(fetch(r, ARRIVED) + CANARY);

	checks++;
	if (asks(s, ARRIVED) && side[r].el && got[COVEY_EP_ARRIVED_AGAIN])
		complain(s, "healthy", r, "arrived: again", 0, got[COVEY_EP_ARRIVED_AGAIN], 0);
}

/* @whole: past the rows nothing was touched, which holds where nothing was done twice. */
static inline void check_dispatch(const struct setup *s, const char *what, uint32_t members, uint32_t who, int whole)
{
	struct oracle o = oracle_of(s, members);

	for (int r = 0; r < n; r++) {
		size_t rows = side[r].kept * (size_t)side[r].bins;
		uint8_t *codes = NULL;

		if (!(who >> r & 1))
			continue;
		if (s->shape.code)
			o.rank[r].codes = codes = (uint8_t *)calloc(rows + 1, (size_t)s->shape.hidden);
		oracle_dispatch(&o, r);
		same(s, what, r, COUNT, "count", side[r].part[COUNT].bytes);
		same(s, what, r, RANGE, "range", side[r].part[RANGE].bytes);
		if (s->shape.once && side[r].bins)
			same_named(s, what, r);
		if (whole || s->fill_tail)
			same(s, what, r, SRC, "src_info", side[r].part[SRC].bytes);
		same_asked(s, what, r);
		check_arrived(s, what, r);
		if (s->places > 1)
			same_placed(s, what, r);
		same_rows(s, what, r, codes ? codes : host_at(r, PACKED),
			  cvy_ep_code_bytes(cvy_ep_code_of(s->shape.code), (size_t)s->shape.hidden), whole);
		if (codes)
			same_scales(s, what, r, o.rank[r].scales);
		free(codes);
	}
}

/* Experts: rows of packed, changed so that each expert and rank can be told. */
static inline void compute(const struct setup *s, uint32_t who)
{
	for (int r = 0; r < n; r++) {
		size_t m = side[r].part[Y].bytes / 2;

		if (!(who >> r & 1))
			continue;
		for (size_t i = 0; i < m; i++)
			((uint16_t *)host_at(r, Y))[i] = element(s, (float)((i * 37 + (size_t)r * 11) % 509) / 64 - 4);
		CUDA(cudaSetDevice(ranks[r].device));
		upload(r, Y);
	}
}

static inline void check_combine(const struct setup *s, const char *what, uint32_t members, uint32_t who)
{
	struct oracle o = oracle_of(s, members);

	for (int r = 0; r < n; r++) {
		if (!(who >> r & 1))
			continue;
		oracle_combine(&o, r);
		same(s, what, r, OUT, "out", side[r].part[OUT].bytes);
	}
}

/* Cycles that @r waited for each: some for who is in @others, none for itself. */
static inline void check_waited(const struct setup *s, const char *what, int r, uint32_t others)
{
	const uint64_t *got = (const uint64_t *)(fetch(r, WAITED) + CANARY);

	checks++;
	for (int p = 0; p < n; p++)
		if ((p == r && got[p]) || (others >> p & 1 && !got[p]))
			complain(s, what, r, "waited", (size_t)p, (unsigned)got[p], others >> p & 1);
}

static struct cvy_gpu_status status_of(int r)
{
	struct cvy_gpu_status st;

	OK(ranks[r].gpu, ops->status_read(ranks[r].gpu, &st));
	return st;
}

static inline void expect_missing(const struct setup *s, const char *what, uint32_t who, uint32_t missing)
{
	for (int r = 0; r < n; r++) {
		struct cvy_gpu_status st;

		if (!(who >> r & 1))
			continue;
		checks++;
		st = status_of(r);
		if (st.missing != missing || st.status)
			complain(s, what, r, "status", 0, (unsigned)st.missing, missing);
	}
}

#endif
