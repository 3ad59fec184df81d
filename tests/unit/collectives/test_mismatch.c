/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that do not match: every operation x every argument that must be alike x small and large x which rank errs x
 * ranks x transport. Nobody ends with success and other bytes and never hears of it: a call fails with MISMATCH on all
 * ranks, or, where it ended on some without a word of the others (broadcast, scatter, a safe point with nobody
 * waiting), the next operation does. The causes name both calls, numbers stay in step, and what follows is right.
 *
 * labels: redis
 */
#include "harness.h"
#include "operations/operations.h"

#include <stdio.h>
#include <stdlib.h>

#define SMALL 4
#define LARGE 9000 /* elements of 4 bytes: many ticks of SLOT */
#define SLOT 8192
#define MOST 4 /* ranks */
#define ROOM ((size_t)(MOST + 1) * (2 * LARGE + 64))

enum { ADMIT = OP_SENDRECV, OPS };

/* What one rank gives that the others do not; EACH: every rank names itself as the root. */
enum what { COUNT, TICKS, DTYPE, REDOP, ROOT, EACH, ON_LOSS, KIND, WHATS };

static const char *const op_names[OPS] = { OPERATION_LIST(OPERATION_NAME)[ADMIT] = "admit" };
static const char *const what_names[WHATS] = { "count", "ticks", "dtype", "redop", "root", "each", "on_loss", "kind" };

struct ask {
	int op, what;
	size_t count;
};

struct plain {
	int op, dtype, redop, root, on_loss;
	size_t count;
};

static int has_data(int op)
{
	return op != ADMIT && !operation_table[op].no_data;
}

/* Counts of alltoallv are those of pairs of ranks. */
static int has_count(int op)
{
	return has_data(op) && op != OP_ALLTOALLV;
}

/* Does it end on some ranks without a word of the others? */
static int goes_by(int op)
{
	return op == ADMIT || operation_table[op].of == OP_OF_ROOT;
}

static int makes_sense(int op, int what)
{
	switch (what) {
	case COUNT:
	case TICKS:
		return has_count(op);
	case DTYPE:
		return has_data(op);
	case REDOP:
		return op != ADMIT && operation_table[op].reduces;
	case ROOT:
	case EACH:
		return op != ADMIT && operation_table[op].rooted;
	case ON_LOSS:
		return op != ADMIT;
	default:
		return 1;
	}
}

static struct plain plain_of(const struct ask *ask, int rank, int n, int errs)
{
	struct plain p = { ask->op, COVEY_INT32, COVEY_SUM, 0, COVEY_ON_LOSS_CONTINUE, ask->count };

	if (ask->what == EACH)
		p.root = rank;
	if (!errs)
		return p;
	switch (ask->what) {
	case COUNT:
		p.count++;
		break;
	case TICKS:
		p.count = 2 * p.count + 5;
		break;
	case DTYPE:
		p.dtype = COVEY_UINT32;
		break;
	case REDOP:
		p.redop = COVEY_MAX;
		break;
	case ROOT:
		p.root = rank ? rank : n - 1; /* itself, where it can */
		break;
	case ON_LOSS:
		p.on_loss = COVEY_ON_LOSS_FAIL;
		break;
	case KIND:
		p.op = ask->op == OP_BARRIER ? OP_ALLREDUCE : OP_BARRIER;
		break;
	default:
		break;
	}
	return p;
}

static int call(struct member *m, const struct plain *p, int32_t *x, int32_t *y, struct covey_result *res)
{
	size_t counts[MOST], displs[MOST];
	struct operation_call call = { .send = x,
				       .recv = y,
				       .count = p->count,
				       .dtype = p->dtype,
				       .redop = p->redop,
				       .root = p->root,
				       .send_counts = counts,
				       .send_displs = displs,
				       .recv_counts = counts,
				       .recv_displs = displs,
				       .group = m->group,
				       .result = res };

	must(!covey_set_on_loss(m->group, p->on_loss), "on_loss");
	for (int r = 0; r < m->n; r++) {
		counts[r] = p->count;
		displs[r] = (size_t)r * p->count;
	}
	return p->op == ADMIT ? covey_admit(m->group, x, 8, res) : operation_table[p->op].call(&call);
}

/* ---- one case, by all ranks ---- */

struct table { /* shared by the ranks of a group */
	int status[2][MOST], both;
	uint64_t seq[3][MOST];
};

struct here {
	struct member *m;
	const struct ask *ask;
	struct table *t;
	int errs; /* which rank does */
	char text[96];
};

/* The call as causes have it, in part. */
static void words_of(const struct plain *p, char *text, size_t bytes)
{
	if (!has_count(p->op))
		snprintf(text, bytes, "%s", op_names[p->op]);
	else
		snprintf(text, bytes, "%s(%zu x %s", op_names[p->op], p->op == OP_ALLGATHERV ? 0 : p->count,
			 p->dtype == COVEY_INT32 ? "i32" : "u32");
	if (p->op == OP_ALLGATHERV)
		snprintf(text, bytes, "%s(", op_names[p->op]);
}

/* A rank that was frozen before another's call arrived knows its own alone; somebody knows both. */
static void check_cause(const struct here *h, const struct plain *mine, const struct plain *other, int later)
{
	struct covey_error_info info;
	char own[64], theirs[64], roots[2][16];

	covey_last_error(h->m->group, &info);
	words_of(mine, own, sizeof(own));
	words_of(other, theirs, sizeof(theirs));
	must(info.err == COVEY_ERR_MISMATCH && (strstr(info.cause, own) || (later && strstr(info.cause, "barrier"))),
	     "%s: rank %d: \"%s\" lacks %s", h->text, h->m->rank, info.cause, own);
	if (h->ask->what == EACH) { /* any two roots */
		const char *first = strstr(info.cause, "root ");

		if (first && strstr(first + 1, "root ") && strncmp(first, strstr(first + 1, "root "), 6))
			__atomic_add_fetch(&h->t->both, 1, __ATOMIC_SEQ_CST);
		return;
	}
	snprintf(roots[0], sizeof(roots[0]), "root %d", mine->root);
	snprintf(roots[1], sizeof(roots[1]), "root %d", other->root);
	if (strstr(info.cause, own) && strstr(info.cause, theirs) &&
	    (mine->root == other->root || (strstr(info.cause, roots[0]) && strstr(info.cause, roots[1]))))
		__atomic_add_fetch(&h->t->both, 1, __ATOMIC_SEQ_CST);
}

static int any(const int *status, int n, int what)
{
	int found = 0;

	for (int r = 0; r < n; r++)
		found |= status[r] == what;
	return found;
}

static void one_case(struct here *h, int32_t *x, int32_t *y)
{
	struct member *m = h->m;
	struct table *t = h->t;
	int next = (h->errs + 1) % m->n, later, err;
	struct plain mine = plain_of(h->ask, m->rank, m->n, m->rank == h->errs);
	struct plain other = plain_of(h->ask, m->rank == h->errs ? next : h->errs, m->n, m->rank != h->errs);
	struct covey_result res = { 0 };
	int32_t one = 1, sum = 0;

	t->both = 0;
	harness_meet(m);
	err = call(m, &mine, x, y, &res);
	must(!covey_set_on_loss(m->group, COVEY_ON_LOSS_CONTINUE), "on_loss");
	t->status[0][m->rank] = err;
	t->seq[0][m->rank] = res.seq;
	must(err == COVEY_ERR_MISMATCH || (!err && goes_by(mine.op)), "%s: rank %d: %s", h->text, m->rank,
	     covey_strerror(err));
	if (err)
		check_cause(h, &mine, &other, 0);
	harness_meet(m);
	later = any(t->status[0], m->n, 0);
	err = covey_barrier(m->group, NULL, &res);
	t->seq[1][m->rank] = res.seq;
	must(err == (later ? COVEY_ERR_MISMATCH : 0), "%s: rank %d: the next ends with %s", h->text, m->rank,
	     covey_strerror(err));
	if (err)
		check_cause(h, &mine, &other, 1);
	err = covey_allreduce(&one, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	t->seq[2][m->rank] = res.seq;
	must(!err && sum == m->n, "%s: rank %d goes on with %s, %d", h->text, m->rank, covey_strerror(err), sum);
	harness_meet(m);
	for (int i = 0; i < 3; i++)
		must(t->seq[i][m->rank] == t->seq[i][0] && t->seq[i][0] == t->seq[0][0] + (uint64_t)i,
		     "%s: rank %d: number %llu", h->text, m->rank, (unsigned long long)t->seq[i][m->rank]);
	must(t->both || h->ask->what == ON_LOSS || h->ask->op == OP_ALLGATHERV, "%s: nobody names both", h->text);
	harness_meet(m);
}

static void run_all(struct member *m)
{
	int32_t *x = calloc(ROOM, sizeof(*x)), *y = calloc(ROOM, sizeof(*y));
	struct here h = { .m = m, .t = m->arg };
	int nth = 0;

	must(x && y, "no memory");
	for (int op = 0; op < OPS; op++)
		for (int what = 0; what < WHATS; what++)
			for (int large = 0; large < (has_data(op) && what != ON_LOSS ? 2 : 1); large++) {
				struct ask ask = { op, what, large ? LARGE : SMALL };

				if (!makes_sense(op, what))
					continue;
				h.ask = &ask;
				h.errs = nth++ % m->n;
				snprintf(h.text, sizeof(h.text), "%s, %s, %zu, rank %d of %d errs", op_names[op],
					 what_names[what], ask.count, h.errs, m->n);
				one_case(&h, x, y);
			}
	free(x);
	free(y);
}

/* _i: 2 to 4 ranks; by memory, sockets, or on two hosts */
TEST_LOOP(calls_that_do_not_match_are_found, 0, 9)
{
	int n = 2 + _i % 3, way = _i / 3;
	struct covey_config config = harness_config("mismatch", n);
	struct table t = { .both = 0 };

	config.slot_bytes = SLOT;
	config.transport = way == 1 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_AUTO;
	harness_threads_on(&config, run_all, &t, way == 2 ? 2 : 0);
}

/* ---- roots that hear of nobody ---- */

#define STREAM 40

/* Ranks that call themselves roots again and again hear of nobody, but of how far the others are. */
static void run_stream(struct member *m)
{
	struct table *t = m->arg;
	struct covey_result res = { 0 };
	int32_t x = m->rank, y = -1, one = 1, sum = 0;
	int last = 0, err;

	for (int i = 1; i <= STREAM; i++) {
		err = covey_broadcast(&x, &y, 1, COVEY_INT32, i == 1 ? m->rank : 0, m->group, NULL, &res);
		must(res.seq == (uint64_t)i && (!err || err == COVEY_ERR_MISMATCH), "rank %d: broadcast %d: %s",
		     m->rank, i, covey_strerror(err));
		must(err || i == 1 || !y, "rank %d: broadcast %d brings %d", m->rank, i, y);
		if (err)
			last = i;
	}
	t->status[0][m->rank] = last;
	harness_meet(m);
	/* the root was at most 2D ticks ahead when it looked, and what it entered then fails for all */
	must(last && last <= 7 && last == t->status[0][0], "rank %d: found at broadcast %d", m->rank, last);
	err = covey_allreduce(&one, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	must(!err && sum == m->n && res.seq == STREAM + 1, "rank %d goes on with %s", m->rank, covey_strerror(err));
}

TEST_LOOP(streams_of_broadcasts_are_found_too, 0, 2)
{
	struct covey_config config = harness_config("streams", 3);
	struct table t = { .both = 0 };

	config.transport = _i ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_AUTO;
	harness_threads(&config, run_stream, &t);
}

/* Each calls itself the root, always: nobody waits for anybody but for room. */
static void run_kings(struct member *m)
{
	struct table *t = m->arg;
	struct covey_result res = { 0 };
	int32_t x[MOST] = { m->rank }, y, one = 1, sum = 0;
	int found = 0, err;

	for (int i = 1; i <= STREAM; i++) {
		err = covey_scatter(x, &y, 1, COVEY_INT32, m->rank, m->group, NULL, &res);
		must(res.seq == (uint64_t)i && (!err || err == COVEY_ERR_MISMATCH), "rank %d: scatter %d: %s", m->rank,
		     i, covey_strerror(err));
		found += err != 0;
		must(found || i <= 12, "rank %d: %d scatters, and nothing is found", m->rank, i);
	}
	err = covey_barrier(m->group, NULL, &res);
	t->status[0][m->rank] = err;
	harness_meet(m);
	must((!err || err == COVEY_ERR_MISMATCH) && err == t->status[0][0], "rank %d: the barrier: %s", m->rank,
	     covey_strerror(err));
	err = covey_allreduce(&one, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	must(!err && sum == m->n && res.seq == STREAM + 2, "rank %d goes on with %s", m->rank, covey_strerror(err));
}

TEST_LOOP(roots_that_wait_for_nobody_are_found_within_the_slots, 0, 2)
{
	struct covey_config config = harness_config("kings", 3);
	struct table t = { .both = 0 };

	config.transport = _i ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_AUTO;
	harness_threads(&config, run_kings, &t);
}

/* ---- what one rank alone can see ---- */

/* Nothing is sent, nothing is counted: the next operation of all has the number after the last one. */
TEST_RANKS(what_one_rank_can_see_is_refused_at_once, 2)
{
	struct covey_group *g = m->group;
	static int32_t a[MOST][64], b[MOST][64];
	int32_t *x = a[m->rank], *y = b[m->rank], one = 1, sum = 0;
	size_t s[2] = { 1, 1 }, d[2] = { 0, 8 }, r[2] = { 1, 1 }, q[2] = { 0, 0 }, huge[2] = { SIZE_MAX / 4, 1 };
	struct covey_result res = { 0 };
	struct covey_work *work = NULL;

	must_be_invalid(g, covey_broadcast(x, y, 1, COVEY_INT32, 2, g, NULL, &res), "root 2");
	must_be_invalid(g, covey_scatter(x, y, 1, COVEY_INT32, -1, g, NULL, &res), "root -1");
	must_be_invalid(g, covey_reduce(x, y, 1, COVEY_INT32, COVEY_SUM, 9, g, NULL, &res), "root 9");
	must_be_invalid(g, covey_gather_start(x, y, 1, COVEY_INT32, 2, g, NULL, &work), "root 2");
	must_be_invalid(g, covey_allreduce(x, y, huge[0], COVEY_INT32, COVEY_SUM, g, NULL, &res), "too large");
	must_be_invalid(g, covey_alltoall(x, y, huge[0] / 2, COVEY_INT32, g, NULL, &res), "too large");
	must_be_invalid(g, covey_allgather(NULL, y, 1, COVEY_INT32, g, NULL, &res), "NULL");
	must_be_invalid(g, covey_broadcast(m->rank ? x : NULL, m->rank ? NULL : y, 1, COVEY_INT32, 0, g, NULL, &res),
			"NULL");
	must_be_invalid(g, covey_allreduce(x, y, 1, 77, COVEY_SUM, g, NULL, &res), "datatype");
	must_be_invalid(g, covey_reduce_scatter(x, y, 1, COVEY_INT32, 77, g, NULL, &res), "unknown operation");
	must_be_invalid(g, covey_allreduce(x, x + 1, 4, COVEY_INT32, COVEY_SUM, g, NULL, &res), "overlap");
	must_be_invalid(g, covey_allgather(x + !m->rank, x, 4, COVEY_INT32, g, NULL, &res), "overlap");
	must_be_invalid(g, covey_reduce_scatter(x, x + !m->rank, 4, COVEY_INT32, COVEY_SUM, g, NULL, &res), "overlap");
	must_be_invalid(g, covey_alltoall(x, x + 4, 4, COVEY_INT32, g, NULL, &res), "overlap");
	s[m->rank] = 3;
	must_be_invalid(g, covey_alltoallv(x, s, d, y, r, d, COVEY_INT32, g, NULL, &res),
			"3 elements to itself and expects 1");
	r[m->rank] = 7;
	must_be_invalid(g, covey_alltoallv(x, s, d, y, r, d, COVEY_INT32, g, NULL, &res),
			"3 elements to itself and expects 7");
	s[m->rank] = r[m->rank] = 1;
	must_be_invalid(g, covey_alltoallv(x, s, d, y, r, q, COVEY_INT32, g, NULL, &res), "stands over");
	must_be_invalid(g, covey_alltoallv(x, s, d, x + 8, r, d, COVEY_INT32, g, NULL, &res), "over one of send");
	q[0] = 8;
	must_be_invalid(g, covey_alltoallv(x, s, d, x, r, q, COVEY_INT32, g, NULL, &res), "in place");
	must_be_invalid(g, covey_alltoallv(x, s, d, y, huge, d, COVEY_INT32, g, NULL, &res), "too large");
	must_be_invalid(g, covey_alltoallv(x, s, NULL, y, r, d, COVEY_INT32, g, NULL, &res), "NULL");
	q[0] = 0;
	must_be_invalid(g, covey_allgatherv(x, 1, y, r, q, COVEY_INT32, g, NULL, &res), "stands over");
	must_be_invalid(g, covey_allgatherv(x, 2, y, r, d, COVEY_INT32, g, NULL, &res), "own rank");
	must_be_invalid(g, covey_allgatherv(x + d[!m->rank], 1, x, r, d, COVEY_INT32, g, NULL, &res), "overlap");
	must(!covey_alltoallv(x, s, d, x + 1, r, d, COVEY_INT32, g, NULL, &res), "blocks between those that are sent");
	must(!covey_allreduce(&one, &sum, 1, COVEY_INT32, COVEY_SUM, g, NULL, &res) && sum == m->n && res.seq == 2,
	     "rank %d: number %llu", m->rank, (unsigned long long)res.seq);
}

HARNESS_MAIN(.name = "collectives/mismatch", .timeout_s = 240)
