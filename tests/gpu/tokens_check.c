/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of a dispatch and every token of a combine, by what the outcome says took part. */
#include "tokens.h"

int masks(void)
{
	return rank % 3 != 2;
}

/* Of the @k-th expert of a token. */
static void check_row(int row, int source, int t, int k, const struct covey_device_outcome *o)
{
	const int32_t *triplet = host.triplets[row], *origin = host.flat[row];

	if (host.src_info[row] != t)
		wrong("source of row", row, host.src_info[row], t, o);
	if (triplet[0] != source || triplet[1] != t || triplet[2] != k)
		wrong("triplet of row", row, triplet[0] * 10000L + triplet[1] * 100 + triplet[2],
		      source * 10000L + t * 100 + k, o);
	if (origin[0] != source || origin[1] != t * TOP_K + k)
		wrong("flat of row", row, origin[0] * 10000L + origin[1], source * 10000L + t * TOP_K + k, o);
	for (int h = 0; h < HIDDEN; h++)
		if (host.packed[row][h] != bf16(token(state.step, source, t, h)))
			wrong("element of row", row, host.packed[row][h], bf16(token(state.step, source, t, h)), o);
}

/* The rows of @source that expert @id here has, from row @first on; how many. */
static int check_rows(int id, int source, int first, const struct covey_device_outcome *o)
{
	int n = 0;

	for (int t = 0; t < tokens(state.step, source); t++)
		for (int k = 0; k < TOP_K; k++)
			if (expert(state.step, source, t, k) == id)
				check_row(first + n++, source, t, k, o);
	return n;
}

/* Rows from @first on, of those of a bin: there are none. */
static void check_tail(int bin, int first, const struct covey_device_outcome *o)
{
	for (int row = first; row < (bin + 1) * covey_ep_rows(ep); row++) {
		if (host.src_info[row] != -1 || host.triplets[row][0] != -1 || host.triplets[row][2] != -1 ||
		    host.flat[row][1] != -1)
			wrong("row past the last one", row, host.src_info[row], -1, o);
		for (int k = 0; k < TOP_K && compact; k++)
			if (host.named[row][k] != -1 || host.named_weights[row][k] != 0)
				wrong("expert of a row past the last one", row, host.named[row][k], -1, o);
	}
}

static void check_range(int bin, int source, int want, int at, const struct covey_device_outcome *o)
{
	int64_t range = host.range[bin * size + source];

	if (range >> 32 != want || (want && (int32_t)range != at))
		wrong("rows of source", source, (long)(range >> 32), want, o);
}

/* The one row here of a token, and what stands beside it; 0: it has none. */
static int check_named(int source, int t, int row, const struct covey_device_outcome *o)
{
	int block = (EXPERTS + size - 1) / size, here = 0, first = -1;

	for (int k = TOP_K - 1; k >= 0; k--)
		if (owner(size, expert(state.step, source, t, k)) == rank)
			here = 1, first = k;
	for (int k = 0; here && k < TOP_K; k++) {
		int id = expert(state.step, source, t, k), local = owner(size, id) == rank ? id - rank * block : -1;

		if (host.named[row][k] != local)
			wrong("expert of row", row, host.named[row][k], local, o);
		if (host.named_weights[row][k] != (local < 0 ? 0 : (float)(k + 1)))
			wrong("weight of row", row, (long)host.named_weights[row][k], local < 0 ? 0 : k + 1, o);
	}
	if (here)
		check_row(row, source, t, first, o);
	return here;
}

static void check_compact(const struct covey_device_outcome *o)
{
	uint64_t here = o->mask & ~o->missing;
	int row = 0, block = (EXPERTS + size - 1) / size, count[EXPERTS] = { 0 };

	checks++;
	for (int s = 0; s < size; s++) {
		int first = row;

		for (int t = 0; t < tokens(state.step, s) && here >> s & 1; t++) {
			row += check_named(s, t, row, o);
			for (int k = 0; k < TOP_K; k++) /* a token names no expert twice */
				count[expert(state.step, s, t, k)]++;
		}
		check_range(0, s, row - first, first, o);
	}
	if (covey_ep_local_experts(ep))
		check_tail(0, row, o);
	for (int id = rank * block; id < EXPERTS && owner(size, id) == rank; id++)
		if (host.count[id - rank * block] != count[id] ||
		    host.expert_tokens[id - rank * block] != (count[id] + 7) / 8 * 8)
			wrong("count of expert", id, host.count[id - rank * block], count[id], o);
}

static void check_experts(const struct covey_device_outcome *o)
{
	uint64_t here = o->mask & ~o->missing;
	int mine = 0, next = 0, by = win ? 1 : 8;

	checks++;
	for (int id = 0; id < EXPERTS; id++) {
		int e = mine, bin = win ? 0 : e * covey_ep_rows(ep), first = win ? next : bin, n;

		if (owner(size, id) != rank)
			continue;
		mine++;
		next = first;
		for (int s = 0; s < size; s++) {
			int want = here >> s & 1 ? check_rows(id, s, next, o) : 0;

			check_range(e, s, want, next - bin, o);
			next += want;
		}
		n = next - first;
		if (!win)
			check_tail(e, next, o);
		if (host.count[e] != n || host.expert_tokens[e] != (n + by - 1) / by * by)
			wrong("count of expert", id, host.count[e], n, o);
	}
	if (win && mine)
		check_tail(0, next, o);
}

float sign(int id)
{
	return flat && id % 2 ? -1.0f : 1.0f;
}

/* Each row that is here was announced, and no other; or all that was does not hold. */
static void check_arrived(const struct covey_device_outcome *o)
{
	const uint32_t *row = host.arrived + COVEY_EP_ARRIVED_ROWS;
	const int rows = covey_ep_rows(ep);

	if (!announces || !covey_ep_local_experts(ep))
		return;
	if (host.arrived[COVEY_EP_ARRIVED_ENDED] != COVEY_EP_ARRIVED)
		wrong("the end was not told", 0, host.arrived[COVEY_EP_ARRIVED_ENDED], COVEY_EP_ARRIVED, o);
	again += host.arrived[COVEY_EP_ARRIVED_AGAIN] != 0;
	if (host.arrived[COVEY_EP_ARRIVED_AGAIN])
		return;
	if (host.arrived[COVEY_EP_ARRIVED_RANGE] != COVEY_EP_ARRIVED)
		wrong("the range was not told", 0, host.arrived[COVEY_EP_ARRIVED_RANGE], COVEY_EP_ARRIVED, o);
	for (int i = 0; i < rows * covey_ep_local_experts(ep); i++) {
		const uint32_t want = i % rows < host.count[i / rows] ? COVEY_EP_ARRIVED : 0;

		if (row[i] != want)
			wrong("word of row", i, row[i], want, o);
	}
}

void check_dispatch(const struct covey_device_outcome *o)
{
	if (compact) {
		check_compact(o);
	} else {
		check_arrived(o);
		check_experts(o);
	}
}

/* With what a token comes back: of the owners in @here, each once, or the weight of its experts there. */
static int comes_back(int t, uint64_t here)
{
	uint64_t ranks = 0;
	int weight = 0;

	for (int k = 0; k < TOP_K; k++) {
		int o = owner(size, expert(state.step, rank, t, k));

		if (!(here >> o & 1))
			continue;
		ranks |= 1ull << o;
		weight += (k + 1) * (int)sign(expert(state.step, rank, t, k));
	}
	return compact ? __builtin_popcountll(ranks) : weight;
}

void check_combine(const struct covey_device_outcome *o)
{
	checks++;
	for (int t = 0; t < tokens(state.step, rank); t++) {
		int weight = comes_back(t, o->mask & ~o->missing);

		for (int h = 0; h < HIDDEN; h++)
			if (host.out[t][h] != bf16(weight * token(state.step, rank, t, h)))
				wrong("combined token", t, host.out[t][h], bf16(weight * token(state.step, rank, t, h)),
				      o);
	}
	for (int t = tokens(state.step, rank); t < TOKENS && masks(); t++)
		for (int h = 0; h < HIDDEN; h++)
			if (host.out[t][h])
				wrong("masked token", t, host.out[t][h], 0, o);
}
