/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of covey_explain for device memory: the form of an operation from each size on. It asks shape.h size by
 * size, so it shows the forms of real launches. Forms were chosen by times measured on H200s, not by a model of costs:
 * there are no costs to print, and COVEY_ALGO has no effect.
 */
#include "device_explain.h"

#include <inttypes.h>
#include <string.h>

#include "device_state.h"
#include "levels.h"
#include "shape.h"
#include "size.h"

#define BANDS 24
#define NAMES 120

struct band {
	uint64_t from, to;
	struct cvy_gpu_call form; /* of the size `from` */
	int lanes;		  /* of the size `to` */
};

struct table {
	char names[NAMES]; /* of the operations in this row */
	struct band band[BANDS];
	int bands;
};

static const struct {
	const char *name;
	int kind;
} operations[] = {
	{ "allreduce", CVY_GPU_ALLREDUCE },   { "reduce_scatter", CVY_GPU_REDUCE_SCATTER },
	{ "allgather", CVY_GPU_ALLGATHER },   { "alltoall", CVY_GPU_ALLTOALL },
	{ "broadcast", CVY_GPU_BROADCAST },   { "reduce", CVY_GPU_REDUCE },
	{ "gather", CVY_GPU_GATHER },	      { "scatter", CVY_GPU_SCATTER },
	{ "allgatherv", CVY_GPU_ALLGATHERV }, { "alltoallv", CVY_GPU_ALLTOALLV },
	{ "barrier", CVY_GPU_BARRIER },
};

#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

static struct cvy_gpu_call form_at(int i, uint64_t bytes)
{
	struct cvy_gpu_call c = { .kind = operations[i].kind, .bytes = bytes, .redop = COVEY_SUM, .size = 3 };

	cvy_gpu_shape(&c);
	/* Registered buffers are read in whole packets: a size in between is pushed, and its row says this for all. */
	c.bytes = bytes / CVY_GPU_PACKET * CVY_GPU_PACKET;
	c.pulls = cvy_gpu_pulls(&c);
	return c;
}

/* The same form, apart from the number of lanes, which depends on the size of a step? */
static int alike(const struct cvy_gpu_call *a, const struct cvy_gpu_call *b)
{
	return a->kind == b->kind && a->packet == b->packet && a->threads == b->threads && a->rows == b->rows &&
	       a->pulls == b->pulls && a->levels == b->levels;
}

#define MOST_BYTES ((uint64_t)1 << 40)

/* The largest size that has the form of @from. */
static uint64_t band_end(int i, uint64_t from)
{
	struct cvy_gpu_call form = form_at(i, from), other;
	uint64_t low = from, high = from ? from : 1;

	for (;;) {
		if (high >= MOST_BYTES)
			return MOST_BYTES;
		other = form_at(i, high);
		if (!alike(&form, &other))
			break;
		low = high;
		high *= 2;
	}
	while (high - low > 1) {
		uint64_t middle = low + (high - low) / 2;

		other = form_at(i, middle);
		if (alike(&form, &other))
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void table_of(int i, struct table *t)
{
	uint64_t from = 0;

	memset(t, 0, sizeof(*t));
	snprintf(t->names, sizeof(t->names), "%s", operations[i].name);
	while (from < MOST_BYTES && t->bands < BANDS) {
		struct band *b = &t->band[t->bands++];

		b->from = from;
		b->to = operations[i].kind == CVY_GPU_BARRIER ? MOST_BYTES : band_end(i, from);
		b->form = form_at(i, from);
		b->lanes = operations[i].kind == CVY_GPU_BARRIER ? b->form.lanes : form_at(i, b->to).lanes;
		from = b->to + 1;
	}
}

static int same_band(const struct band *a, const struct band *b)
{
	int two_a = cvy_gpu_has_rounds(a->form.kind), two_b = cvy_gpu_has_rounds(b->form.kind);

	return a->from == b->from && a->to == b->to && two_a == two_b && a->lanes == b->lanes &&
	       a->form.lanes == b->form.lanes && a->form.packet == b->form.packet &&
	       a->form.threads == b->form.threads && a->form.rows == b->form.rows && a->form.pulls == b->form.pulls &&
	       a->form.levels == b->form.levels;
}

static int same_table(const struct table *a, const struct table *b)
{
	int same = a->bands == b->bands;

	for (int i = 0; same && i < a->bands; i++)
		same = same_band(&a->band[i], &b->band[i]);
	return same;
}

static void print_band(const struct band *b, FILE *to)
{
	const struct cvy_gpu_call *f = &b->form;
	char from[24], end[24], step[24], lanes[24];

	if (f->lanes == b->lanes)
		snprintf(lanes, sizeof(lanes), "%d", b->lanes);
	else
		snprintf(lanes, sizeof(lanes), "%d-%d", f->lanes, b->lanes);
	fprintf(to, "%8s %8s  %-7s %-5s %7s %8s %8d %5d  %s%s\n", cvy_size_text(b->from, from),
		b->to < MOST_BYTES ? cvy_size_text(b->to, end) : "-", f->packet == CVY_GPU_PAIR ? "16 B" : "128 B",
		cvy_gpu_has_rounds(f->kind) ? "two" : "one", lanes,
		cvy_size_text(8 * cvy_gpu_tile_words(f->packet, f->rows * f->threads), step), f->threads, f->rows,
		f->pulls ? "registered are read in place" : "pushed", f->levels ? "; two levels between hosts" : "");
}

void cvy_device_forms(FILE *to)
{
	struct table table, next;

	fprintf(to, "%8s %8s  %-7s %-5s %7s %8s %8s %5s  %s\n", "from", "to", "packets", "shots", "lanes", "a step",
		"threads", "rows", "buffers");
	table_of(0, &table);
	for (size_t i = 1; i <= OPERATIONS; i++) {
		if (i < OPERATIONS) {
			size_t n = strlen(table.names);

			table_of((int)i, &next);
			if (same_table(&table, &next)) {
				snprintf(table.names + n, sizeof(table.names) - n, ", %s", operations[i].name);
				continue;
			}
		}
		fprintf(to, "%s:\n", table.names);
		for (int b = 0; b < table.bands; b++)
			print_band(&table.band[b], to);
		table = next;
	}
}

/* How ranks of other hosts are reached; nothing if there are none. */
static void print_queues(const struct cvy_device *d, FILE *to)
{
	int any = 0;

	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		int way = __atomic_load_n(&d->peer[r].far.way, __ATOMIC_ACQUIRE);

		if (way)
			fprintf(to, "%srank %d by %s", any++ ? ", " : "queues to other hosts: ", r,
				cvy_queues_word(way));
	}
	if (any) /* the proxy was there before the first of them */
		fprintf(to, "\nput to other hosts by the proxy: %" PRIu64 " bytes\n", cvy_proxy_bytes(d->queues.proxy));
}

/* How large operations go between hosts; nothing if there is one host. */
static void print_levels(struct cvy_device *d, FILE *to)
{
	struct cvy_levels l;
	cvy_ranks mask;
	int width, several;

	pthread_mutex_lock(&d->lock);
	mask = d->contributors;
	width = d->width;
	several = d->several;
	pthread_mutex_unlock(&d->lock);
	l = cvy_levels_of(mask, d->rank, width);
	if (l.hosts)
		fprintf(to, "two levels between hosts: %d hosts of %d ranks\n", l.hosts, cvy_levels_count(l.near));
	else if (several)
		fprintf(to, "two levels between hosts: not now, since %s\n",
			CVY_GPU_IS_WIDE ? "this library is built for more than 32 ranks"
			: width		? "hosts do not have the same number of ranks, two at least"
				: "ranks are not numbered host by host, a host has one rank, or a member has called an "
				  "operation that would take them while all were on one host");
}

void cvy_device_explain(struct cvy_device *d, FILE *to)
{
	fprintf(to, "\non device memory (%s); forms by size of a block, as they were fastest on H200s: no costs\n",
		d->ops->describe(d->gpu));
	fprintf(to,
		"lanes: the least power of two whose step holds the block, %d at most; two shots (of broadcast: hops) "
		"with three ranks or more, else one\n",
		CVY_GPU_LANES);
	if (d->window_bytes)
		fprintf(to,
			"registered memory: %zu bytes a rank; read in place where all buffers are in it and a block is "
			"whole packets of 16 B\n",
			d->window_bytes);
	else
		fprintf(to, "registered memory: none (device_window_bytes is 0), all is pushed\n");
	print_queues(d, to);
	print_levels(d, to);
	cvy_device_forms(to);
}
