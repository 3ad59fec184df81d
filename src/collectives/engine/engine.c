/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of a group: operations are posted, decided in order, and recorded for repair. Their steps are in step.c.
 * Nothing here waits for another rank; wait.c does.
 */
#include "engine_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "guard.h"
#include "log.h"
#include "outcome.h"
#include "pair_state.h"
#include "process.h"
#include "recorded.h"

int cvy_engine_open(struct cvy_engine **out, struct cvy_mesh *mesh, struct cvy_errbox *box, size_t undo_bytes)
{
	struct cvy_engine *e = calloc(1, sizeof(*e));
	char why[CVY_HINT];
	int err = 0;

	if (!e)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "no memory for an engine");
	pthread_mutex_init(&e->lock, NULL);
	e->mesh = mesh;
	e->fault = cvy_mesh_fault(mesh);
	e->here.box = box;
	e->here.layout = cvy_mesh_layout(mesh);
	e->anew = UINT64_MAX;
	e->here.own_base = cvy_mesh_own(mesh);
	e->here.own = (struct cvy_page *)e->here.own_base;
	e->undo_bytes = undo_bytes;
	e->here.rank = -1;
	e->gate = 1;
	e->here.plans = 1;
	e->idle_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->idle_fd < 0)
		err = cvy_fail(box, COVEY_ERR_IO, -1, 0, "eventfd: %s%s", strerror(errno),
			       cvy_process_hint(errno, why, sizeof(why)));
	else if (cvy_repair_open(e))
		err = cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "no memory for an engine");
	if (err)
		cvy_engine_close(e);
	else
		*out = e;
	return err;
}

void cvy_engine_connect(struct cvy_engine *e, struct cvy_sink sink,
			int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body,
				    uint32_t bytes),
			void *send_ctx)
{
	e->sink = sink;
	e->send = send;
	e->send_ctx = send_ctx;
}

void cvy_engine_set_late(struct cvy_engine *e, int late_ms, int evict)
{
	e->late_ms = late_ms;
	e->late_evict = evict;
}

void cvy_engine_set_on_loss(struct cvy_engine *e, int on_loss)
{
	e->here.on_loss = on_loss;
}

void cvy_engine_set_slice(struct cvy_engine *e, int ms)
{
	__atomic_store_n(&e->slice_ns, (uint64_t)ms * CVY_MS, __ATOMIC_RELAXED);
}

void cvy_engine_record_to(struct cvy_engine *e, struct cvy_flight *flight)
{
	e->flight = flight;
}

int cvy_engine_await_admit(struct cvy_engine *e)
{
	int joins;

	pthread_mutex_lock(&e->lock);
	joins = !e->active;
	if (joins)
		__atomic_store_n(&e->here.pending, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&e->lock);
	return joins;
}

pthread_mutex_t *cvy_engine_lock(struct cvy_engine *e)
{
	return &e->lock;
}

int cvy_engine_late_ms(const struct cvy_engine *e)
{
	return e->late_ms;
}

uint64_t cvy_engine_done(const struct cvy_engine *e)
{
	return __atomic_load_n(&e->done, __ATOMIC_RELAXED);
}

static int within(const void *at, const void *from, size_t bytes)
{
	return (uintptr_t)at >= (uintptr_t)from && (uintptr_t)at - (uintptr_t)from < bytes;
}

uint64_t cvy_engine_uses(struct cvy_engine *e, const void *from, size_t bytes)
{
	uint64_t seq = 0;

	pthread_mutex_lock(&e->lock);
	for (const struct cvy_op *op = e->head; op && !seq; op = op->next)
		if (within(op->send, from, bytes) || within(op->recv, from, bytes))
			seq = op->seq;
	pthread_mutex_unlock(&e->lock);
	return seq;
}

void cvy_engine_identity(struct cvy_engine *e, int rank, int max_ranks)
{
	pthread_mutex_lock(&e->lock);
	e->here.rank = rank;
	e->mask_words = (max_ranks + 63) / 64;
	if (e->view &&
	    e->view->max_ranks != max_ranks) { /* the store forgot the group while it formed: another creator */
		cvy_view_free(e->view);
		free(e->peer_done);
		e->view = NULL;
		e->peer_done = NULL;
	}
	if (!e->view)
		e->view = cvy_view_new(max_ranks);
	if (!e->peer_done)
		e->peer_done = calloc((size_t)max_ranks, sizeof(*e->peer_done));
	pthread_mutex_unlock(&e->lock);
}

void cvy_engine_close(struct cvy_engine *e)
{
	if (!e)
		return;
	cvy_pairs_close(e);
	for (int i = 0; i < CVY_KEPT; i++)
		if (e->record[i])
			cvy_op_put(e->record[i]);
	while (e->head) {
		struct cvy_op *op = e->head;

		e->head = op->next;
		cvy_op_put(op);
	}
	while (e->again) {
		struct cvy_op *op = e->again;

		e->again = op->next_again;
		cvy_op_put(op);
	}
	for (int i = 0; i < 2; i++)
		free(e->spare[i]);
	free(e->undo);
	free(e->rule);
	cvy_repair_drop(e);
	free(e->repair_room);
	cvy_outcome_forget(e);
	cvy_engine_drop_aside(e);
	cvy_set_clear(&e->here.set);
	cvy_view_free(e->view);
	free(e->peer_done);
	free(e->admit_state);
	if (e->idle_fd >= 0)
		close(e->idle_fd);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

/* ---- post and decide ---- */

static void unlink_op(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_op *before = NULL, *at = e->head;

	if (at == op) {
		e->head = op->next;
		e->tail = op->next ? e->tail : NULL;
		return;
	}
	for (; at && at != op; at = at->next)
		before = at;
	if (!at)
		return;
	before->next = op->next;
	if (e->tail == op)
		e->tail = before;
}

/*
 * Keeps a decided operation: repair needs its tick numbers until the next view is active, and the same call finds it
 * here. Takes over a reference.
 */
static void record_op(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_op **at = &e->record[op->seq % CVY_KEPT];

	if (*at)
		cvy_op_put(*at);
	*at = op;
}

struct cvy_op *cvy_engine_record(struct cvy_engine *e, uint64_t seq)
{
	struct cvy_op *op = e->record[seq % CVY_KEPT];

	return op && op->seq == seq ? op : NULL;
}

void cvy_engine_reach(struct cvy_engine *e, uint64_t seq)
{
	__atomic_store_n(&e->done, seq, __ATOMIC_RELAXED);
	e->ent = seq;
	__atomic_store_n(&e->here.own->done.aux, seq, __ATOMIC_RELEASE);
}

/* The first rank of the last safe point that did not contribute; -1: all did. */
static int absent(const struct cvy_engine *e, const struct covey_mask *mask)
{
	for (int w = 0; w < e->mask_words; w++)
		if (e->acked.word[w] & ~mask->word[w])
			return 64 * w + __builtin_ctzll(e->acked.word[w] & ~mask->word[w]);
	return -1;
}

CVY_RARE static int refuse_loss(struct cvy_engine *e, const struct cvy_op *op, uint32_t epoch, int rank)
{
	return cvy_fail(e->here.box, COVEY_ERR_PEER, rank, epoch,
			"operation %llu: rank %d, of the last safe point, did not contribute",
			(unsigned long long)op->seq, rank);
}

void cvy_engine_decide(struct cvy_engine *e, struct cvy_op *op, int status, uint32_t epoch,
		       const struct covey_mask *mask, int size)
{
	struct covey_result *res = &op->result;
	int rank;

	/* A number is given to one call and ends in order; one at or below done was counted by a repair. */
	assert(__atomic_load_n(&e->here.ended, __ATOMIC_RELAXED) || op->seq <= e->done + 1);
	res->status = status;
	res->epoch = epoch;
	res->seq = op->seq;
	res->size = size;
	for (int w = 0; w < e->mask_words; w++) /* the other words are never set */
		res->mask.word[w] = mask->word[w];
	res->wait_ns = op->posted_ns ? cvy_now_ns() - op->posted_ns : 0;
	if (CVY_GUARDED && !status && op->on_loss == COVEY_ON_LOSS_FAIL && op->kind->op_class != CVY_OP_ADMIT &&
	    (rank = absent(e, mask)) >= 0)
		res->status = refuse_loss(e, op, epoch, rank);
	if (res->status && e->here.box)
		cvy_errbox_seq(e->here.box, res->status, op->seq);
	if (op->kind->finish)
		op->kind->finish(e, op);
	if (op->kind->op_class == CVY_OP_ADMIT) {
		e->acked = *mask;
		e->here.size = size;
		__atomic_store_n(&e->here.plans, e->here.plans + 1, __ATOMIC_RELAXED);
	}
	cvy_flight_decided(e->flight, op);
	op->undo = NULL;
	e->mismatch = 0; /* a report is about the entered operation */
	if (op->seq)
		cvy_engine_count_call(e, op);
	unlink_op(e, op);
	cvy_op_turn(op, CVY_OP_DECIDED);
	if (__atomic_load_n(&e->asleep, __ATOMIC_RELAXED))
		cvy_engine_wake(e);
	if (!op->seq) {
		cvy_op_put(op);
		return;
	}
	cvy_engine_reach(e, op->seq);
	record_op(e, op);
}

/* An operation whose outcome a repair brought before the application called it. */
static int claim_outcome(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_outcome *o = cvy_outcome_claim(e, op->seq);
	uint64_t done = e->done;
	size_t pos = 0;
	int status;

	if (!o)
		return 0;
	status = cvy_outcome_fits(o, op) ? o->result.status : COVEY_ERR_MISMATCH;
	cvy_engine_explain(e, op, status);
	for (uint64_t i = 0; !status && op->kind->take && pos < o->n; i++) {
		uint32_t n;

		memcpy(&n, o->bytes + pos, sizeof(n));
		op->kind->take(e, op, i, o->bytes + pos + sizeof(n), n);
		pos += sizeof(n) + n;
	}
	cvy_engine_decide(e, op, status, o->result.epoch, cvy_outcome_mask(o, op), o->result.size);
	cvy_engine_reach(e, done); /* it was counted when it was repaired */
	cvy_outcome_put(o);
	return 1;
}

static int post_locked(struct cvy_engine *e, struct cvy_op *op)
{
	int ended = __atomic_load_n(&e->here.ended, __ATOMIC_ACQUIRE);

	if (ended)
		return ended;
	if (op->kind->op_class == CVY_OP_ADMIT && e->here.pending)
		op->seq = 0;
	else
		op->seq = ++e->posted;
	assert(!e->tail || e->tail->seq + 1 == op->seq); /* no number is left out or given twice */
	op->input = op->send;
	cvy_flight_posted(e->flight, op);
	if (e->tail)
		e->tail->next = op;
	else
		e->head = op;
	e->tail = op;
	if (__builtin_expect(op->seq && op->seq <= e->done, 0))
		claim_outcome(e, op);
	return 0;
}

int cvy_engine_post_quietly(struct cvy_engine *e, struct cvy_op *op)
{
	int err;

	__atomic_store_n(&op->refs, 2, __ATOMIC_RELAXED); /* only the caller knows it yet */
	pthread_mutex_lock(&e->lock);
	err = post_locked(e, op);
	if (err)
		__atomic_store_n(&op->refs, 1, __ATOMIC_RELAXED);
	if (!err && !__atomic_load_n(&e->gate, __ATOMIC_RELAXED))
		cvy_engine_step(e);
	pthread_mutex_unlock(&e->lock);
	return err;
}

/* The closing word of a source that has not read everything yet. */
static const struct cvy_line *missing_word(const struct cvy_engine *e, const struct cvy_op *op, uint64_t *want, int *k)
{
	*want = cvy_tag(e->here.epoch, op->first + (uint32_t)op->ticks - 1);
	for (*k = 0; *k < e->here.set.n; ++*k) {
		const struct cvy_page *page = e->here.set.page[*k];

		if (*k != e->here.set.self && page && __atomic_load_n(&page->done.tag, __ATOMIC_ACQUIRE) < *want)
			return &page->done;
	}
	return NULL;
}

const struct cvy_line *cvy_engine_missing(const struct cvy_engine *e, uint64_t *want, int *source)
{
	const struct cvy_op *op = e->head;
	uint64_t i;
	int round, k;

	if (!op || op->state != CVY_OP_ENTERED)
		return NULL;
	if (op->lent && op->completed == op->ticks)
		return missing_word(e, op, want, source);
	if (op->behind > e->passed && !op->entered)
		return cvy_space_missing(e, op, want, source);
	round = op->rounds == 2 && op->second < op->entered ? 1 : op->rounds;
	i = round == op->rounds ? op->completed : op->second;
	k = op->scan[round - 1];
	if (i >= op->entered || k >= e->here.set.n || k == e->here.set.self || !e->here.set.page[k])
		return NULL;
	*want = cvy_tag(e->here.epoch, op->first + (uint32_t)i);
	*source = k;
	return cvy_source_line(e, op, i, k, round);
}

int cvy_engine_misses(const struct cvy_engine *e)
{
	const struct cvy_line *line;
	uint64_t want;
	int source;

	if (!e->head || __atomic_load_n(&e->gate, __ATOMIC_RELAXED))
		return -1;
	line = cvy_engine_missing(e, &want, &source);
	return line && __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != want ? e->here.set.rank[source] : -1;
}

int cvy_engine_post(struct cvy_engine *e, struct cvy_op *op)
{
	int err;

	op->posted_ns = cvy_now_ns();
	err = cvy_engine_post_quietly(e, op);
	cvy_progress_kick();
	return err;
}

/* A blocking call ends before its operation. Takes over the caller's reference. */
static int end_call_again(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result)
{
	*result = (struct covey_result){ .status = COVEY_ERR_AGAIN, .seq = op->seq };
	pthread_mutex_lock(&e->lock);
	op->next_again = e->again;
	e->again = op;
	pthread_mutex_unlock(&e->lock);
	return COVEY_ERR_AGAIN;
}

struct cvy_op *cvy_engine_resume(struct cvy_engine *e, uint64_t seq)
{
	struct cvy_op **at, *op;

	pthread_mutex_lock(&e->lock);
	for (at = &e->again; *at && (*at)->seq != seq;)
		at = &(*at)->next_again;
	op = *at;
	if (op)
		*at = op->next_again;
	pthread_mutex_unlock(&e->lock);
	return op;
}

/* Lock held; releases it. Takes over the caller's reference. */
static int run_locked(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result)
{
	int status = post_locked(e, op), more; /* from here on the queue holds the caller's reference */

	if (__builtin_expect(status, 0)) {
		pthread_mutex_unlock(&e->lock);
		cvy_op_put(op);
		return status;
	}
	cvy_engine_wait_briefly(e, op);
	if (!cvy_op_decided(op)) {
		uint64_t slice = result && op->kind->op_class != CVY_OP_ADMIT
					 ? __atomic_load_n(&e->slice_ns, __ATOMIC_RELAXED)
					 : 0;

		__atomic_add_fetch(&op->refs, 1, __ATOMIC_RELAXED);
		op->posted_ns = cvy_now_ns();
		pthread_mutex_unlock(&e->lock);
		if (cvy_engine_wait(e, op, slice ? op->posted_ns + slice : CVY_NEVER) && slice)
			return end_call_again(e, op, result);
		status = op->result.status;
		if (result)
			*result = op->result;
		cvy_op_put(op);
		return status;
	}
	status = op->result.status;
	if (result)
		*result = op->result;
	more = e->here.set.npush && cvy_engine_unsent(e);
	pthread_mutex_unlock(&e->lock);
	if (more)
		cvy_progress_kick();
	return status;
}

int cvy_engine_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result)
{
	pthread_mutex_lock(&e->lock);
	return run_locked(e, op, result);
}

static int asks_the_same(const struct cvy_asked *a, const struct cvy_asked *b)
{
	return a->kind == b->kind && a->send == b->send && a->recv == b->recv && a->count == b->count &&
	       a->dtype == b->dtype && a->redop == b->redop && a->root == b->root;
}

int cvy_engine_again(struct cvy_engine *e, const struct cvy_asked *asked, struct covey_result *result, int *status)
{
	struct cvy_op **at, *op;

	pthread_mutex_lock(&e->lock);
	at = &e->record[(e->posted + 1) % CVY_KEPT];
	op = *at;
	if (!op || e->head || op->planned != e->here.plans || !asks_the_same(&op->asked, asked) ||
	    op->on_loss != e->here.on_loss || e->here.pending || __atomic_load_n(&e->here.ended, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&op->refs, __ATOMIC_ACQUIRE) != 1) {
		pthread_mutex_unlock(&e->lock);
		return 0;
	}
	*at = NULL; /* that was CVY_KEPT operations ago: everybody has completed it (PROTOCOL section 7, rule 1) */
	cvy_op_turn(op, CVY_OP_QUEUED);
	op->spoiled = 0;
	op->posted_ns = 0;
	op->first = 0;
	op->next = NULL;
	*status = run_locked(e, op, result);
	return 1;
}

void cvy_engine_message(void *ctx, const struct cvy_msg *msg)
{
	struct cvy_engine *e = ctx;

	pthread_mutex_lock(&e->lock);
	if (msg->type == CVY_MSG_ADMIT)
		cvy_admit_message(e, msg);
	else if (msg->type == CVY_MSG_PULL || msg->type == CVY_MSG_GIVE)
		cvy_repair_message(e, msg);
	cvy_engine_look_for_end(e);
	pthread_mutex_unlock(&e->lock);
	cvy_engine_wake(e);
	cvy_engine_kick(e);
}
