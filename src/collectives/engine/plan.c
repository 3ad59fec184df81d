/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of algorithms, their costs, and the choices of COVEY_ALGO.
 *
 * Costs are those of a rank that waits for the last byte: ways between hosts, messages of its host's busiest rank,
 * bytes that leave the busiest host, bytes that a rank copies and folds. Their constants are of one machine (two cores,
 * sockets over loopback), and only the order of two costs matters. If all ranks are on one host, the bounds in the
 * table decide alone.
 */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "algo.h"
#include "algorithm.h"

#define HOP_NS 25000	/* one way between hosts, one line */
#define MESSAGE_NS 3000 /* to hand a message to a socket and to take it from one */
#define FLAG_NS 250	/* one way inside a host */
#define NET_PS 400	/* a byte between hosts, in 1/1000 ns */
#define MEMORY_PS 40	/* a byte copied or folded */

#define MANY SIZE_MAX

static uint64_t cost(const struct cvy_shape *s, int hops, int messages, uint64_t wire, uint64_t memory)
{
	return (uint64_t)hops * (s->hosts > 1 ? HOP_NS : FLAG_NS) + s->ticks * (uint64_t)messages * MESSAGE_NS +
	       wire * NET_PS / 1000 + memory * MEMORY_PS / 1000;
}

/* ranks on other hosts, seen from the widest host */
static int remote(const struct cvy_shape *s)
{
	return s->ranks - s->widest;
}

static uint64_t all(const struct cvy_shape *s, int blocks)
{
	return (uint64_t)blocks * s->bytes;
}

/* Every rank's input travels to every rank. */
static uint64_t cost_flat(const struct cvy_shape *s)
{
	return cost(s, 1, remote(s), all(s, s->widest * remote(s)), all(s, s->ranks + 1));
}

static uint64_t cost_twoshot(const struct cvy_shape *s)
{
	return cost(s, 2, 2 * remote(s), 2 * all(s, s->widest * remote(s)) / (uint64_t)s->ranks, all(s, 4));
}

static uint64_t cost_twolevel(const struct cvy_shape *s)
{
	return FLAG_NS + cost(s, 1, s->hosts - 1, all(s, s->widest * (s->hosts - 1)), all(s, s->ranks + 1 + s->parts));
}

/* A fold of all inputs leaves each host once, and the last host sends the result to each. */
static uint64_t cost_chain(const struct cvy_shape *s)
{
	return 2 * FLAG_NS + cost(s, s->hosts, s->hosts, all(s, s->hosts - 1), all(s, 4));
}

static uint64_t cost_root(const struct cvy_shape *s)
{
	return cost(s, 1, remote(s), all(s, remote(s)), all(s, 2));
}

static uint64_t cost_root_twolevel(const struct cvy_shape *s)
{
	return FLAG_NS + cost(s, 1, s->hosts - 1, all(s, s->hosts - 1), all(s, 3));
}

static size_t part(const struct cvy_shape *s)
{
	return cvy_round_up(s->bytes < s->piece ? s->bytes : s->piece, CVY_CACHE_LINE);
}

/* The parts from other hosts must fit half a slot. */
static int can_twolevel(const struct cvy_algorithm *a, const struct cvy_shape *s)
{
	size_t parts = a->kind->op_class == CVY_OP_ROOT ? 1 : (size_t)s->parts;

	return s->hosts > 1 && s->hosts < s->ranks && parts * part(s) <= s->slot_bytes;
}

/* A fold that is passed on must be exact for the next host: 16-bit floats are folded in more bits than they have. */
static int can_chain(const struct cvy_algorithm *a, const struct cvy_shape *s)
{
	(void)a;
	return s->hosts > 1 && s->even && s->widest > 1 && s->bytes > CVY_LINE_DATA && s->dtype != COVEY_FLOAT16 &&
	       s->dtype != COVEY_BFLOAT16;
}

#define TWOLEVEL "one rank of a host receives for all of it"

static const struct cvy_algorithm algorithms[] = {
	{ "oneshot", &cvy_op_allreduce, 1, CVY_WAY_FLAT, 1, 0, CVY_ONE_SHOT_BYTES, NULL, cost_flat,
	  "each rank folds all inputs" },
	{ "oneshot", &cvy_op_allreduce, 1, CVY_WAY_FLAT, -2, 0, MANY, NULL, cost_flat,
	  "each of two ranks folds both inputs" },
	{ "twoshot", &cvy_op_allreduce, 2, CVY_WAY_FLAT, 3, CVY_ONE_SHOT_BYTES + 1, MANY, NULL, cost_twoshot,
	  "each rank folds a shard for all" },
	{ "twolevel", &cvy_op_allreduce, 2, CVY_WAY_HOSTS, 3, 0, MANY, can_twolevel, cost_twolevel, TWOLEVEL },
	{ "chain", &cvy_op_allreduce, 2, CVY_WAY_CHAIN, 3, 0, MANY, can_chain, cost_chain,
	  "a running fold goes from host to host" },
	{ "flat", &cvy_op_broadcast, 0, CVY_WAY_FLAT, 1, 0, MANY, NULL, cost_root, "the root tells each rank" },
	{ "twolevel", &cvy_op_broadcast, 2, CVY_WAY_HOSTS, 3, 0, MANY, can_twolevel, cost_root_twolevel, TWOLEVEL },
	{ "flat", &cvy_op_allgather, 0, CVY_WAY_FLAT, 1, 0, MANY, NULL, cost_flat, "each rank tells each" },
	{ "twolevel", &cvy_op_allgather, 2, CVY_WAY_HOSTS, 3, 0, MANY, can_twolevel, cost_twolevel, TWOLEVEL },
	{ "flat", &cvy_op_allgatherv, 0, CVY_WAY_FLAT, 1, 0, MANY, NULL, cost_flat, "each rank tells each" },
	{ "twolevel", &cvy_op_allgatherv, 2, CVY_WAY_HOSTS, 3, 0, MANY, can_twolevel, cost_twolevel, TWOLEVEL },
	{ "flat", &cvy_op_barrier, 0, CVY_WAY_FLAT, 1, 0, MANY, NULL, cost_flat, "each rank tells each" },
	{ "twolevel", &cvy_op_barrier, 2, CVY_WAY_HOSTS, 3, 0, MANY, can_twolevel, cost_twolevel, TWOLEVEL },
};

#define ALGORITHMS (sizeof(algorithms) / sizeof(algorithms[0]))

/* ---- COVEY_ALGO ---- */

static int bytes_of(const char **at, size_t *out)
{
	static const char units[] = "KMG";
	char *end;
	unsigned long long n;
	const char *unit;

	errno = 0;
	n = strtoull(*at, &end, 10);
	if (end == *at || errno || !strchr("0123456789", **at))
		return 0;
	unit = *end ? strchr(units, *end & ~0x20) : NULL;
	if (unit && n > SIZE_MAX >> (10 * (unit - units + 1)))
		return 0;
	*out = (size_t)n << (unit ? 10 * (unit - units + 1) : 0);
	*at = end + (unit != NULL);
	return 1;
}

/* ":FROM-TO", either end may be left out; without it: all sizes */
static int range_of(const char **at, struct cvy_plan_rule *rule)
{
	int from, to;

	rule->from = 0;
	rule->to = MANY;
	if (**at != ':')
		return 1;
	++*at;
	from = bytes_of(at, &rule->from);
	if (**at != '-') {
		rule->to = rule->from;
		return from;
	}
	++*at;
	to = bytes_of(at, &rule->to);
	return (from || to) && rule->from <= rule->to;
}

static size_t word_at(const char *at)
{
	return strcspn(at, ":=,");
}

static int is_word(const char *word, const char *at)
{
	return strlen(word) == word_at(at) && !strncmp(word, at, word_at(at));
}

static const struct cvy_algorithm *named(const char *op, const char *name)
{
	for (size_t i = 0; i < ALGORITHMS; i++)
		if (is_word(algorithms[i].kind->name, op) && (!name || is_word(algorithms[i].name, name)))
			return &algorithms[i];
	return NULL;
}

/* Each name once: all operations, or the algorithms of one. */
static void list_names(const struct cvy_op_kind *kind, char *text, size_t bytes)
{
	size_t n = 0;

	text[0] = '\0';
	for (size_t i = 0; i < ALGORITHMS; i++) {
		const struct cvy_algorithm *a = &algorithms[i];
		const char *name = kind ? a->name : a->kind->name;

		if ((kind && a->kind != kind) || (i && a[-1].kind == a->kind && (!kind || !strcmp(a[-1].name, name))))
			continue;
		n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", name);
		if (n >= bytes)
			return;
	}
}

static int wrong(struct cvy_engine *e, const char *text, const char *at, const char *what,
		 const struct cvy_op_kind *kind)
{
	char names[160];

	list_names(kind, names, sizeof(names));
	return cvy_fail(e->here.box, COVEY_ERR_INVAL, -1, 0,
			"algo \"%.80s\" is wrong at \"%.40s\": %s%s; OPERATION[:FROM-TO]=ALGORITHM,... like "
			"allreduce=oneshot,broadcast:1M-=twolevel",
			text, at, what, names);
}

int cvy_plan_rules(struct cvy_engine *e, const char *text)
{
	const char *at = text;

	free(e->rule);
	e->rule = NULL;
	e->rules = 0;
	if (!*text)
		return 0;
	e->rule = calloc(CVY_RULES_MAX, sizeof(*e->rule));
	if (!e->rule)
		return cvy_fail(e->here.box, COVEY_ERR_NOMEM, -1, 0, "no memory for the rules of algo");
	for (;; at++) {
		const char *op = at;
		struct cvy_plan_rule *rule = &e->rule[e->rules];
		const struct cvy_algorithm *any = named(op, NULL);

		if (!any)
			return wrong(e, text, op, "an operation is needed, of ", NULL);
		if (e->rules == CVY_RULES_MAX)
			return wrong(e, text, op, "no more than 32 rules; operations are ", NULL);
		at += word_at(at);
		if (!range_of(&at, rule))
			return wrong(e, text, op, "bytes are needed, like 64K-1M, 1M- or -8; algorithms are ",
				     any->kind);
		if (*at == '=')
			rule->algorithm = named(op, at + 1);
		if (!rule->algorithm)
			return wrong(e, text, op, "an algorithm is needed, of ", any->kind);
		e->rules++;
		at += 1 + word_at(at + 1);
		if (!*at)
			return 0;
		if (*at != ',')
			return wrong(e, text, at, "a comma is needed; algorithms are ", any->kind);
	}
}

/* ---- choice ---- */

static int may(const struct cvy_algorithm *a, const struct cvy_shape *s)
{
	return (a->ranks < 0 ? s->ranks <= -a->ranks : s->ranks >= a->ranks) && (!a->can || a->can(a, s));
}

const struct cvy_algorithm *cvy_plan_best(const struct cvy_engine *e, const struct cvy_op_kind *kind,
					  const struct cvy_shape *s, int *asked)
{
	const struct cvy_algorithm *best = NULL;
	uint64_t least = 0;

	*asked = 0;
	for (int i = 0; i < e->rules; i++) {
		const struct cvy_plan_rule *r = &e->rule[i];

		if (r->algorithm->kind == kind && s->bytes >= r->from && s->bytes <= r->to &&
		    (!r->algorithm->can || r->algorithm->can(r->algorithm, s))) {
			*asked = 1;
			return r->algorithm;
		}
	}
	for (size_t i = 0; i < ALGORITHMS; i++) {
		const struct cvy_algorithm *a = &algorithms[i];
		uint64_t ns;

		if (a->kind != kind || s->bytes < a->from || s->bytes > a->to || !may(a, s))
			continue;
		ns = a->cost_ns(s);
		if (!best || ns < least) {
			best = a;
			least = ns;
		}
	}
	return best;
}

static void shape_of(const struct cvy_engine *e, const struct cvy_op *op, struct cvy_shape *s)
{
	const struct cvy_hosts *h = &e->here.set.hosts;

	*s = (struct cvy_shape){ .ranks = e->here.set.n,
				 .hosts = h->n > 1 ? h->n : 1,
				 .widest = h->n > 1 ? h->widest : e->here.set.n,
				 .even = h->even,
				 .parts = h->most,
				 .dtype = op->dtype,
				 .redop = op->redop,
				 .slot_bytes = e->here.layout.slot_bytes,
				 .piece = op->piece,
				 .bytes = op->bytes,
				 .ticks = op->ticks };
}

void cvy_plan_choose(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_algorithm *a;
	struct cvy_shape s;
	int asked;

	if (!op->flat_rounds)
		op->flat_rounds = op->rounds;
	if (e->here.set.hosts.n <= 1 && !e->rules) { /* as in ranks that begin it: the same rounds */
		op->way = CVY_WAY_FLAT;
		op->rounds = op->flat_rounds;
		return;
	}
	shape_of(e, op, &s);
	a = cvy_plan_best(e, op->kind, &s, &asked);
	op->way = a ? a->way : CVY_WAY_FLAT;
	op->rounds = a && a->rounds ? a->rounds : op->flat_rounds;
}

/* ---- the choices in words ---- */

static const struct cvy_algorithm *at_size(struct cvy_engine *e, const struct cvy_op_kind *kind, size_t bytes,
					   struct cvy_shape *s, int *asked)
{
	static uint8_t nowhere[2];
	struct cvy_op op = { .kind = kind,
			     .bytes = bytes,
			     .count = bytes,
			     .elem = 1,
			     .rounds = 1,
			     .ticks = 1,
			     .dtype = COVEY_FLOAT32,
			     .send = nowhere,
			     .recv = nowhere + 1 };

	if (kind->plan)
		kind->plan(e, &op, e->here.size);
	else if (kind == &cvy_op_allgatherv)
		cvy_op_allgather.plan(e, &op, e->here.size);
	shape_of(e, &op, s);
	return cvy_plan_best(e, kind, s, asked);
}

#define MOST_BYTES ((size_t)1 << 30)

/* The largest size with the algorithm of @from; sizes between have it too, since costs grow evenly. */
static size_t band_end(struct cvy_engine *e, const struct cvy_op_kind *kind, size_t from)
{
	struct cvy_shape s;
	int asked, other;
	const struct cvy_algorithm *a = at_size(e, kind, from, &s, &asked);
	size_t low = from, high = from ? from : 1;

	while (high < MOST_BYTES && at_size(e, kind, high, &s, &other) == a && other == asked) {
		low = high;
		high *= 2;
	}
	if (high >= MOST_BYTES && at_size(e, kind, MOST_BYTES, &s, &other) == a)
		return MOST_BYTES;
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (at_size(e, kind, middle, &s, &other) == a && other == asked)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void explain_kind(struct cvy_engine *e, const struct cvy_op_kind *kind, FILE *to)
{
	size_t from = 0;

	for (;;) {
		size_t end = kind == &cvy_op_barrier ? MOST_BYTES : band_end(e, kind, from);
		char a[24], b[24];
		struct cvy_shape s;
		int asked;
		const struct cvy_algorithm *taken = at_size(e, kind, from, &s, &asked);
		double us = (double)taken->cost_ns(&s) / 1000;

		fprintf(to, "%-12s %8s %8s  %-9s", kind->name, cvy_size_text(from, a),
			end < MOST_BYTES ? cvy_size_text(end, b) : "-", taken->name);
		if (s.hosts > 1)
			fprintf(to, " %10.1f", us);
		else
			fprintf(to, " %10s", "-");
		fprintf(to, "  %s%s\n", taken->why, asked ? " (COVEY_ALGO)" : "");
		if (end >= MOST_BYTES)
			return;
		from = end + 1;
	}
}

void cvy_plan_explain(struct cvy_engine *e, FILE *to)
{
	const struct cvy_hosts *h = &e->here.set.hosts;

	pthread_mutex_lock(&e->lock);
	fprintf(to, "ranks %d, hosts %d", e->here.set.n, h->n > 1 ? h->n : 1);
	if (h->n > 1)
		fprintf(to, ", up to %d ranks on one%s", h->widest,
			h->even ? ", all alike and of neighbouring ranks" : "");
	fprintf(to, "\noperation        from       to  algorithm    us at from  why\n");
	for (size_t i = 0; i < ALGORITHMS; i++)
		if (!i || algorithms[i].kind != algorithms[i - 1].kind)
			explain_kind(e, algorithms[i].kind, to);
	pthread_mutex_unlock(&e->lock);
}
