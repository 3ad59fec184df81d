/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space of the heap that is given back while other ranks may still read its data.
 *
 * Giving back and taking again are local and wait for nobody: offsets follow from the order of the calls alone. Only
 * the first operation that would write into such space waits: it is not published before every member has decided the
 * last operation that used the space (op->behind). A member shows this by its done word, which a waiting rank sends
 * too, or by its line of this very operation: a rank that has entered it has decided all before. So a rank with fresh
 * space need not wait, and keeps nobody waiting. An active view shows it for all operations below its base, so nothing
 * is left to wait for when the operation is done again.
 *
 * The application may write into its memory (lend.c) at any time, so none is taken where others may still read. Lent
 * space needs no word: an operation with lent inputs ends when all have read them.
 */
#include "engine_state.h"

static int overlaps(const struct cvy_extent *a, size_t offset, size_t bytes)
{
	return a->offset < offset + bytes && offset < a->offset + a->bytes;
}

/* Has the k-th source decided operation @seq? */
static int source_passed(const struct cvy_engine *e, int k, uint64_t seq)
{
	const struct cvy_page *page = e->here.set.page[k];

	if (k == e->here.set.self || !page)
		return 1;
	return __atomic_load_n(&page->done.aux, __ATOMIC_ACQUIRE) >= seq ||
	       (e->peer_done && __atomic_load_n(&e->peer_done[e->here.set.rank[k]], __ATOMIC_ACQUIRE) >= seq);
}

/* Has every member, without a question to any? Lock held. */
static int all_passed(struct cvy_engine *e, uint64_t seq)
{
	if (seq <= e->passed)
		return 1;
	if (!e->active || seq > e->done)
		return 0;
	for (int k = 0; seq >= e->view->base && k < e->here.set.n; k++)
		if (!source_passed(e, k, seq))
			return 0;
	e->passed = seq;
	return 1;
}

static void forget_passed(struct cvy_engine *e)
{
	int n = 0;

	for (int i = 0; i < e->nused; i++)
		if (!all_passed(e, e->used[i].seq))
			e->used[n++] = e->used[i];
	e->nused = n;
}

/* If there are too many records, merges the first two into one that covers both. */
static void make_room(struct cvy_engine *e)
{
	struct cvy_used *a = &e->used[0], *b = &e->used[1];
	size_t from = a->at.offset < b->at.offset ? a->at.offset : b->at.offset;
	size_t end_a = a->at.offset + a->at.bytes, end_b = b->at.offset + b->at.bytes;

	b->at = (struct cvy_extent){ from, (end_a > end_b ? end_a : end_b) - from };
	b->seq = a->seq > b->seq ? a->seq : b->seq;
	e->nused--;
	for (int i = 0; i < e->nused; i++)
		e->used[i] = e->used[i + 1];
}

void cvy_space_free(struct cvy_engine *e, size_t offset, size_t bytes, uint64_t seq)
{
	pthread_mutex_lock(&e->lock);
	forget_passed(e);
	if (seq && !all_passed(e, seq)) {
		if (e->nused == CVY_USED_MAX)
			make_room(e);
		e->used[e->nused++] = (struct cvy_used){ { offset, bytes }, seq };
	}
	cvy_mesh_heap_free(e->mesh, offset, bytes);
	pthread_mutex_unlock(&e->lock);
}

size_t cvy_space_alloc(struct cvy_engine *e, size_t bytes, uint64_t *behind)
{
	size_t offset;

	pthread_mutex_lock(&e->lock);
	offset = cvy_mesh_heap_alloc(e->mesh, bytes);
	for (int i = 0; offset && i < e->nused; i++)
		if (overlaps(&e->used[i].at, offset, bytes) && e->used[i].seq > *behind)
			*behind = e->used[i].seq;
	pthread_mutex_unlock(&e->lock);
	return offset;
}

/* The place follows from the calls alone, as all in the heap: it is never another one because somebody is slow. */
size_t cvy_space_alloc_top(struct cvy_engine *e, size_t bytes, int *held)
{
	size_t offset;

	pthread_mutex_lock(&e->lock);
	forget_passed(e);
	offset = cvy_mesh_heap_alloc_top(e->mesh, bytes);
	*held = 0;
	for (int i = 0; offset && i < e->nused; i++)
		*held |= overlaps(&e->used[i].at, offset, bytes);
	if (*held) {
		cvy_mesh_heap_free(e->mesh, offset, bytes);
		offset = 0;
	}
	pthread_mutex_unlock(&e->lock);
	return offset;
}

enum clear { UNKNOWN, CLEAR, ANOTHER_CALL };

/* Is the k-th source past everything that it may still read, as far as is known here? */
static enum clear source_clear(const struct cvy_engine *e, const struct cvy_op *op, int k)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first);
	const struct cvy_line *line;
	int here;

	if (source_passed(e, k, op->behind))
		return CLEAR;
	line = cvy_source_line(e, op, 0, k, 1);
	here = __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == tag;
	if (here && line->sig == op->mark)
		return CLEAR;
	return here || cvy_line_passed(line, tag) ? ANOTHER_CALL : UNKNOWN;
}

int cvy_space_clear(struct cvy_engine *e, struct cvy_op *op)
{
	if (all_passed(e, op->behind))
		return 1;
	if (e->here.own->done.tag != cvy_tag(e->here.epoch, op->first - 1))
		cvy_tell_done(e, NULL, op->first - 1);
	for (int k = 0; k < e->here.set.n; k++) {
		enum clear clear = source_clear(e, op, k);

		if (clear == ANOTHER_CALL)
			cvy_engine_mismatch(e, op, k, cvy_source_line(e, op, 0, k, 1));
		if (clear != CLEAR)
			return 0;
	}
	e->passed = op->behind;
	return 1;
}

const struct cvy_line *cvy_space_missing(const struct cvy_engine *e, const struct cvy_op *op, uint64_t *want, int *k)
{
	*want = cvy_tag(e->here.epoch, op->first - 1);
	for (*k = 0; *k < e->here.set.n; ++*k)
		if (source_clear(e, op, *k) != CLEAR)
			return &e->here.set.page[*k]->done;
	return NULL;
}
