/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of a group and its steps: post, begin, the tick pipeline of one operation, decide.
 * Nothing here waits; wait.c does.
 */
#include "engine.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"

#define TICKS_MAX 0xc0000000u /* of a view: then a new one is asked for, so that no number comes twice */
#define LOOKS 256	      /* of a blocking call before it waits in earnest; about 5 us with a core of one's own */

int cvy_engine_open(struct cvy_engine **out, struct cvy_mesh *mesh, struct cvy_errbox *box, size_t undo_bytes)
{
	struct cvy_engine *e = calloc(1, sizeof(*e));

	if (!e)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "no memory for an engine");
	pthread_mutex_init(&e->lock, NULL);
	e->mesh = mesh;
	e->box = box;
	e->layout = cvy_mesh_layout(mesh);
	e->own_base = cvy_mesh_own(mesh);
	e->own = (struct cvy_page *)e->own_base;
	e->undo_bytes = undo_bytes;
	e->rank = -1;
	e->gate = 1;
	e->idle_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->idle_fd < 0) {
		int err = cvy_fail(box, COVEY_ERR_IO, -1, 0, "eventfd: %s", strerror(errno));

		cvy_engine_close(e);
		return err;
	}
	*out = e;
	return 0;
}

void cvy_engine_identity(struct cvy_engine *e, int rank, int max_ranks)
{
	pthread_mutex_lock(&e->lock);
	e->rank = rank;
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
	for (int i = 0; i < 8; i++)
		if (e->record[i])
			cvy_op_put(e->record[i]);
	while (e->head) {
		struct cvy_op *op = e->head;

		e->head = op->next;
		cvy_op_put(op);
	}
	while (e->outcomes) {
		struct cvy_outcome *o = e->outcomes;

		e->outcomes = o->next;
		free(o->bytes);
		free(o);
	}
	free(e->spare);
	cvy_repair_drop(e);
	cvy_repair_forget(e);
	cvy_engine_drop_aside(e);
	cvy_set_clear(&e->set);
	cvy_view_free(e->view);
	free(e->peer_done);
	free(e->admit_state);
	if (e->idle_fd >= 0)
		close(e->idle_fd);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

/* ---- operations ---- */

/* A freed operation is kept for the next. Its mask has never had more than the words of max_ranks set. */
struct cvy_op *cvy_op_new(struct cvy_engine *e, const struct cvy_op_kind *kind)
{
	struct cvy_op *op = __atomic_exchange_n(&e->spare, NULL, __ATOMIC_ACQUIRE);

	if (!op)
		op = calloc(1, sizeof(*op));
	if (!op)
		return NULL;
	memset(op, 0, offsetof(struct cvy_op, result));
	op->result.status = 0;
	op->engine = e;
	op->kind = kind;
	op->rounds = 1;
	op->refs = 1;
	op->next = NULL;
	return op;
}

void cvy_op_put(struct cvy_op *op)
{
	if (__atomic_sub_fetch(&op->refs, 1, __ATOMIC_ACQ_REL))
		return;
	if (op->kind->release)
		op->kind->release(op);
	free(op->undo);
	free(__atomic_exchange_n(&op->engine->spare, op, __ATOMIC_ACQ_REL));
}

static const struct cvy_op_kind *const kinds[] = { &cvy_op_allreduce, &cvy_op_broadcast, &cvy_op_allgather,
						   &cvy_op_alltoall,  &cvy_op_alltoallv, &cvy_op_barrier,
						   &cvy_op_admit,     &cvy_op_dispatch,	 &cvy_op_combine };

/* call: kind 4 bits, type 4, op 4, root 12, count 40; sig: a hash of the same and of all count bits */
void cvy_op_sign(struct cvy_op *op, int on_loss)
{
	uint64_t kind = 0, h;

	while (kinds[kind] != op->kind)
		kind++;
	op->on_loss = on_loss;
	op->call = kind << 60 | (uint64_t)(op->dtype & 15) << 56 | (uint64_t)(op->redop & 15) << 52 |
		   (uint64_t)(op->root & 4095) << 40 | (op->count & 0xffffffffffull);
	h = op->call ^ (uint64_t)on_loss << 51 ^ (uint64_t)op->count * 0x9e3779b97f4a7c15ull;
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
	op->sig = (uint32_t)(h >> 32) | 1;
}

static const char *dtype_text(int dtype)
{
	switch (dtype) {
	case COVEY_UINT8:
		return "u8";
	case COVEY_INT32:
		return "i32";
	case COVEY_INT64:
		return "i64";
	case COVEY_FLOAT32:
		return "f32";
	case COVEY_FLOAT64:
		return "f64";
	case COVEY_BFLOAT16:
		return "bf16";
	default:
		return "?";
	}
}

char *cvy_call_text(uint64_t call, char *text, size_t bytes)
{
	static const char *const redops[16] = {
		[COVEY_SUM] = "sum", [COVEY_MAX] = "max", [COVEY_MIN] = "min", [COVEY_AVG] = "avg"
	};
	unsigned kind = (unsigned)(call >> 60);
	const struct cvy_op_kind *k = kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind] : NULL;
	const char *redop = redops[call >> 52 & 15];
	unsigned long long count = call & 0xffffffffffull;
	int dtype = (int)(call >> 56 & 15);

	if (!k)
		snprintf(text, bytes, "an unknown call %#llx", (unsigned long long)call);
	else if (k == &cvy_op_allreduce)
		snprintf(text, bytes, "allreduce(%llu x %s, %s)", count, dtype_text(dtype), redop ? redop : "?");
	else if (k == &cvy_op_broadcast)
		snprintf(text, bytes, "broadcast(%llu x %s, root %u)", count, dtype_text(dtype),
			 (unsigned)(call >> 40 & 4095));
	else if (k == &cvy_op_allgather || k == &cvy_op_alltoall)
		snprintf(text, bytes, "%s(%llu x %s)", k->name, count, dtype_text(dtype));
	else
		snprintf(text, bytes, "%s", k->name);
	return text;
}

/* ---- post and decide ---- */

static void unlink_op(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_op *before = NULL, *at = e->head;

	for (; at && at != op; at = at->next)
		before = at;
	if (!at)
		return;
	if (before)
		before->next = op->next;
	else
		e->head = op->next;
	if (e->tail == op)
		e->tail = before;
}

/* Keeps a decided operation: its tick numbers are what repair needs until the next view is active. Takes over a reference. */
static void record_op(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_op **at = &e->record[op->seq % 8];

	if (*at)
		cvy_op_put(*at);
	*at = op;
}

struct cvy_op *cvy_engine_record(struct cvy_engine *e, uint64_t seq)
{
	struct cvy_op *op = e->record[seq % 8];

	return op && op->seq == seq ? op : NULL;
}

void cvy_engine_reach(struct cvy_engine *e, uint64_t seq)
{
	__atomic_store_n(&e->done, seq, __ATOMIC_RELAXED);
	e->ent = seq;
}

void cvy_engine_decide(struct cvy_engine *e, struct cvy_op *op, int status, uint32_t epoch,
		       const struct covey_mask *mask, int size)
{
	struct covey_result *res = &op->result;

	res->status = status;
	res->epoch = epoch;
	res->seq = op->seq;
	res->size = size;
	for (int w = 0; w < e->mask_words; w++) /* the others are never set */
		res->mask.word[w] = mask->word[w];
	res->wait_ns = op->posted_ns ? cvy_now_ns() - op->posted_ns : 0;
	if (!status && op->on_loss == COVEY_ON_LOSS_FAIL && op->kind->op_class != CVY_OP_ADMIT &&
	    !cvy_mask_within(&e->acked, mask)) {
		res->status = cvy_fail(e->box, COVEY_ERR_PEER, -1, epoch,
				       "operation %llu: a rank of the last safe point did not contribute",
				       (unsigned long long)op->seq);
	}
	if (op->kind->finish)
		op->kind->finish(e, op);
	if (op->kind->op_class == CVY_OP_ADMIT) {
		e->acked = *mask;
		e->size = size;
	}
	free(op->undo);
	op->undo = NULL;
	unlink_op(e, op);
	__atomic_store_n(&op->state, CVY_OP_DECIDED, __ATOMIC_RELEASE);
	if (__atomic_load_n(&e->asleep, __ATOMIC_RELAXED))
		cvy_engine_wake(e);
	if (!op->seq) {
		cvy_op_put(op);
		return;
	}
	cvy_engine_reach(e, op->seq);
	__atomic_store_n(&e->own->done.aux, e->done, __ATOMIC_RELEASE);
	record_op(e, op);
}

/* An operation whose outcome a repair brought before the application called it. */
static int claim_outcome(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_outcome **at = &e->outcomes, *o;
	uint64_t done = e->done;
	size_t pos = 0;

	while (*at && (*at)->result.seq != op->seq)
		at = &(*at)->next;
	o = *at;
	if (!o)
		return 0;
	*at = o->next;
	if (!o->result.status && (o->sig != op->sig || (o->ticks && o->ticks != op->ticks)))
		o->result.status = COVEY_ERR_MISMATCH;
	cvy_engine_explain(e, op, o->result.status);
	for (uint64_t i = 0; !o->result.status && op->kind->take && pos < o->n; i++) {
		uint32_t n;

		memcpy(&n, o->bytes + pos, sizeof(n));
		op->kind->take(e, op, i, o->bytes + pos + sizeof(n), n);
		pos += sizeof(n) + n;
	}
	cvy_engine_decide(e, op, o->result.status, o->result.epoch, &o->result.mask, o->result.size);
	cvy_engine_reach(e, done); /* it was counted when it was repaired */
	free(o->bytes);
	free(o);
	return 1;
}

static int post_locked(struct cvy_engine *e, struct cvy_op *op)
{
	int ended = __atomic_load_n(&e->ended, __ATOMIC_ACQUIRE);

	if (ended)
		return ended;
	if (op->kind->op_class == CVY_OP_ADMIT && e->pending)
		op->seq = 0;
	else
		op->seq = ++e->posted;
	op->input = op->send;
	if (e->tail)
		e->tail->next = op;
	else
		e->head = op;
	e->tail = op;
	if (op->seq && op->seq <= e->done)
		claim_outcome(e, op);
	return 0;
}

int cvy_engine_post(struct cvy_engine *e, struct cvy_op *op)
{
	int err;

	op->posted_ns = cvy_now_ns();
	__atomic_add_fetch(&op->refs, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&e->lock);
	err = post_locked(e, op);
	if (err)
		__atomic_sub_fetch(&op->refs, 1, __ATOMIC_RELAXED);
	if (!err && !__atomic_load_n(&e->gate, __ATOMIC_RELAXED))
		cvy_engine_step(e);
	pthread_mutex_unlock(&e->lock);
	cvy_progress_kick();
	return err;
}

int cvy_engine_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result)
{
	int status, more, looks;

	pthread_mutex_lock(&e->lock);
	status = post_locked(e, op); /* the caller's reference is the queue's from here on */
	if (status) {
		pthread_mutex_unlock(&e->lock);
		cvy_op_put(op);
		return status;
	}
	looks = e->spin && !e->set.npush ? LOOKS : 1;
	while (looks && !cvy_op_decided(op)) /* a short operation, mostly */
		looks -= !cvy_engine_step(e);
	if (!cvy_op_decided(op)) {
		__atomic_add_fetch(&op->refs, 1, __ATOMIC_RELAXED);
		op->posted_ns = cvy_now_ns();
		pthread_mutex_unlock(&e->lock);
		cvy_engine_wait(e, op, CVY_NEVER);
		status = op->result.status;
		if (result)
			*result = op->result;
		cvy_op_put(op);
		return status;
	}
	status = op->result.status;
	if (result)
		*result = op->result;
	more = e->set.npush && cvy_engine_unsent(e);
	pthread_mutex_unlock(&e->lock);
	if (more)
		cvy_progress_kick();
	return status;
}

/* ---- slots ---- */

uint8_t *cvy_own_slot(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	return e->own_base + e->layout.slots + (size_t)cvy_slot_index(op, i) * e->layout.stride;
}

const uint8_t *cvy_source_slot(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	return e->set.base[k] + e->layout.slots + (size_t)cvy_slot_index(op, i) * e->layout.stride;
}

const struct cvy_line *cvy_source_line(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k, int round)
{
	struct cvy_page *page = e->set.page[k];

	return (round == 1 ? page->first : page->second) + cvy_slot_index(op, i);
}

void cvy_put(struct cvy_engine *e, int rank, const void *at, size_t n)
{
	struct cvy_link *link = cvy_mesh_link(e->mesh, rank);

	if (n && rank != e->rank && link && link->ops->put)
		link->ops->put(link, (size_t)((const uint8_t *)at - e->own_base), n);
}

void cvy_put_all(struct cvy_engine *e, const void *at, size_t n)
{
	for (int i = 0; n && i < e->set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (link && link->ops->put)
			link->ops->put(link, (size_t)((const uint8_t *)at - e->own_base), n);
	}
}

static void signal_all(struct cvy_engine *e, const struct cvy_line *line)
{
	for (int i = 0; i < e->set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (link && link->ops->signal)
			link->ops->signal(link, (size_t)((const uint8_t *)line - e->own_base));
	}
	cvy_engine_announce(e, line);
}

/* The own line of a round: everything before the tag, the tag last. */
static void publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round)
{
	struct cvy_line *line = (round == 1 ? e->own->first : e->own->second) + cvy_slot_index(op, i);

	line->sig = op->sig;
	line->call = op->call;
	if (round == 1) {
		if (op->kind->publish && (op->kind->op_class != CVY_OP_ROOT || op->root == e->rank))
			op->kind->publish(e, op, i, line);
	} else {
		op->kind->publish2(e, op, i, line);
	}
	__atomic_store_n(&line->tag, cvy_tag(e->epoch, op->first + (uint32_t)i), __ATOMIC_RELEASE);
	signal_all(e, line);
}

/* Done words: an operation of a root shows nothing about the others, so its ranks tell what they completed. */
static void tell_done(struct cvy_engine *e, uint32_t tick)
{
	struct cvy_line *line = &e->own->done;

	e->done_word = tick;
	__atomic_store_n(&line->tag, cvy_tag(e->epoch, tick), __ATOMIC_RELEASE);
	signal_all(e, line);
}

static void refresh_floor(struct cvy_engine *e)
{
	uint32_t least = e->complete;

	for (int k = 0; k < e->set.n; k++) {
		uint64_t tag;

		if (k == e->set.self || covey_mask_has(&e->view->pending, e->set.rank[k])) /* of the admitted alone */
			continue;
		tag = __atomic_load_n(&e->set.page[k]->done.tag, __ATOMIC_ACQUIRE);
		if ((uint32_t)(tag >> 32) != e->epoch)
			return;
		if ((uint32_t)tag < least)
			least = (uint32_t)tag;
	}
	if (least > e->floor)
		__atomic_store_n(&e->floor, least, __ATOMIC_RELAXED);
}

/* PROTOCOL section 7, rule 1 */
static int may_enter(struct cvy_engine *e, uint32_t tick)
{
	if (tick > CVY_DEPTH && e->complete < tick - CVY_DEPTH)
		return 0;
	if (tick <= CVY_SLOTS || e->floor >= tick - CVY_SLOTS)
		return 1;
	refresh_floor(e);
	return e->floor >= tick - CVY_SLOTS;
}

/* ---- one operation ---- */

static void want_change(struct cvy_engine *e, struct cvy_op *op, const char *why)
{
	struct cvy_event ev = { .kind = CVY_EV_WANT_CHANGE, .rank = -1, .number = op->seq, .text = why };

	if (e->wanted == op->seq)
		return;
	e->wanted = op->seq;
	cvy_post(&e->sink, &ev);
}

static void name_calls(struct cvy_engine *e, const struct cvy_op *op, int k, const struct cvy_line *line)
{
	char mine[72], theirs[72];

	cvy_fail(e->box, COVEY_ERR_MISMATCH, e->set.rank[k], e->epoch,
		 "operation %llu: rank %d calls %s, rank %d calls %s%s", (unsigned long long)op->seq, e->rank,
		 cvy_call_text(op->call, mine, sizeof(mine)), e->set.rank[k],
		 cvy_call_text(line->call, theirs, sizeof(theirs)),
		 op->call == line->call ? " with other details" : "");
}

static void mismatch(struct cvy_engine *e, struct cvy_op *op, int k, const struct cvy_line *line)
{
	e->mismatch = 1;
	name_calls(e, op, k, line);
	want_change(e, op, "mismatch");
}

/* A change may have come before this rank looked: the lines still stand until the next view is active. */
void cvy_engine_explain(struct cvy_engine *e, const struct cvy_op *op, int status)
{
	char mine[72];

	if (status == COVEY_ERR_LOST)
		cvy_fail(e->box, status, -1, e->epoch,
			 "operation %llu: results had overwritten inputs when a rank died; in place above undo_bytes",
			 (unsigned long long)op->seq);
	if (status != COVEY_ERR_MISMATCH)
		return;
	for (int k = 0; op->state == CVY_OP_ENTERED && k < e->set.n; k++) {
		const struct cvy_line *line =
			k == e->set.self || e->set.gone[k] ? NULL : cvy_source_line(e, op, 0, k, 1);

		if (!line || __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != cvy_tag(e->epoch, op->first) ||
		    line->sig == op->sig)
			continue;
		name_calls(e, op, k, line);
		return;
	}
	cvy_fail(e->box, status, -1, e->epoch, "operation %llu: rank %d calls %s, others call something else",
		 (unsigned long long)op->seq, e->rank, cvy_call_text(op->call, mine, sizeof(mine)));
}

/* Have all sources that the tick needs announced it? Remembers how far it looked. */
static int arrived(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round)
{
	uint64_t tag = cvy_tag(e->epoch, op->first + (uint32_t)i);
	int *k = &op->scan[round - 1];

	for (; *k < e->set.n; ++*k) {
		const struct cvy_line *line;

		if (*k == e->set.self || (op->kind->op_class == CVY_OP_ROOT && e->set.rank[*k] != op->root))
			continue;
		if (e->set.gone[*k]) {
			cvy_mask_add(&e->lost, e->set.rank[*k]);
			continue;
		}
		line = cvy_source_line(e, op, i, *k, round);
		if (__atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != tag)
			return 0;
		if (line->sig != op->sig) {
			mismatch(e, op, *k, line);
			return 0;
		}
	}
	*k = 0;
	return 1;
}

void cvy_engine_look_for_mismatch(struct cvy_engine *e)
{
	struct cvy_op *op = e->head;

	if (!op || op->state != CVY_OP_ENTERED || op->kind->op_class != CVY_OP_ROOT || op->completed)
		return;
	for (int k = 0; k < e->set.n; k++) {
		const struct cvy_line *line = e->set.gone[k] ? NULL : cvy_source_line(e, op, 0, k, 1);

		if (line && k != e->set.self &&
		    __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == cvy_tag(e->epoch, op->first) &&
		    line->sig != op->sig)
			mismatch(e, op, k, line);
	}
}

/* In place and of many ticks: the first result would overwrite an input that a redo needs. */
static void save_input(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->undo || op->ticks == 1 || !op->input_bytes || op->input_bytes > e->undo_bytes)
		return;
	op->undo = malloc(op->input_bytes);
	if (op->undo) {
		memcpy(op->undo, op->send, op->input_bytes);
		op->input = op->undo;
	}
}

/* Who tells joiners where to begin: not index 0 of the set, which may be one of them. */
static int lowest_admitted(const struct cvy_engine *e)
{
	CVY_MASK_EACH(r, &e->view->members)
	if (!covey_mask_has(&e->view->pending, r))
		return r;
	return -1;
}

static int begin_admit(struct cvy_engine *e, struct cvy_op *op)
{
	if (e->pending) { /* a joiner: it is told number and tick */
		if (!e->admit_seq || e->admit_epoch != e->epoch)
			return 0;
		cvy_engine_reach(e, e->admit_seq - 1);
		e->posted = e->admit_seq;
		e->tick = e->admit_tick - 1;
		__atomic_store_n(&e->complete, e->tick, __ATOMIC_RELAXED);
		__atomic_store_n(&e->floor, e->admit_tick > CVY_DEPTH ? e->admit_tick - CVY_DEPTH : 0,
				 __ATOMIC_RELAXED);
		op->seq = e->admit_seq;
		cvy_set_build(e);
	} else if (!cvy_mask_empty(&e->view->pending)) {
		cvy_set_build(e);
		if (lowest_admitted(e) == e->rank)
			cvy_admit_send(e, op);
	}
	return 1;
}

/* Gives the operation its tick numbers. 0: it cannot begin yet. */
static int begin(struct cvy_engine *e, struct cvy_op *op)
{
	int rootless;

	if (__atomic_load_n(&e->retiring, __ATOMIC_RELAXED))
		return 0;
	if (op->kind->op_class == CVY_OP_ADMIT && !begin_admit(e, op))
		return 0;
	if (op->seq != e->done + 1)
		return 0;
	rootless = op->kind->op_class == CVY_OP_ROOT && !covey_mask_has(&e->mask, op->root);
	if (rootless &&
	    !may_enter(e, e->tick + 1)) /* decided at once, but no further ahead of the others than any tick */
		return 0;
	if (e->tick >= TICKS_MAX && !e->wanted)
		want_change(e, op, "tick numbers run out");
	e->ent = op->seq;
	__atomic_store_n(&op->state, CVY_OP_ENTERED, __ATOMIC_RELAXED);
	op->first = e->tick + 1;
	op->entered = op->second = op->completed = 0;
	op->scan[0] = op->scan[1] = 0;
	if (op->kind->op_class == CVY_OP_PRIVATE)
		memset(&e->lost, 0, sizeof(e->lost));
	op->result.status = 0;
	if (rootless) {
		e->tick = op->first;
		__atomic_store_n(&e->complete, e->tick, __ATOMIC_RELAXED);
		cvy_fail(e->box, COVEY_ERR_ROOT, op->root, e->epoch, "operation %llu: the root is not a member",
			 (unsigned long long)op->seq);
		op->ticks = 1;
		cvy_engine_decide(e, op, COVEY_ERR_ROOT, e->epoch, &e->mask, e->size);
		tell_done(e, e->tick);
		return 0;
	}
	save_input(e, op);
	if (cvy_mesh_fault(e->mesh))
		cvy_fault_op(cvy_mesh_fault(e->mesh), op->seq, op->kind->name);
	return 1;
}

/* Publishing ends here; what the tick showed about the others is drawn. */
static void complete_tick(struct cvy_engine *e, struct cvy_op *op)
{
	uint32_t tick = op->first + (uint32_t)op->completed;
	int waits = op->kind->op_class != CVY_OP_ROOT &&
		    !(op->kind->op_class == CVY_OP_ADMIT && cvy_mask_empty(&e->view->pending));

	if (op->kind->consume)
		op->kind->consume(e, op, op->completed);
	if (op->input_bytes && !op->undo && op->ticks > 1)
		op->spoiled = 1;
	op->completed++;
	__atomic_store_n(&e->complete, tick, __ATOMIC_RELAXED);
	if (waits) {
		if (tick > CVY_DEPTH && e->floor < tick - CVY_DEPTH)
			__atomic_store_n(&e->floor, tick - CVY_DEPTH, __ATOMIC_RELAXED);
	} else {
		tell_done(e, tick);
	}
}

/* An ADMIT that took pending ranks in: they are members from here on. */
static void admitted(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_view *v = e->view;

	CVY_MASK_EACH(r, &v->pending)
	v->member[r].from = op->seq;
	memset(&v->pending, 0, sizeof(v->pending));
	e->pending = 0;
	e->adm = op->seq;
}

static void decide(struct cvy_engine *e, struct cvy_op *op)
{
	int took = op->kind->op_class == CVY_OP_ADMIT && !cvy_mask_empty(&e->view->pending);
	struct cvy_event ev = { .kind = CVY_EV_ADMITTED, .rank = -1, .number = op->seq, .epoch = e->epoch };
	const struct covey_mask *mask = &e->mask;
	struct covey_mask kept;
	int size = e->size;

	e->tick = op->first + (uint32_t)op->ticks - 1;
	if (took)
		admitted(e, op);
	if (op->kind->op_class == CVY_OP_ADMIT)
		size = cvy_view_size(e->view, op->seq + 1);
	if (op->kind->op_class == CVY_OP_PRIVATE) {
		kept = e->mask;
		cvy_mask_sub(&kept, &e->lost);
		mask = &kept;
	}
	cvy_engine_decide(e, op, op->result.status, e->epoch, mask, size);
	if (took) {
		cvy_set_build(e);
		cvy_post(&e->sink, &ev);
	}
}

int cvy_op_step(struct cvy_engine *e, struct cvy_op *op)
{
	uint64_t limit;
	int progress = 0;

	if (op->state == CVY_OP_QUEUED && !begin(e, op))
		return op->state == CVY_OP_DECIDED;
	if (op->entered < (op->ticks ? op->ticks : 1) && may_enter(e, op->first + (uint32_t)op->entered)) {
		if (op->kind->op_class != CVY_OP_ROOT || op->root == e->rank || !op->entered)
			publish(e, op, op->entered, 1);
		op->entered++;
		progress = 1;
	}
	if (op->rounds == 2 && op->second < op->entered && arrived(e, op, op->second, 1)) {
		publish(e, op, op->second++, 2);
		progress = 1;
	}
	limit = op->rounds == 2 ? op->second : op->entered;
	if (op->completed < limit && ((op->kind->op_class == CVY_OP_ADMIT && cvy_mask_empty(&e->view->pending)) ||
				      arrived(e, op, op->completed, op->rounds))) {
		complete_tick(e, op);
		progress = 1;
	}
	if (op->ticks && op->completed == op->ticks)
		decide(e, op);
	return progress;
}

int cvy_engine_step(struct cvy_engine *e)
{
	int progress = 0, ended = __atomic_load_n(&e->ended, __ATOMIC_RELAXED);

	if (ended) { /* also when it came from inside: no memory for a set of members */
		cvy_engine_end_all(e, ended);
		return 0;
	}
	if (__atomic_load_n(&e->gate, __ATOMIC_ACQUIRE)) {
		if (e->repair)
			cvy_repair_step(e);
		return 0;
	}
	for (int i = 0; i < e->set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (link && link->ops->poll && link->ops->poll(link) > 0)
			progress = 1;
	}
	if (e->head)
		progress |= cvy_op_step(e, e->head);
	return progress;
}
