/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in two levels: between hosts every input travels once to each host, not once to each rank there.
 *
 * On each other host one rank, the *like* of the source, receives the source's data, copies them into the second half
 * of its own slot and stores its second line. Its neighbours read them there. So both rounds are those of any
 * operation. First comes the own input, for the neighbours and for one rank of each other host. Second come the inputs
 * of other hosts, for the neighbours. A tick is complete when the second lines of all ranks of this host are here:
 * together they show that every rank of the set has entered it. Retention and repair rely on this.
 *
 * Neighbours are ranks whose host has one name in the store, so all ranks choose the same. Two neighbours that are
 * linked by sockets get puts. Everything that is read is in slots, under tags of the epoch, as in other operations.
 */
#include "algo.h"
#include "chain.h"
#include "hosts.h"

#include <string.h>

#define ARRAYS 8 /* of [n] in struct cvy_hosts: of, via, place, like, which takes two, out, mate and near */

void cvy_hosts_clear(struct cvy_hosts *hosts)
{
	free(hosts->of); /* the other arrays are in the same memory */
	memset(hosts, 0, sizeof(*hosts));
}

/* The host of each source, numbered in order of appearance. */
static void find_hosts(const struct cvy_set *set, struct cvy_hosts *h, int *count)
{
	int at = 0, *first = count + CVY_HOSTS_MAX; /* a source of each host */

	for (int k = 0; k < set->n; k++) {
		uint64_t name = set->host[k];

		if (!h->n || set->host[first[at]] != name) /* neighbours mostly have adjacent ranks */
			for (at = 0; at < h->n && set->host[first[at]] != name;)
				at++;
		if (at == CVY_HOSTS_MAX) {
			h->n = 0;
			return;
		}
		if (at == h->n) {
			first[h->n] = k;
			count[h->n++] = 0;
		}
		h->of[k] = at;
		count[at]++;
	}
}

/* The most parts in a window of any host: those that the first of its ranks receives. And are all hosts the same? */
static void weigh(const struct cvy_set *set, struct cvy_hosts *h, const int *count)
{
	h->even = 1;
	for (int k = 1; k < set->n; k++)
		h->even &= h->of[k] >= h->of[k - 1];
	for (int a = 0; a < h->n; a++) {
		int parts = -1;

		for (int b = 0; b < h->n; b++)
			parts += (count[b] + count[a] - 1) / count[a];
		if (parts > h->most)
			h->most = parts;
		if (count[a] > h->widest)
			h->widest = count[a];
		h->even &= count[a] == count[0];
	}
}

/*
 * The ranks of this host that receive each source's input, and the ranks that this one sends to. @seen: [hosts],
 * @parts: [n]
 */
static void pair_up(const struct cvy_set *set, struct cvy_hosts *h, const int *count, int *seen, int *parts)
{
	int *here = h->like + h->n; /* the sources of this host, temporarily */

	h->own = h->of[set->self];
	h->local = count[h->own];
	memset(seen, 0, (size_t)h->n * sizeof(*seen));
	for (int k = 0; k < set->n; k++) {
		if (k == set->self)
			h->nth = seen[h->own];
		if (h->of[k] == h->own)
			here[seen[h->own]++] = k;
	}
	memset(seen, 0, (size_t)h->n * sizeof(*seen));
	memset(parts, 0, (size_t)set->n * sizeof(*parts));
	for (int k = 0; k < set->n; k++) {
		int host = h->of[k], nth = seen[host]++;

		h->via[k] = host == h->own ? k : here[nth % h->local];
		h->place[k] = host == h->own ? 0 : parts[h->via[k]]++;
		if (nth == h->nth % count[host])
			h->like[host] = k;
	}
}

static int is_mate(const struct cvy_hosts *h, int rank)
{
	return h->nmate && h->mate[h->nmate - 1] == rank;
}

static void list_out(const struct cvy_set *set, struct cvy_hosts *h)
{
	int at = 0;

	for (int host = 0; host < h->n; host++)
		if (host != h->own)
			h->out[h->nout++] = set->rank[h->like[host]];
	for (int k = 0; k < set->n; k++) {
		while (at < set->npush && set->push[at] < set->rank[k])
			at++;
		if (h->of[k] == h->own && at < set->npush && set->push[at] == set->rank[k])
			h->mate[h->nmate++] = h->out[h->nout++] = set->rank[k];
		if (h->of[k] == h->own ? is_mate(h, set->rank[k]) : k == h->like[h->of[k]] || h->via[k] == set->self)
			h->near[h->nnear++] = set->rank[k];
	}
}

int cvy_hosts_build(struct cvy_set *set)
{
	struct cvy_hosts h = { .n = 0 };
	size_t n = (size_t)set->n;
	int *room, *work = malloc((2 * CVY_HOSTS_MAX + n) * sizeof(*work));

	room = work ? calloc(ARRAYS * n + 1, sizeof(*room)) : NULL;
	cvy_hosts_clear(&set->hosts);
	if (!room) {
		free(work);
		return COVEY_ERR_NOMEM;
	}
	h.of = room;
	h.via = h.of + n;
	h.place = h.via + n;
	h.like = h.place + n; /* of at most n hosts, and at most n sources here, each of one of these */
	h.out = h.like + 2 * n;
	h.mate = h.out + n;
	h.near = h.mate + n;
	find_hosts(set, &h, work);
	if (set->self < 0)
		h.n = 0;
	if (h.n > 1) {
		weigh(set, &h, work);
		pair_up(set, &h, work, work + CVY_HOSTS_MAX, work + (size_t)2 * CVY_HOSTS_MAX);
		list_out(set, &h);
	}
	free(work);
	set->hosts = h;
	return 0;
}

/* ---- one operation ---- */

static size_t parts_bytes(const struct cvy_engine *e, const struct cvy_op *op)
{
	return (op->kind->op_class == CVY_OP_ROOT ? 1 : (size_t)e->here.set.hosts.most) * cvy_hosts_part(op);
}

int cvy_hosts_needs(const struct cvy_engine *e, const struct cvy_op *op, int k, int round)
{
	const struct cvy_hosts *h = &e->here.set.hosts;
	int root;

	if (op->way == CVY_WAY_CHAIN)
		return cvy_chain_needs(h, k, round);
	if (op->kind->op_class == CVY_OP_ROOT) {
		root = cvy_root_index(e, op);
		if (h->of[root] == h->own)
			return k == root && round == 1;
		return k == (round == 1 ? root : h->via[root]) && (round == 2 || h->via[root] == e->here.set.self);
	}
	return h->of[k] == h->own || (round == 1 && h->via[k] == e->here.set.self);
}

void cvy_hosts_signal(struct cvy_engine *e, const struct cvy_op *op, const struct cvy_line *line, int round)
{
	const struct cvy_hosts *h = &e->here.set.hosts;

	if (op->way == CVY_WAY_CHAIN) {
		cvy_chain_signal(e, line, round);
		return;
	}
	for (int i = 0; i < (round == 1 ? h->nout : h->nmate); i++)
		cvy_signal(e, round == 1 ? h->out[i] : h->mate[i], line);
	cvy_engine_announce(e, line);
}

/* Copies inputs from other hosts to where the neighbours read them. */
void cvy_hosts_pass_on(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_hosts *h = &e->here.set.hosts;
	size_t most = cvy_tick_bytes(op, i);
	uint8_t *parts = cvy_own_slot(e, op, i) + e->here.layout.slot_bytes;

	if (op->way == CVY_WAY_CHAIN) {
		cvy_chain_pass_on(e, op, i, line);
		return;
	}
	line->bytes = 0;
	for (int k = 0; h->local > 1 && most && k < e->here.set.n; k++) {
		const struct cvy_line *first = cvy_source_line(e, op, i, k, 1);
		uint8_t *to = parts + cvy_hosts_place(e, op, k);
		size_t n = first->bytes < most ? first->bytes : most;

		if (h->via[k] != e->here.set.self || k == e->here.set.self)
			continue;
		if (op->kind->op_class == CVY_OP_ROOT && e->here.set.rank[k] != op->root)
			continue;
		memcpy(to, cvy_piece_of(e, op, i, k), n);
		for (int m = 0; m < h->nmate; m++)
			cvy_put(e, h->mate[m], to, n);
	}
}

static int has(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k, int round)
{
	return e->here.set.page[k] && __atomic_load_n(&cvy_source_line(e, op, i, k, round)->tag, __ATOMIC_ACQUIRE) ==
					      cvy_tag(e->here.epoch, op->first + (uint32_t)i);
}

int cvy_hosts_stand(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i)
{
	for (int round = 1; round <= 2; round++)
		for (int k = 0; k < e->here.set.n; k++)
			if (cvy_hosts_needs(e, op, k, round) && !has(e, op, i, k, round))
				return 0;
	return 1;
}

size_t cvy_hosts_used(const struct cvy_engine *e, const struct cvy_op *op)
{
	size_t parts = parts_bytes(e, op), own = op->bytes < op->piece ? op->bytes : op->piece;

	if (op->way == CVY_WAY_CHAIN)
		return e->here.layout.slot_bytes;
	return parts > own ? parts : own;
}
