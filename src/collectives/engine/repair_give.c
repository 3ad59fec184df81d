/* SPDX-License-Identifier: Apache-2.0 */
/* Repair, the holder's part: it answers a PULL with ticks of an operation that it completed, from its slots or an outcome. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine_state.h"
#include "hosts.h"
#include "log.h"
#include "outcome.h"
#include "repair.h"

static void send_give(struct cvy_engine *e, const struct cvy_msg *to, struct cvy_give *head,
		      const struct covey_mask *mask, const uint8_t *bytes)
{
	size_t words = CVY_MASK_WORDS, total;
	uint8_t *msg;

	while (words && !mask->word[words - 1])
		words--;
	head->words = (uint32_t)words;
	total = sizeof(*head) + words * sizeof(uint64_t) + head->bytes;
	msg = malloc(total);
	if (!msg) /* the laggard asks again, or another rank */
		return;
	memcpy(msg, head, sizeof(*head));
	memcpy(msg + sizeof(*head), mask->word, words * sizeof(uint64_t));
	if (head->bytes)
		memcpy(msg + sizeof(*head) + words * sizeof(uint64_t), bytes, head->bytes);
	e->send(e->send_ctx, to->rank, to->inc, CVY_MSG_GIVE, to->epoch, msg, (uint32_t)total);
	free(msg);
}

static uint8_t *scratch(struct cvy_engine *e, size_t bytes)
{
	if (!e->scratch) { /* the size is always the same; freed when the view is active */
		void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			return NULL;
		e->scratch = memory;
		e->scratch_bytes = bytes;
	}
	return e->scratch;
}

/*
 * Do the slots still hold this tick? No rank lags so far that they do not, unless mismatched calls made two ranks count
 * their ticks differently.
 */
static int stands(struct cvy_engine *e, const struct cvy_op *op, uint64_t i)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first + (uint32_t)i);

	if (op->way)
		return cvy_hosts_stand(e, op, i);
	for (int k = 0; k < e->here.set.n; k++) {
		if (op->kind->op_class == CVY_OP_ROOT && e->here.set.rank[k] != op->root)
			continue;
		if (!e->here.set.page[k] || cvy_source_line(e, op, i, k, op->rounds)->tag != tag)
			return 0;
	}
	return 1;
}

/*
 * For an operation whose ranks get parts of their own: the root, and any rank that sees all of its window, can give
 * every part. Others name the root, or report that the part is lost. 1: nothing is to be given from here.
 */
static int elsewhere(struct cvy_engine *e, const struct cvy_msg *msg, const struct cvy_op *op, struct cvy_give *head)
{
	int root = head->root, k = op ? cvy_root_index(e, op) : 0;

	if (root < 0 || (head->status && head->status != COVEY_ERR_LOST))
		return 0;
	if (op && k < e->here.set.n && (k == e->here.set.self || cvy_source_open(e, k)))
		return 0;
	head->ticks = 0;
	head->status = COVEY_ERR_LOST;
	if (root != e->here.rank && root != msg->rank && covey_mask_has(&e->view->members, root) &&
	    !covey_mask_has(&e->view->pending, root) && e->view->member[root].from <= head->seq)
		head->status = COVEY_ERR_AGAIN;
	return 1;
}

/* Are all sources' data here? Those of removed ranks were set aside, if there was memory. */
static int sources_here(const struct cvy_engine *e)
{
	for (int k = 0; k < e->here.set.n; k++)
		if (!e->here.set.base[k])
			return 0;
	return 1;
}

/* One tick for a laggard. */
struct giving {
	struct cvy_engine *e;
	const struct cvy_msg *asker;
	struct cvy_op *op;	     /* as it was done here; NULL: it was not */
	const struct cvy_outcome *o; /* as it was given here; NULL: it was not */
	uint64_t i;
	struct cvy_give head;
	const uint8_t *bytes;
};

/* It was done here, perhaps without the asker, though no deadline passed for it. PEER would be a matter of this rank. */
static int left_out(struct giving *g)
{
	return !g->o && g->op->partial && !g->op->timeout_ns && (!g->head.status || g->head.status == COVEY_ERR_PEER);
}

/* Its tick, under which the asker may take part. */
static int take_first(struct giving *g)
{
	g->head.status = COVEY_ERR_AGAIN;
	g->head.bytes = sizeof(g->op->first);
	g->bytes = (const uint8_t *)&g->op->first;
	return 1;
}

static int is_elsewhere(struct giving *g)
{
	return elsewhere(g->e, g->asker, g->o ? NULL : g->op, &g->head);
}

static int has_no_bytes(struct giving *g)
{
	return g->head.status || (!g->o && !g->op->kind->give);
}

static int is_in_outcome(struct giving *g)
{
	return g->o && g->i >= g->o->from && g->i < g->o->ticks;
}

static int lacks_a_source(struct giving *g)
{
	return g->op && g->i < g->head.ticks && !sources_here(g->e);
}

static int is_overwritten(struct giving *g)
{
	return g->op && g->i < g->head.ticks && !stands(g->e, g->op, g->i);
}

static int is_in_slots(struct giving *g)
{
	return g->op && g->i < g->head.ticks;
}

static int take_from_outcome(struct giving *g)
{
	g->bytes = cvy_outcome_tick(g->o, g->i, &g->head.bytes);
	return 1;
}

static int take_from_slots(struct giving *g)
{
	uint8_t *out = scratch(g->e, CVY_MSG_MAX);

	if (!out)
		return 0;
	g->head.bytes = (uint32_t)g->op->kind->give(g->e, g->op, g->i, out);
	g->bytes = out;
	return !cvy_engine_passed(g->e, g->asker->epoch); /* the asker is left out too, or asks again in a later view */
}

/* The first row that holds. Without `take` no ticks are given, and status says why, unless the outcome has one. */
static const struct {
	int (*holds)(struct giving *g);
	int (*take)(struct giving *g); /* 0: nothing is sent */
	int status;
} sources[] = {
	{ is_elsewhere, NULL, 0 }, /* sets the status */
	{ left_out, take_first, 0 },
	{ has_no_bytes, NULL, 0 },
	{ is_in_outcome, take_from_outcome, 0 },
	{ lacks_a_source, NULL, COVEY_ERR_NOMEM }, /* another holder may have it */
	{ is_overwritten, NULL, COVEY_ERR_MISMATCH },
	{ is_in_slots, take_from_slots, 0 },
};

static struct cvy_give give_head(const struct cvy_engine *e, const struct cvy_op *op, const struct cvy_outcome *o,
				 uint64_t i)
{
	const struct covey_result *res = o ? &o->result : &op->result;
	struct cvy_give head = { .seq = res->seq,
				 .tick = i,
				 .status = res->status,
				 .size = res->size,
				 .epoch = res->epoch,
				 .since = e->since };

	head.ticks = o ? o->ticks : op->ticks;
	head.sig = o ? o->sig : op->sig;
	head.past = o ? o->past : op->past;
	if (o)
		head.root = o->root;
	else
		head.root = op->kind->own ? op->root : -1;
	if (res->status == COVEY_ERR_ROOT && head.root < 0)
		head.sig = 0; /* without a root it is done at once, whatever others call: this holds for all */
	return head;
}

/* Gives one tick, from an outcome that was given here or from the slots. Are there more? */
static int give_tick(struct cvy_engine *e, const struct cvy_msg *msg, struct cvy_op *op, const struct cvy_outcome *o,
		     uint64_t i)
{
	struct giving g = { e, msg, op, o, i, give_head(e, op, o, i), NULL };
	const size_t rows = sizeof(sources) / sizeof(sources[0]);
	size_t row = 0;

	while (row < rows && !sources[row].holds(&g))
		row++;
	if (row < rows && sources[row].take) {
		if (!sources[row].take(&g))
			return 0;
	} else if (row < rows) {
		g.head.ticks = 0;
		g.head.status = sources[row].status ? sources[row].status : g.head.status;
	}
	send_give(e, msg, &g.head, o ? &o->result.mask : &op->result.mask, g.bytes);
	return i + 1 < g.head.ticks;
}

void cvy_repair_answer(struct cvy_engine *e, const struct cvy_msg *msg)
{
	const struct cvy_pull *pull = msg->body;
	const struct cvy_outcome *o;
	struct cvy_op *op;

	/* The asker may have learned the view before this holder did; both are frozen. */
	if (msg->bytes != sizeof(*pull) || !e->view || msg->epoch < e->view->epoch || e->active)
		return;
	op = cvy_engine_record(e, pull->seq);
	for (o = e->given; o && o->result.seq != pull->seq;)
		o = o->next_given;
	e->here.asker = msg->rank;
	if (!op && !o) {
		cvy_warn("engine", "rank %d asks for operation %llu, which is not held, epoch %u", msg->rank,
			 (unsigned long long)pull->seq, e->view->epoch);
		return;
	}
	for (uint64_t i = pull->from_tick; give_tick(e, msg, op, o, i); i++)
		;
}
