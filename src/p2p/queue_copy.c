/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of a proxy as copies (queue/queue_memory.h): the copy engines of this host reach the far end's memory, but no
 * posting thread may touch it.
 *
 * To start a copy takes longer than to copy a lane's bytes. So commands are held until none has come for a while or
 * there is no room for more, and also while CVY_COPIER_MARKS batches are under way. A kernel's commands, posted lane by
 * lane, become one copy or few. Puts between two signals are sorted by destination. Puts that touch become one; puts of
 * one size at even distances become rows of one copy. Overlapping puts keep the order in which they were posted.
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "queues.h"

#define HELD 256 /* commands; these and those under way have at most CVY_COPIER_STORES stores */
#define BROKEN 255
#define PATIENCE 16 /* times quiet_ns, counted from the first held command */

struct cvy_copy_sender {
	struct cvy_copies copies;
	size_t bytes;
	struct cvy_ring_command held[HELD];
	unsigned nheld;
	uint64_t seen, seen_ns;	       /* commands posted at the last look, and since when */
	uint64_t first_ns;	       /* when the first held command was seen; 0: not yet */
	uint64_t posted, done, status; /* commands */
	uint64_t marks, reached;
	uint64_t behind[CVY_COPIER_MARKS]; /* commands posted before that mark */
};

/* One call of the copier. */
struct rows {
	uint64_t remote, local;
	size_t bytes, rows, stride;
};

int cvy_copy_sender_open(const struct cvy_copies *copies, size_t bytes, struct cvy_copy_sender **out)
{
	struct cvy_copy_sender *s = calloc(1, sizeof(*s));

	if (!s)
		return COVEY_ERR_NOMEM;
	s->copies = *copies;
	s->bytes = bytes;
	*out = s;
	return 0;
}

void cvy_copy_sender_close(struct cvy_copy_sender *s)
{
	free(s);
}

/* ---- held commands become copies ---- */

/* One pass of sort_by_place: into to[], by one byte of the destination. */
static void pass(const struct cvy_ring_command *c, const uint8_t *from, unsigned n, int shift, uint8_t *to)
{
	unsigned at[256] = { 0 }, before = 0;

	for (unsigned i = 0; i < n; i++)
		at[c[from[i]].remote >> shift & 0xff]++;
	for (int b = 0; b < 256; b++) {
		unsigned here = at[b];

		at[b] = before;
		before += here;
	}
	for (unsigned i = 0; i < n; i++)
		to[at[c[from[i]].remote >> shift & 0xff]++] = from[i];
}

/*
 * Sorts byte by byte, the lowest first, and skips bytes that are the same in all commands: for the slots of a step, one
 * byte differs. A comparing sort takes longer than the copies, since no processor predicts how lanes post.
 */
static void sort_by_place(const struct cvy_ring_command *c, unsigned n, struct cvy_ring_command *sorted)
{
	uint8_t order[2][HELD] = { { 0 } };
	uint64_t differ = 0;
	int now = 0;

	for (unsigned i = 0; i < n; i++) {
		order[0][i] = (uint8_t)i;
		differ |= c[i].remote ^ c[0].remote;
	}
	for (int shift = 0; differ >> shift; shift += 8) {
		if (!(differ >> shift & 0xff))
			continue;
		pass(c, order[now], n, shift, order[!now]);
		now = !now;
	}
	for (unsigned i = 0; i < n; i++)
		sorted[i] = c[order[now][i]];
}

static int overlap(const struct cvy_ring_command *c, unsigned n)
{
	for (unsigned i = 1; i < n; i++)
		if (c[i].remote < c[i - 1].remote + c[i - 1].bytes)
			return 1;
	return 0;
}

static int copy(struct cvy_copy_sender *s, const struct rows *r)
{
	const struct cvy_copier *to = &s->copies.copier;

	return r->bytes ? to->copy(to->ctx, s->copies.to + r->remote, s->copies.from + r->local, r->bytes, r->rows,
				   r->stride)
			: 0;
}

/* 1: @c, whose destination is behind all of @r, has become part of it. */
static int joins(struct rows *r, const struct cvy_ring_command *c)
{
	uint64_t last = r->remote + (r->rows - 1) * r->stride;

	if (c->remote - r->remote != c->local - r->local)
		return 0;
	if (r->rows == 1 && c->remote == r->remote + r->bytes) {
		r->bytes += c->bytes;
		return 1;
	}
	if (c->bytes != r->bytes || (r->rows > 1 && c->remote - last != r->stride))
		return 0;
	r->stride = c->remote - last;
	r->rows++;
	return 1;
}

/* Copies puts without a signal between them. */
static int copy_puts(struct cvy_copy_sender *s, struct cvy_ring_command *c, unsigned n)
{
	struct cvy_ring_command sorted[HELD];
	struct rows r = { 0 };
	int err = 0, as_posted;

	sort_by_place(c, n, sorted);
	as_posted = overlap(sorted, n);
	if (!as_posted)
		c = sorted;
	for (unsigned i = 0; i < n && !err; i++) {
		if (i && !as_posted && joins(&r, &c[i]))
			continue;
		err = copy(s, &r);
		r = (struct rows){ c[i].remote, c[i].local, c[i].bytes, 1, 0 };
	}
	return err ? err : copy(s, &r);
}

static int copy_held(struct cvy_copy_sender *s)
{
	const struct cvy_copier *to = &s->copies.copier;
	unsigned from = 0;
	int err = 0;

	for (unsigned i = 0; i <= s->nheld && !err; i++) {
		if (i < s->nheld && s->held[i].op == CVY_RING_PUT)
			continue;
		if (i > from)
			err = copy_puts(s, s->held + from, i - from);
		if (i < s->nheld && !err)
			err = to->store(to->ctx, s->copies.to + s->held[i].remote, s->held[i].value);
		from = i + 1;
	}
	return err ? err : to->mark(to->ctx);
}

/* ---- the link ---- */

/* More commands are coming, and there is room for them. */
static int is_coming(struct cvy_copy_sender *s)
{
	uint64_t now;

	if (!s->nheld || s->nheld == HELD)
		return 0;
	now = cvy_now_ns();
	if (s->seen != s->posted)
		s->seen_ns = now;
	s->seen = s->posted;
	if (!s->first_ns)
		s->first_ns = now;
	return now - s->seen_ns < s->copies.quiet_ns && now - s->first_ns < PATIENCE * s->copies.quiet_ns;
}

static void sender_flush(void *ctx)
{
	struct cvy_copy_sender *s = ctx;

	if (!s->nheld || s->status || s->marks - s->reached == CVY_COPIER_MARKS || is_coming(s))
		return;
	if (copy_held(s))
		s->status = BROKEN;
	s->behind[s->marks++ % CVY_COPIER_MARKS] = s->posted;
	s->nheld = 0;
	s->first_ns = 0;
}

static int is_within(const struct cvy_copy_sender *s, const struct cvy_ring_command *c)
{
	if (c->op == CVY_RING_PUT)
		return cvy_queue_within(c->local, c->bytes, s->bytes) &&
		       cvy_queue_within(c->remote, c->bytes, s->bytes);
	return c->op == CVY_RING_SIGNAL && c->remote % 8 == 0 && cvy_queue_within(c->remote, 8, s->bytes);
}

static int sender_post(void *ctx, const struct cvy_ring_command *c)
{
	struct cvy_copy_sender *s = ctx;

	if (!is_within(s, c))
		return COVEY_ERR_INVAL;
	if (s->nheld == HELD)
		sender_flush(s);
	if (s->status)
		return COVEY_ERR_PEER;
	if (s->nheld == HELD)
		return COVEY_ERR_AGAIN;
	s->held[s->nheld++] = *c;
	s->posted++;
	return 0;
}

static uint64_t sender_done(void *ctx, uint64_t *status)
{
	struct cvy_copy_sender *s = ctx;
	const struct cvy_copier *to = &s->copies.copier;
	uint64_t reached = s->reached;

	sender_flush(s);
	*status = s->status;
	if (is_coming(s)) { /* several for each look: this thread reads where posters write */
		cvy_q_pause();
		return s->done;
	}
	if (!s->status && to->reached(to->ctx, &reached))
		s->status = BROKEN;
	if (reached > s->reached)
		s->done = s->behind[(reached - 1) % CVY_COPIER_MARKS];
	s->reached = reached;
	sender_flush(s);
	*status = s->status;
	return s->done;
}

void cvy_copy_sender_link(struct cvy_copy_sender *s, struct cvy_proxy_link *link)
{
	*link = (struct cvy_proxy_link){ .ctx = s,
					 .local_bytes = s->bytes,
					 .remote_bytes = s->bytes,
					 .post = sender_post,
					 .flush = sender_flush,
					 .done = sender_done };
}
