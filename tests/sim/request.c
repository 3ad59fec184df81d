/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the store: on their way there and back they are late, lost, doubled and overtaken, and their caller
 * may die before the call runs or after. The scripts themselves run here, and what they may change (I13) and
 * that an epoch never goes back (I1) is looked at from outside of them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "checks.h"
#include "world.h"

#define CALL_MS 200 /* bound of a call, as in the real client */
#define COMMON 7    /* name gid rank inc nonce life rnd */
#define REGISTER_GONE 11

/* ---- the servers ---- */

static void publish(struct sim *s, const char *message, int old)
{
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		if (p->alive && !p->deaf && p->sees_old == old && (!s->faults || sim_draw(s, SIM_STORE, 10)))
			sim_at(s, sim_lag(s, 200), NOTICE, i)->text = strdup(message);
	}
}

static void published(void *ctx, const char *channel, const char *message)
{
	(void)channel;
	publish(ctx, message, 0);
}

static void published_old(void *ctx, const char *channel, const char *message)
{
	(void)channel;
	publish(ctx, message, 1);
}

/* Another run of the server, or another server: its name says so. */
void sim_store_names(struct sim *s)
{
	char run[32];

	snprintf(run, sizeof(run), "run%d", ++s->restarts);
	memory_server_names(s->server, run, run);
}

void sim_store_time(struct sim *s)
{
	memory_server_time(s->server, 1000 + s->now / CVY_MS);
	if (s->two)
		memory_server_time(s->old, 1000 + s->now / CVY_MS);
}

static struct memory_server *new_server(const char *name)
{
	struct memory_server *server = memory_server_new(name, name);

	if (sim_large)
		memory_server_large(server, 2);
	return server;
}

void sim_stores_open(struct sim *s)
{
	s->server = new_server("run0");
	memory_server_on_publish(s->server, published, s);
	sim_store_time(s);
}

void sim_stores_close(struct sim *s)
{
	sim_request_put(s->late);
	memory_copy_free(s->copy);
	memory_server_free(s->server);
	memory_server_free(s->old);
}

/* A failover of which the old primary knows nothing: both answer, each process sees one of them. */
void sim_two_stores(struct sim *s, const struct memory_copy *copy, uint64_t ns)
{
	struct memory_copy *now = memory_server_save(s->server);
	struct memory_server *server = s->old;

	s->old = s->server;
	s->server = server ? server : new_server("-");
	memory_server_on_publish(s->old, published_old, s);
	memory_server_on_publish(s->server, published, s);
	memory_server_load(s->server, copy ? copy : now);
	memory_copy_free(now);
	sim_store_names(s);
	if (sim_draw(s, SIM_FAULTS, 4) == 0) { /* it was started again, and is as new as the other */
		char run[32];

		snprintf(run, sizeof(run), "old%d", s->restarts);
		memory_server_names(s->old, run, run);
	}
	s->two = 1;
	sim_store_time(s);
	for (int i = 0; i < s->procs; i++)
		s->proc[i]->sees_old = (int)sim_draw(s, SIM_FAULTS, 2);
	sim_at(s, ns, HEAL, 0)->rank = -2;
}

/* One of them is shut down; in the end all see the other. */
void sim_one_store(struct sim *s)
{
	if (!s->two)
		return;
	if (sim_draw(s, SIM_FAULTS, 3) == 0) { /* the operator takes the old one */
		struct memory_server *server = s->server;

		s->server = s->old;
		s->old = server;
		memory_server_on_publish(s->server, published, s);
	}
	sim_trace(s, "one server is left");
	s->two = 0;
	for (int i = 0; i < s->procs; i++)
		s->proc[i]->sees_old = 0;
}

static int lists(struct memory_server *server, const struct proc *p)
{
	char field[16];
	const char *m;

	snprintf(field, sizeof(field), "m:%d", p->rank);
	m = memory_server_field(server, "sim", field);
	return m && strtoull(m, NULL, 10) == p->inc;
}

/* Has the store its vow to leave? It never decides again, and a group has ended when all others are dead. */
static int has_vowed(struct memory_server *server, const struct proc *p)
{
	unsigned long long inc;
	char field[16], flags[16];
	const char *report;

	snprintf(field, sizeof(field), "r:%d", p->rank);
	report = memory_server_field(server, "sim", field);
	return report && sscanf(report, "%llu %*s %*s %*s %*s %15s", &inc, flags) == 2 && inc == p->inc &&
	       strchr(flags, 'l');
}

int sim_listed(struct proc *p)
{
	return lists(p->sim->server, p) && (!p->sim->two || lists(p->sim->old, p));
}

/* ---- what a call may do ---- */

struct state { /* decided, as it stands in the hash */
	int here;
	uint64_t epoch;
	char gid[40], gen[64], vid[24], ph[8], rev[24];
	int said_hello, known; /* the caller, to this life; in m: or j: */
};

static void text_of(struct memory_server *server, const char *field, char *to, size_t bytes)
{
	const char *value = memory_server_field(server, "sim", field);

	snprintf(to, bytes, "%s", value ? value : "-");
}

static uint64_t inc_of(struct memory_server *server, char kind, const char *rank)
{
	char field[24];
	const char *value;

	snprintf(field, sizeof(field), "%c:%s", kind, rank);
	value = memory_server_field(server, "sim", field);
	return value ? strtoull(value, NULL, 10) : 0;
}

static void look(struct memory_server *server, const struct sim_request *r, struct state *state)
{
	uint64_t inc = strtoull(r->argv[3], NULL, 10);
	char epoch[24];

	state->here = memory_server_field(server, "sim", "gid") != NULL;
	text_of(server, "epoch", epoch, sizeof(epoch));
	state->epoch = strtoull(epoch, NULL, 10);
	text_of(server, "gid", state->gid, sizeof(state->gid));
	text_of(server, "gen", state->gen, sizeof(state->gen));
	text_of(server, "vid", state->vid, sizeof(state->vid));
	text_of(server, "ph", state->ph, sizeof(state->ph));
	text_of(server, "rev", state->rev, sizeof(state->rev));
	state->said_hello = inc && inc_of(server, 'c', r->argv[2]) == inc;
	state->known = inc && (inc_of(server, 'm', r->argv[2]) == inc || inc_of(server, 'j', r->argv[2]) == inc);
}

/* Who is proven dead is dead: a false proof is the one thing that could make a minority decide. */
static void check_proofs(struct sim *s, struct memory_server *server)
{
	for (int rank = 0; rank < SIM_RANKS; rank++) {
		char field[16];
		const char *d;
		struct proc *q;

		snprintf(field, sizeof(field), "d:%d", rank);
		d = memory_server_field(server, "sim", field);
		q = d ? sim_proc_of(s, strtoull(d, NULL, 10)) : NULL;
		if (q && q->alive && !q->driver.ended && q->rank == rank && !strstr(d, " left") &&
		    cvy_group_inc(q->driver.group) == q->inc) /* else it has given that incarnation up */
			sim_fail(s, "I13: process %d lives and is proven dead: %s", q->id, d);
	}
}

/* I13: only a member of this life that speaks of this epoch decides. A new life and hello have rules of their own. */
static void judge(struct sim *s, const struct sim_request *r, const struct state *was, const struct state *is)
{
	static const char *const of_epoch[] = { "open", "report", "decide", "ack" };
	const char *name = r->argv[0];
	int by_rule = was->said_hello && was->known && !strcmp(r->argv[1], was->gid) && !strcmp(r->argv[5], was->gen);

	if (!was->here || !is->here || strcmp(was->gid, is->gid) || strcmp(was->gen, is->gen))
		return;
	if (is->epoch < was->epoch)
		sim_fail(s, "I1: %s brings the store from epoch %" PRIu64 " back to %" PRIu64, name, was->epoch,
			 is->epoch);
	if (is->epoch == was->epoch && !strcmp(was->vid, is->vid) && !strcmp(was->ph, is->ph))
		return;
	if (r->proc < 0 || !strcmp(name, "hello") || !strcmp(name, "ask"))
		return;
	/* Who is dead it says as a launcher would, or who is in its way with its own call: check_proofs. */
	if (!strcmp(name, "prove"))
		return;
	if (!strcmp(name, "register") && r->argc > COMMON + REGISTER_GONE &&
	    strcmp(r->argv[COMMON + REGISTER_GONE], "-"))
		return;
	for (int i = 0; i < 4; i++)
		if (!strcmp(name, of_epoch[i]) && strtoull(r->argv[COMMON], NULL, 10) != was->epoch)
			by_rule = 0;
	if ((!strcmp(name, "report") || !strcmp(name, "ack")) && strcmp(r->argv[COMMON + 1], was->vid))
		by_rule = 0;
	if (!by_rule)
		sim_fail(s, "I13: %s of process %d changes epoch %" PRIu64 " %s to %" PRIu64 " %s", name, r->proc,
			 was->epoch, was->ph, is->epoch, is->ph);
}

/*
 * An admitted member that lives and stays, of the group whose name this call may take; NULL: none. Pending ones have no group
 * then.
 */
static const struct proc *lives_in(const struct sim *s, struct memory_server *server, const struct sim_request *r)
{
	for (int i = 0; i < s->procs && !strcmp(r->argv[0], "register"); i++) {
		const struct proc *p = s->proc[i];

		if (p->alive && !p->driver.ended && cvy_group_view(p->driver.group) &&
		    !covey_mask_has(&cvy_group_view(p->driver.group)->pending, p->rank) && lists(server, p) &&
		    !has_vowed(server, p))
			return p;
	}
	return NULL;
}

/* I13: a new group takes the name of the dead, and of those who left. */
static void check_name(struct sim *s, const struct sim_request *r, const struct state *was, const struct state *is,
		       const struct proc *member)
{
	if (member && was->here && is->here && strcmp(was->gid, is->gid))
		sim_fail(s, "I13: process %d takes the name of the group of process %d, which lives", r->proc,
			 member->id);
}

/* ---- counters that begin near their end ---- */

static void poke(struct sim *s, const char *field, uint64_t value, const char *rest)
{
	char text[96];

	snprintf(text, sizeof(text), "%" PRIu64 "%s", value, rest);
	memory_server_poke(s->server, "sim", field, text);
}

/* The first view gets another number: 1 if the answer, which has the old one, must not reach anybody. */
static int wind_view(struct sim *s, int kind)
{
	uint64_t epoch = sim_draw(s, SIM_WORLD, 3) ? 0xfffffffe - sim_draw(s, SIM_WORLD, 16)
						   : 0x7fffffff - sim_draw(s, SIM_WORLD, 8);
	char field[24], line[96];

	if (kind == WRAP_STAMP) {
		poke(s, "stamp", 0xffffffff - sim_draw(s, SIM_WORLD, 40), "");
		return 1;
	}
	sim_trace(s, "the first epoch is %" PRIu64, epoch);
	text_of(s->server, "l:1", line, sizeof(line));
	snprintf(field, sizeof(field), "l:%" PRIu64, epoch);
	memory_server_poke(s->server, "sim", field, line);
	poke(s, "epoch", epoch, "");
	return 1;
}

static int wind(struct sim *s, const struct state *was, const struct state *is)
{
	int kind = s->wrap;

	if (!was->here && is->here && kind == WRAP_INCS) {
		s->wrap = WRAP_NONE;
		poke(s, "incs", (1ull << 53) - 30 - sim_draw(s, SIM_WORLD, 3) * (1 << 20), "");
	} else if (!was->here && is->here && kind == WRAP_LIFE) {
		s->wrap = WRAP_NONE;
		poke(s, "gen", sim_draw(s, SIM_WORLD, 2) ? 0xffffffff : 0x7fffffff, ".0123456789abcdef");
	} else if (was->here && !strcmp(was->ph, "form") && is->epoch == 1) {
		if (kind == WRAP_EPOCH || kind == WRAP_STAMP) {
			s->wrap = WRAP_NONE;
			return wind_view(s, kind);
		}
	}
	return 0;
}

/* ---- on the way ---- */

void sim_request_put(struct sim_request *r)
{
	if (!r || --r->refs)
		return;
	for (int i = 0; i < r->argc; i++)
		free(r->argv[i]);
	free(r->argv);
	memory_reply_clear(&r->reply);
	free(r);
}

static struct sim_request *request(int proc, uint64_t id, int argc, const char *const *argv)
{
	struct sim_request *r = calloc(1, sizeof(*r));

	if (!r || !(r->argv = calloc((size_t)argc, sizeof(char *))))
		abort();
	r->proc = proc;
	r->id = id;
	for (int i = 0; i < argc; i++)
		if (!(r->argv[r->argc++] = strdup(argv[i])))
			abort();
	return r;
}

static void on_its_way(struct sim *s, struct sim_request *r, int kind, uint64_t delay)
{
	r->refs++;
	sim_at(s, delay, kind, r->proc < 0 ? 0 : r->proc)->request = r;
}

static void lost(struct sim *s, const struct sim_request *from, int err)
{
	struct sim_request *r = request(from->proc, from->id, 0, NULL);

	r->err = err;
	on_its_way(s, r, DELIVER, CALL_MS * CVY_MS);
}

/* A call that decides, once more at the worst time: when the next change begins or ends. */
static void keep_one(struct sim *s, const struct proc *p, int argc, const char *const *argv)
{
	static const char *const names[] = { "open", "report", "decide", "ack" };

	if (!s->faults || s->late || sim_draw(s, SIM_STORE, 4))
		return;
	for (int i = 0; i < 4; i++)
		if (!strcmp(argv[0], names[i])) {
			s->late = request(p->id, 0, argc, argv);
			s->late->refs++;
			return;
		}
}

static void bring_late(struct sim *s)
{
	if (!s->late || sim_draw(s, SIM_STORE, 3) == 0)
		return;
	on_its_way(s, s->late, ASKED, sim_draw(s, SIM_STORE, 1500) * US);
	sim_request_put(s->late);
	s->late = NULL;
}

static void call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	struct proc *p = (struct proc *)(void *)((char *)store - offsetof(struct proc, store));
	struct sim *s = p->sim;
	struct sim_request *r = request(p->id, id, argc, argv);
	uint64_t fate = s->faults ? sim_draw(s, SIM_STORE, 100) : 99;

	check_call(p, argc, argv);
	r->refs++;
	keep_one(s, p, argc, argv);
	r->doom = sim_doom(s, p, argv[0]);
	if (r->doom == DOOM_BEFORE)
		sim_at(s, 0, EXIT, p->id);
	else if (fate == 0)
		lost(s, r, COVEY_ERR_TIMEOUT);
	else
		on_its_way(s, r, ASKED, sim_lag(s, 100));
	if (fate == 1 || fate == 2) { /* and once more, when nobody thinks of it any more */
		struct sim_request *again = request(p->id, 0, argc, argv);

		on_its_way(s, again, ASKED, sim_draw(s, SIM_STORE, fate == 1 ? 2000 : 400000) * US);
	}
	sim_request_put(r);
}

static void no_close(struct cvy_store *store)
{
	(void)store;
}

void sim_store_open(struct proc *p)
{
	static const struct cvy_store_ops ops = { .call = call, .close = no_close };

	p->store.ops = &ops;
	p->driver.store = &p->store;
}

void sim_ask(struct sim *s, uint64_t delay, int argc, const char *const *argv)
{
	const char *all[COMMON + 4] = { argv[0], "-", "-", "-", "-", "-" };
	char rnd[40];

	snprintf(rnd, sizeof(rnd), "%016" PRIx64 "%016" PRIx64, sim_hash(s->seed, s->serial),
		 sim_hash(s->serial, s->seed));
	all[COMMON - 1] = rnd;
	for (int i = 1; i < argc && i < 5; i++)
		all[COMMON + i - 1] = argv[i];
	on_its_way(s, request(-1, 0, COMMON + argc - 1, all), ASKED, delay);
}

void sim_asked(struct sim *s, struct sim_event *e)
{
	struct sim_request *r = e->request;
	struct proc *p = r->proc < 0 ? NULL : s->proc[r->proc];
	struct memory_server *server = s->two && p && p->sees_old ? s->old : s->server;
	const struct proc *member;
	struct state was, is;
	int lose;

	if (s->store_down || (p && p->deaf)) {
		if (r->id)
			lost(s, r, COVEY_ERR_TIMEOUT);
		return;
	}
	sim_store_time(s);
	memory_reply_clear(&r->reply);
	look(server, r, &was);
	member = lives_in(s, server, r);
	r->err = memory_server_call(server, "sim", r->argc, (const char *const *)r->argv, &r->reply);
	look(server, r, &is);
	check_name(s, r, &was, &is, member);
	if (r->err)
		sim_fail(s, "I13: %s of process %d fails: %s", r->argv[0], r->proc, r->reply.argv[0]);
	judge(s, r, &was, &is);
	if (was.here && is.here && !strcmp(was.gen, is.gen) && strcmp(was.vid, is.vid) && strcmp(r->argv[0], "hello"))
		check_decided(s, was.vid, is.vid);
	if (strcmp(was.rev, is.rev))
		check_proofs(s, server);
	if (was.epoch != is.epoch || strcmp(was.ph, is.ph))
		sim_trace(s, "store%s: %s of process %d: epoch %" PRIu64 " %s", server == s->old ? " (old)" : "",
			  r->argv[0], r->proc, is.epoch, is.ph);
	check_ran(s, server);
	if (strcmp(was.ph, is.ph) && !strcmp(is.ph, "run"))
		check_voters(s, server);
	if (was.epoch != is.epoch || strcmp(was.ph, is.ph))
		bring_late(s);
	lose = wind(s, &was, &is) || (s->faults && sim_draw(s, SIM_STORE, 100) == 0);
	if (r->doom == DOOM_AFTER)
		sim_at(s, 0, EXIT, p->id);
	if (!r->id || !p)
		return;
	if (lose || r->doom) {
		lost(s, r, COVEY_ERR_TIMEOUT);
		return;
	}
	on_its_way(s, r, DELIVER, sim_lag(s, 100));
	if (s->faults && sim_draw(s, SIM_STORE, 100) == 0)
		on_its_way(s, r, DELIVER, sim_lag(s, 2000));
}

void sim_replied(struct proc *p, struct sim_event *e)
{
	struct sim_request *r = e->request;
	struct cvy_event ev = { .kind = CVY_EV_REPLY, .rank = -1, .id = r->id, .err = r->err };

	if (!r->err) {
		ev.argc = r->reply.argc;
		ev.argv = (const char *const *)r->reply.argv;
	}
	sim_post(p, &ev);
}

/* ---- cut from the store ---- */

void sim_deaf(struct proc *p, uint64_t ns, int tell)
{
	struct cvy_event down = { .kind = CVY_EV_STORE_DOWN, .err = COVEY_ERR_STORE };

	p->deaf++;
	sim_at(p->sim, ns, UP, p->id);
	if (!tell || !p->alive || p->paused)
		return;
	p->told_down = 1;
	sim_post(p, &down);
}

void sim_hears(struct proc *p)
{
	struct cvy_event up = { .kind = CVY_EV_STORE_UP };

	if (--p->deaf || !p->told_down)
		return;
	p->told_down = 0;
	sim_post(p, &up);
}
