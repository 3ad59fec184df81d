/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrong calls, made on purpose. In a step drawn for it, some ranks call something else than the others: another
 * root, count, type, reduction, operation or block, or an argument that no call may have. All ranks draw the same
 * mistake, so each knows every rank's call, and the error that it must get:
 *
 *	an argument that can be checked by itself	INVAL at that rank, then the right call; all succeed
 *	a block that its receiver does not expect	MISMATCH at the receiver
 *	everything else					MISMATCH at every rank whose call differs from that of a rank
 *							that is still a member: by this operation, or by the next
 *							one that waits for all ranks
 *
 * A call that succeeds has the right bytes. Some operations follow: one or two that may bring a MISMATCH late, and one
 * that must succeed everywhere, as the group continues.
 */
#include <stdio.h>
#include <string.h>

#include "call.h"

#define PROBES 2
#define UNKNOWN 77 /* no type and no reduction */
#define BIT(what) (1u << (what))

const char *const chaos_slip_names[CHAOS_L_COUNTED] = { "root",	 "count",     "type",	  "reduction", "operation",
							"block", "own-block", "argument", "handle" };

/* The parts of an operation's call that can be wrong. Counts of alltoallv are those of two ranks each. */
static uint32_t slips_of(int op)
{
	const struct operation *o;
	bool pairs;

	if (op >= OP_SENDRECV)
		return op == CHAOS_W_DISPATCH ? BIT(CHAOS_L_HANDLE) : 0;
	o = &operation_table[op];
	pairs = o->uneven && o->send_blocks;
	return BIT(CHAOS_L_OPERATION) | (o->no_data ? 0 : BIT(CHAOS_L_TYPE) | BIT(CHAOS_L_ARGUMENT)) |
	       (o->no_data || pairs ? 0 : BIT(CHAOS_L_COUNT)) | (o->reduces ? BIT(CHAOS_L_REDUCTION) : 0) |
	       (o->rooted ? BIT(CHAOS_L_ROOT) : 0) | (pairs ? BIT(CHAOS_L_BLOCK) | BIT(CHAOS_L_OWN) : 0);
}

/* ---- Calls ---- */

static uint64_t draw(const struct chaos_mistake *x, unsigned what, uint64_t below)
{
	return chaos_scramble(x->random + what * UINT64_C(15485863)) % below;
}

static int nth_bit(uint32_t bits, uint64_t n)
{
	int at = 0;

	for (;; at++)
		if (bits >> at & 1 && !n--)
			return at;
}

bool chaos_mistake_draw(const struct chaos_member *m, struct chaos_mistake *x)
{
	uint32_t ops = 0, can;
	uint64_t one, two;

	for (int op = 0; op < CHAOS_W_COMBINE; op++)
		if (m->crew->work >> op & 1 && slips_of(op) & m->crew->mix.slips &&
		    (op != CHAOS_W_DISPATCH || m->crew->mix.handles))
			ops |= BIT(op);
	if (!m->crew->mix.mistakes || !ops || m->size < 2 || chaos_draw(m, 1, (uint64_t)m->crew->mix.mistakes))
		return false;
	*x = (struct chaos_mistake){ .random = chaos_draw(m, 2, UINT64_MAX) };
	x->op = nth_bit(ops, draw(x, 1, (uint64_t)__builtin_popcount(ops)));
	can = slips_of(x->op) & m->crew->mix.slips;
	x->slip = (enum chaos_slip)nth_bit(can, draw(x, 2, (uint64_t)__builtin_popcount(can)));
	one = draw(x, 3, (uint64_t)m->size);
	two = draw(x, 4, 3) ? one : draw(x, 5, (uint64_t)m->size);
	x->ranks = UINT64_C(1) << one | UINT64_C(1) << two;
	x->apart = x->slip == CHAOS_L_ROOT && !draw(x, 6, 3);
	if (x->apart)
		x->ranks = (UINT64_C(1) << m->size) - 1;
	return true;
}

/* Elements of 8 bytes, and some more of them, fit in any call. */
static struct chaos_call right_call(const struct chaos_member *m)
{
	const struct chaos_mistake *x = m->mistake;
	size_t most = chaos_elements(m) / 2;
	bool whole = x->slip != CHAOS_L_OPERATION && x->slip != CHAOS_L_HANDLE &&
		     !operation_has_blocks(&operation_table[x->op]);

	return (struct chaos_call){ .op = x->op,
				    .count = 1 + draw(x, 7, whole ? most + 1 : most / CHAOS_MAX_RANKS + 1),
				    .dtype = COVEY_FLOAT32,
				    .redop = draw(x, 8, 2) ? COVEY_SUM : COVEY_MAX,
				    .root = (int)draw(x, 9, (uint64_t)m->size),
				    .more_at = -1 };
}

static void spoil_argument(const struct chaos_member *m, struct chaos_call *c)
{
	const struct operation *o = &operation_table[c->op];

	switch (draw(m->mistake, 10, 4)) {
	case 0:
		if (o->rooted)
			c->root = draw(m->mistake, 11, 2) ? -1 : CHAOS_MAX_RANKS;
		else if (c->op == OP_ALLGATHERV)
			c->more = 1; /* of the data sent only */
		else
			c->bare = true;
		break;
	case 1:
		if (o->reduces) {
			c->redop = UNKNOWN;
			break;
		}
		/* fall through */
	case 2:
		if (!o->uneven) {
			c->count = SIZE_MAX / 4;
			break;
		}
		/* fall through */
	default:
		c->dtype = UNKNOWN;
	}
}

static int other_operation(const struct chaos_mistake *x)
{
	uint64_t op = draw(x, 12, CHAOS_W_MESSAGES - 1);

	return (int)(op + (op >= (uint64_t)x->op));
}

static void spoil(const struct chaos_member *m, int rank, struct chaos_call *c)
{
	const struct chaos_mistake *x = m->mistake;
	const size_t counts[] = { 0, c->count / 2, c->count + 1, c->count + 7 };

	switch (x->slip) {
	case CHAOS_L_ROOT:
		c->root = x->apart ? rank
				   : (int)(((uint64_t)c->root + 1 + draw(x, 10, (uint64_t)m->size - 1)) %
					   (uint64_t)m->size);
		break;
	case CHAOS_L_COUNT:
		if (c->op == OP_ALLGATHERV)
			c->more_at = rank, c->more = 1 + (int)draw(x, 10, 7);
		else
			c->count = counts[draw(x, 10, 4)];
		break;
	case CHAOS_L_TYPE:
		c->dtype = draw(x, 10, 2) ? COVEY_INT32 : COVEY_FLOAT64;
		break;
	case CHAOS_L_REDUCTION:
		c->redop = c->redop == COVEY_SUM ? COVEY_MIN : COVEY_SUM;
		break;
	case CHAOS_L_OPERATION:
		c->op = other_operation(x);
		break;
	case CHAOS_L_BLOCK:
		c->more_at = (int)(((uint64_t)rank + 1 + draw(x, 10, (uint64_t)m->size - 1)) % (uint64_t)m->size);
		c->more = 1 + (int)draw(x, 11, 7);
		break;
	case CHAOS_L_OWN:
		c->more_at = rank;
		c->more = 1 + (int)draw(x, 11, 7);
		break;
	default:
		spoil_argument(m, c);
	}
}

static struct chaos_call call_of(const struct chaos_member *m, int rank)
{
	struct chaos_call c = right_call(m);

	if (m->mistake->ranks >> rank & 1)
		spoil(m, rank, &c);
	return c;
}

static bool same(const struct chaos_call *a, const struct chaos_call *b)
{
	return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop &&
	       a->root == b->root && a->more_at == b->more_at && a->more == b->more && a->bare == b->bare;
}

static bool is_wrong(const struct chaos_member *m, int rank)
{
	struct chaos_call c, right;

	if (m->mistake->slip == CHAOS_L_HANDLE)
		return m->mistake->ranks >> rank & 1;
	c = call_of(m, rank);
	right = right_call(m);
	return !same(&c, &right);
}

/* Must this rank get an error about the call of @rank? */
static bool differs(const struct chaos_member *m, int rank)
{
	enum chaos_slip slip = m->mistake->slip;
	struct chaos_call theirs, mine;

	if (slip == CHAOS_L_OWN || slip == CHAOS_L_ARGUMENT || rank == m->rank)
		return false;
	if (slip == CHAOS_L_HANDLE)
		return is_wrong(m, rank) != is_wrong(m, m->rank);
	theirs = call_of(m, rank);
	mine = call_of(m, m->rank);
	return slip == CHAOS_L_BLOCK ? theirs.more_at == m->rank : !same(&theirs, &mine);
}

/* ---- Errors ---- */

/* The first rank of @mask with a different call, for which this rank must get an error; -1: none. */
int chaos_mistake_unlike(const struct chaos_member *m, uint64_t mask)
{
	for (int r = 0; r < m->size; r++)
		if (mask >> r & 1 && differs(m, r))
			return r;
	return -1;
}

static int untold(struct chaos_member *m, const struct chaos_record *held, const char *mine, int other,
		  const char *when)
{
	char theirs[120];
	struct chaos_call c = call_of(m, other);

	snprintf(
		m->desk->cause, sizeof(m->desk->cause),
		"group %d: wrong call (%s) at step %llu, seq %llu, epoch %u, mask %#llx: rank %d calls %s, rank %d %s, "
		"and this ends with success here%s",
		m->number, chaos_slip_names[m->mistake->slip], (unsigned long long)m->step,
		(unsigned long long)held->seq, held->epoch, (unsigned long long)held->mask, m->rank, mine, other,
		m->mistake->slip == CHAOS_L_HANDLE ? "does not" : chaos_call_text(&c, theirs, sizeof(theirs)), when);
	return 1;
}

/* An operation that may bring a late error to this rank: the root of a second broadcast hears no other rank. */
static int probe_once(struct chaos_member *m, struct covey_result *result)
{
	struct operation_call call = { m->recv,		m->recv, 1, COVEY_FLOAT32, COVEY_SUM, right_call(m).root,
				       .result = result };

	switch (draw(m->mistake, 13, 4)) {
	case 0:
		chaos_begin(m, OP_BARRIER);
		return covey_barrier(m->group, NULL, result);
	case 1:
		chaos_begin(m, OP_BROADCAST);
		return chaos_operate(m, OP_BROADCAST, call);
	case 2:
		chaos_begin(m, OP_BROADCAST);
		call.root = (call.root + 1) % m->size;
		return chaos_operate(m, OP_BROADCAST, call);
	default:
		chaos_begin(m, OP_ALLREDUCE);
		return chaos_operate(m, OP_ALLREDUCE, call);
	}
}

/* The last one waits for all. Their records in @out, their number in @n. */
static int probe(struct chaos_member *m, const struct chaos_record *held, struct chaos_record out[PROBES], int *n)
{
	struct covey_result result = { 0 };
	struct operation_call sum = { m->recv, m->recv, 1, COVEY_FLOAT32, COVEY_SUM, .result = &result };
	int code = chaos_end(m, probe_once(m, &result), &result);

	for (*n = 0; !code;) {
		m->record.slip = held->slip;
		m->record.own = m->record.op == OP_BROADCAST;
		out[(*n)++] = m->record;
		if (!m->record.own)
			return 0;
		chaos_begin(m, OP_ALLREDUCE);
		code = chaos_end(m, chaos_operate(m, OP_ALLREDUCE, sum), &result);
	}
	return code;
}

/* Then one that must succeed on all. @told: no rank can get an error this late. */
static int go_on(struct chaos_member *m, bool told)
{
	int32_t mine = m->rank + 1, sum = 0, want = 0;
	struct covey_result result = { 0 };
	int err, code;

	if (told)
		m->mistake = NULL;
	chaos_begin(m, OP_ALLREDUCE);
	err = covey_allreduce(&mine, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &result);
	code = chaos_end(m, err, &result);
	if (code)
		return code;
	for (int r = 0; r < m->size; r++)
		want += m->record.mask >> r & 1 ? r + 1 : 0;
	m->record.checksum = m->record.status ? 0 : (uint64_t)sum;
	if (!m->record.status && sum != want)
		return chaos_bad_bytes(m, "allreduce after a wrong call", 0, sum, want);
	chaos_put(m);
	return 0;
}

/* Appends the records before a failure to its cause. */
static int after(struct chaos_member *m, int code, const struct chaos_record *held, const struct chaos_record *next,
		 int n)
{
	size_t at = strlen(m->desk->cause), bytes = sizeof(m->desk->cause);

	at += (size_t)snprintf(m->desk->cause + at, bytes - at, "; after a wrong call (%s) seq %llu: epoch %u %s",
			       chaos_slip_names[held->slip - 1], (unsigned long long)held->seq, held->epoch,
			       covey_strerror(held->status));
	for (int i = 0; i < n && at < bytes; i++)
		at += (size_t)snprintf(m->desk->cause + at, bytes - at, ", %s epoch %u %s",
				       chaos_work_names[next[i].op], next[i].epoch, covey_strerror(next[i].status));
	return code;
}

int chaos_mistake_settle(struct chaos_member *m, bool strict, const char *mine)
{
	struct chaos_record held, next[PROBES], *last;
	int code, other, n = 0;

	m->record.slip = (uint8_t)(1 + m->mistake->slip);
	m->record.own = 1;
	m->record.wrong = is_wrong(m, m->rank);
	m->record.found = m->record.status == COVEY_ERR_MISMATCH;
	held = m->record;
	strict &= held.mask >> m->rank & 1; /* a rank that was late has no data of it */
	other = chaos_mistake_unlike(m, held.mask);
	if (!held.status && strict && other >= 0)
		return untold(m, &held, mine, other, "");
	code = probe(m, &held, next, &n);
	if (code)
		return after(m, code, &held, next, n);
	for (int i = 0; i < n; i++)
		held.found |= next[i].status == COVEY_ERR_MISMATCH;
	last = &next[n - 1];
	other = chaos_mistake_unlike(m, last->mask);
	if (!held.status && !held.found && !last->status && other >= 0)
		return untold(m, &held, mine, other, ", and so does the next operation that waits for all");
	for (int i = -1; i < n; i++) {
		m->record = i < 0 ? held : next[i];
		chaos_put(m);
	}
	code = go_on(m, !last->status || last->status == COVEY_ERR_MISMATCH);
	return code ? after(m, code, &held, next, n) : 0;
}

/* The call was refused here, and the right call made instead: for the others nothing has happened. */
int chaos_mistake_refused(struct chaos_member *m, bool refused)
{
	bool wrong = is_wrong(m, m->rank);

	if (wrong && !refused) {
		snprintf(m->desk->cause, sizeof(m->desk->cause),
			 "group %d: wrong call (%s) at step %llu, seq %llu: %s is not refused", m->number,
			 chaos_slip_names[m->mistake->slip], (unsigned long long)m->step,
			 (unsigned long long)m->record.seq, chaos_work_names[m->record.op]);
		return 1;
	}
	m->record.slip = (uint8_t)(1 + m->mistake->slip);
	m->record.wrong = m->record.found = wrong;
	return 0;
}

static bool waits_for_all(const struct chaos_call *c, int rank)
{
	const struct operation *o = &operation_table[c->op];

	return o->of != OP_OF_ROOT && (!o->to_root || c->root == rank);
}

static int run(struct chaos_member *m, struct chaos_call *c)
{
	bool local = m->mistake->slip == CHAOS_L_OWN || m->mistake->slip == CHAOS_L_ARGUMENT, refused = false;
	bool strict = waits_for_all(c, m->rank);
	struct chaos_blocks u = chaos_call_lay_out(m, c);
	struct covey_result result = { 0 };
	char mine[120];
	int err, code;

	chaos_call_fill(m, c, &u);
	chaos_begin(m, m->mistake->op);
	err = chaos_call_make(m, c, &u, &result);
	if (local && err == COVEY_ERR_INVAL && is_wrong(m, m->rank)) {
		refused = true;
		*c = right_call(m);
		u = chaos_call_lay_out(m, c);
		chaos_call_fill(m, c, &u);
		err = chaos_call_make(m, c, &u, &result);
	}
	code = chaos_end(m, err, &result);
	if (!code && local)
		code = chaos_mistake_refused(m, refused);
	if (!code && !m->record.status &&
	    !(strict && chaos_mistake_unlike(m, m->record.mask) >= 0)) /* else that is reported first */
		code = chaos_call_check(m, c, &u);
	if (code)
		return code;
	if (!local)
		return chaos_mistake_settle(m, strict, chaos_call_text(c, mine, sizeof(mine)));
	m->record.own = 1; /* no checksum is logged */
	chaos_put(m);
	return 0;
}

int chaos_mistake_work(struct chaos_member *m, const struct chaos_mistake *x)
{
	struct chaos_call c;
	int code;

	m->mistake = x;
	if (x->slip == CHAOS_L_HANDLE) {
		code = chaos_handles_mistake(m);
	} else {
		c = call_of(m, m->rank);
		code = chaos_block_take(m, chaos_elements(m) * sizeof(float));
		if (!code)
			code = run(m, &c);
		if (!code)
			code = chaos_block_give(m);
	}
	m->mistake = NULL;
	return code;
}
