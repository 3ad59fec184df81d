/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the store. At most one call of each script is under way. A failed call is repeated with back-off. While this
 * member cannot reach the store, another member relays its calls.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COMMON 7 /* name gid rank inc nonce life rnd */

static const char *const names[CALLS] = { "register", "ready", "hello", "open", "report", "decide",
					  "ack",      "peek",  "beat",	"ask",	"peek",	  "prove" };

int cvy_call_path(struct cvy_group_state *g)
{
	return g->store_up || cvy_relay_helper(g) >= 0;
}

/* May this call be made? If it only has to wait for its time, sets the timer. */
int cvy_call_free(struct cvy_group_state *g, int script)
{
	struct call *c = &g->call[script];

	if (c->id || !cvy_call_path(g))
		return 0;
	if (g->need_hello && script != CALL_HELLO && script != CALL_PROVE)
		return 0;
	if (g->now < c->due_ns) {
		cvy_group_wake(g, c->due_ns);
		return 0;
	}
	return 1;
}

void cvy_call_reset(struct cvy_group_state *g, int script)
{
	memset(&g->call[script], 0, sizeof(g->call[script]));
}

static void number(char *text, size_t bytes, uint64_t n, int known)
{
	if (known)
		snprintf(text, bytes, "%" PRIu64, n);
	else
		snprintf(text, bytes, "-");
}

/*
 * While the store does not answer, the store and the helper are tried in turn. A beat tries the store first, to find
 * out whether it is back. Other calls try the helper first: else each step of a view change would first wait for a
 * timeout.
 */
static int relayed(struct cvy_group_state *g, int script, const struct call *c)
{
	int store_first = script == CALL_BEAT, even = c->tries % 2 == 0;

	if (g->store_up && (g->failures < 2 || store_first == even))
		return -1;
	return cvy_relay_helper(g);
}

void cvy_call(struct cvy_group_state *g, int script, uint64_t mark, int argc, const char *const *argv)
{
	struct call *c = &g->call[script];
	char rank[16], inc[24], nonce[24], rnd[40];
	int known = g->rank >= 0 && script != CALL_LOOK, helper = relayed(g, script, c), n = COMMON + argc;
	const char **all = calloc((size_t)n, sizeof(*all));

	if (!all) {
		c->due_ns = g->now + CVY_CALL_RETRY_MS * CVY_MS;
		cvy_group_wake(g, c->due_ns);
		return;
	}
	number(rank, sizeof(rank), (uint64_t)g->rank, known);
	number(inc, sizeof(inc), g->inc, known);
	snprintf(nonce, sizeof(nonce), "%016" PRIx64, g->args.nonce);
	snprintf(rnd, sizeof(rnd), "%016" PRIx64 "%016" PRIx64, cvy_group_random(g), cvy_group_random(g));
	all[0] = names[script];
	all[1] = known ? g->gid : "-";
	all[2] = rank;
	all[3] = inc;
	all[4] = nonce;
	all[5] = known && g->life[0] ? g->life : "-";
	all[6] = rnd;
	for (int i = 0; i < argc; i++)
		all[COMMON + i] = argv[i];
	c->id = ++g->next_id;
	c->mark = mark;
	c->until_ns = CVY_NEVER;
	if (helper >= 0) {
		c->until_ns = g->now + CVY_RELAY_MS * CVY_MS;
		c->helper = helper;
		cvy_relay_send(g, helper, c->id, n, all);
	} else if (cvy_do_call(g, c->id, n, all)) {
		c->id = 0;
		c->due_ns = g->now + CVY_CALL_RETRY_MS * CVY_MS;
		cvy_group_wake(g, c->due_ns);
	}
	free(all);
}

void cvy_call_prove(struct cvy_group_state *g, int rank, uint64_t inc, const char *kind)
{
	char r[16], i[24];
	const char *argv[] = { r, i, kind };

	snprintf(r, sizeof(r), "%d", rank);
	snprintf(i, sizeof(i), "%" PRIu64, inc);
	if (cvy_call_free(g, CALL_PROVE))
		cvy_call(g, CALL_PROVE, 0, 3, argv);
}

/* Ends relayed calls whose time is over or whose helper is gone: no store client does that for them. */
void cvy_call_timers(struct cvy_group_state *g)
{
	for (int s = 0; s < CALLS; s++) {
		struct call *c = &g->call[s];

		if (!c->id || c->until_ns == CVY_NEVER)
			continue;
		if (g->now >= c->until_ns || !cvy_relay_can(g, c->helper)) {
			struct cvy_event lost = { .kind = CVY_EV_REPLY, .id = c->id, .err = COVEY_ERR_TIMEOUT };

			g->helper = -1 - c->helper; /* names the one that failed, see cvy_relay_helper */
			cvy_store_reply(g, &lost);
		} else {
			cvy_group_wake(g, c->until_ns);
		}
	}
}
