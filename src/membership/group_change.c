/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view change up to its commit. A suspicion opens it, the engine freezes, this rank reports. If the others take too
 * long, it calls decide. A frozen member never thaws by itself.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PRESS_FIRST 3	 /* so many of the lowest ranks call decide first */
#define PRESS_SECOND 64	 /* so many have called it CVY_STAGGER_MS later */
#define FREEZE_SOON_MS 1 /* a proof waits this long for the engine before an `open` carries it */

static int changing(const struct cvy_group_state *g)
{
	return g->seen_epoch == g->view->epoch && g->seen_ph == PH_OPEN;
}

static int is_proof(int source)
{
	return source == CVY_SOURCE_ROBUST || source == CVY_SOURCE_PIDFD;
}

/*
 * May the process have left on purpose? A proof with a text says so. Without a proof: silence and broken links after our
 * report may be those of a process that has ended after the decision, of which we have not heard.
 */
static int leaves(const struct cvy_group_state *g, int source, const char *text)
{
	return is_proof(source) ? text != NULL : g->phase == CVY_PHASE_FROZEN;
}

void cvy_change_suspect(struct cvy_group_state *g, int rank, uint64_t inc, int source, const char *text)
{
	struct peer *p;
	char cause[120];

	if (rank < 0 || rank >= g->max_ranks || rank == g->rank || !inc)
		return;
	p = &g->peer[rank];
	if (is_proof(source) && p->proven != inc) { /* kept even if no view here lists the process yet */
		p->proven = inc;
		g->version++;
		g->look_again = 1;
	}
	if (!cvy_group_member(g, rank, inc) || p->accused == inc)
		return;
	if (!g->untold_ns)
		g->untold_ns = g->now;
	p->accused = inc;
	p->blamed = leaves(g, source, text) ? 0 : inc;
	p->source = source;
	g->untold |= p->proven != inc;
	g->untold_proven |= p->proven == inc;
	snprintf(cause, sizeof(cause), "%s%s%s", cvy_source_name(source), text ? ": " : "", text ? text : "");
	cvy_group_event(g, COVEY_EVENT_SUSPECT, rank, cause);
}

void cvy_change_want(struct cvy_group_state *g, const char *reason)
{
	if (!g->view)
		return;
	g->open_wanted = 1;
	cvy_text_set(g->open_reason, sizeof(g->open_reason), reason);
}

/* A commit clears all accusations. A store that forgot must get them again. */
void cvy_change_clear(struct cvy_group_state *g, int life)
{
	for (int r = 0; r < g->max_ranks; r++) {
		struct peer *p = &g->peer[r];

		p->told = p->telling = 0;
		if (!life)
			p->accused = 0;
	}
	g->look_again = 1;
	g->told_version = 0;
	g->noquorum_told = 0;
	if (!life)
		g->open_wanted = 0;
}

void cvy_change_frozen(struct cvy_group_state *g, const struct cvy_event *e)
{
	if (e->kind == CVY_EV_FROZE_NOT && e->err) { /* in any phase: the engine can do nothing further */
		cvy_group_stop(g, COVEY_ERR_FENCED,
			       e->text ? e->text : "the device of this rank failed: this rank gives up its place");
		return;
	}
	if (g->phase != CVY_PHASE_FREEZING || !g->view || e->epoch != g->view->epoch)
		return;
	if (e->kind == CVY_EV_FROZE_NOT) {
		cvy_group_stop(g, COVEY_ERR_FENCED, "the engine does not stand still: this rank gives up its place");
		return;
	}
	cvy_group_enter(g, CVY_PHASE_FROZEN);
	g->report = e->report;
	g->version++;
	g->told_version = 0;
}

/* ---- open ---- */

static int ahead(const struct cvy_group_state *g)
{
	return g->heard_view && g->heard_view->epoch > g->view->epoch;
}

/* Copies @from without spaces, for a script's argument. */
static void word(char *to, size_t bytes, const char *from)
{
	cvy_text_set(to, bytes, from[0] ? from : "-");
	for (; *to; to++)
		if (*to == ' ')
			*to = '_';
}

static void open_change(struct cvy_group_state *g, const char *reason)
{
	char epoch[16], count[16], why[24], (*text)[24];
	const char **argv;
	int n = 0, argc = 3;

	CVY_MASK_EACH(r, &g->view->members)
	n += g->peer[r].accused && g->peer[r].told != g->peer[r].accused;
	text = calloc((size_t)(2 * n + 1), sizeof(*text));
	argv = calloc((size_t)(2 * n + 3), sizeof(*argv));
	if (text && argv) {
		CVY_MASK_EACH(r, &g->view->members)
		{
			struct peer *p = &g->peer[r];

			if (!p->accused || p->told == p->accused)
				continue;
			p->telling = p->accused;
			reason = cvy_source_name(p->source);
			snprintf(text[argc - 3], sizeof(*text), "%d", r);
			argv[argc] = text[argc - 3];
			argc++;
			snprintf(text[argc - 3], sizeof(*text), "%" PRIu64, p->accused);
			argv[argc] = text[argc - 3];
			argc++;
		}
		snprintf(epoch, sizeof(epoch), "%u", g->view->epoch);
		snprintf(count, sizeof(count), "%d", n);
		word(why, sizeof(why), reason);
		argv[0] = epoch;
		argv[1] = why;
		argv[2] = count;
		cvy_call(g, CALL_OPEN, g->view->epoch, argc, argv);
	}
	free(text);
	free(argv);
}

static int movable(const struct cvy_group_state *g)
{
	return g->phase == CVY_PHASE_RUN || g->phase == CVY_PHASE_ACKED ||
	       (g->phase == CVY_PHASE_LEARNED && g->stage != STAGE_FENCE);
}

/*
 * Will a report follow soon? The engine mostly freezes at once; while a stepper holds it, the change needs an `open`.
 */
static int report_is_near(struct cvy_group_state *g)
{
	if (changing(g) || movable(g) || g->phase == CVY_PHASE_FROZEN)
		return 1;
	if (g->phase != CVY_PHASE_FREEZING || g->now >= g->freeze_ns + FREEZE_SOON_MS * CVY_MS)
		return 0;
	cvy_group_wake(g, g->freeze_ns + FREEZE_SOON_MS * CVY_MS);
	return 1;
}

/* In a group of thousands, what all members would tell a store that serves one call at a time waits so much longer. */
static uint64_t patience_ms(const struct cvy_group_state *g)
{
	return cvy_group_pace_ms(g) - (uint64_t)g->args.peek_ms;
}

/* How many members have lower ranks, up to @most. */
static int members_below(const struct cvy_group_state *g, int most)
{
	int below = 0;

	for (int r = cvy_mask_next(&g->view->members, 0); r >= 0 && r < g->rank && below < most;
	     r = cvy_mask_next(&g->view->members, r + 1))
		below++;
	return below;
}

/*
 * Until when a suspicion waits that is no proof: mostly a change commits without it, since a neighbour of the dead rank
 * proves its death. Else all members would tell the store of the same broken links. The lowest ranks open a change at
 * once; in one that is open nobody is in a hurry.
 */
static uint64_t patient_until(const struct cvy_group_state *g)
{
	const uint64_t patience = patience_ms(g) * CVY_MS;

	if (changing(g) && (g->phase == CVY_PHASE_FREEZING || g->phase == CVY_PHASE_FROZEN))
		return g->freeze_ns + patience;
	return members_below(g, PRESS_SECOND) < PRESS_SECOND ? 0 : g->untold_ns + patience;
}

static void bad_are(struct cvy_group_state *g, const struct covey_mask *bad)
{
	const uint64_t due = patient_until(g);

	if (cvy_mask_equal(bad, &g->bad_told)) {
		cvy_group_wake(g, g->bad_due);
		return;
	}
	if (g->now < due && due < g->bad_due)
		g->bad_due = due; /* to look again */
	cvy_group_wake(g, g->bad_due);
	if (g->now < due)
		return;
	g->bad_told = *bad;
	g->version++;
}

/* Does a proof or a broken link accuse rank @r, and does the store know? */
static void look_at(struct cvy_group_state *g, int r, struct covey_mask *bad)
{
	struct peer *p = &g->peer[r];

	if (r == g->rank)
		return;
	if (p->proven == g->view->member[r].inc) {
		g->dead = 1;
		cvy_change_suspect(g, r, p->proven, CVY_SOURCE_ROBUST, NULL);
	}
	if (cvy_link_bad(g, r, &g->bad_due)) {
		cvy_mask_add(bad, r);
		cvy_change_suspect(g, r, g->view->member[r].inc, CVY_SOURCE_LINK, "cannot be reached");
	}
	if (p->accused && p->told != p->accused) {
		g->untold |= p->proven != p->accused;
		g->untold_proven |= p->proven == p->accused;
	}
}

/* Looks at all members if an event or time may have changed a result; with thousands of members not at every event. */
static void look(struct cvy_group_state *g)
{
	struct covey_mask bad;

	if (!g->look_again && g->now < g->bad_due) {
		cvy_group_wake(g, g->bad_due);
		return;
	}
	memset(&bad, 0, sizeof(bad));
	g->untold = g->untold_proven = g->dead = 0;
	g->bad_due = CVY_NEVER;
	CVY_MASK_EACH(r, &g->view->members)
	look_at(g, r, &bad);
	g->look_again = 0;
	bad_are(g, &bad);
}

void cvy_change_look_at(struct cvy_group_state *g, int rank)
{
	struct covey_mask bad = g->bad_told;

	if (g->need_hello)
		g->look_again = 1;
	if (!g->view || g->look_again || !covey_mask_has(&g->view->members, rank))
		return;
	cvy_mask_del(&bad, rank);
	look_at(g, rank, &bad);
	bad_are(g, &bad);
}

static void open_if_due(struct cvy_group_state *g)
{
	const char *reason = g->open_reason;
	int forgot, untold = g->untold;

	if (!untold)
		g->untold_ns = 0;
	if (untold && g->now < patient_until(g)) {
		untold = 0;
		cvy_group_wake(g, patient_until(g));
	}
	if (g->untold_proven && !report_is_near(g)) /* a report carries proofs, and opens the change for them */
		untold = 1;
	forgot = g->phase == CVY_PHASE_FROZEN && g->seen_epoch == g->view->epoch &&
		 (g->seen_ph == PH_RUN || g->seen_ph == PH_INST);
	if (forgot)
		g->told_version = 0;
	if (g->leaving && g->phase == CVY_PHASE_RUN && !changing(g)) {
		g->open_wanted = 1;
		reason = "leave";
	}
	if (changing(g))
		g->open_wanted = 0;
	if (!untold && !g->open_wanted && (!forgot || g->dead))
		return;
	if (!ahead(g) && cvy_call_free(g, CALL_OPEN))
		open_change(g, reason);
}

/* ---- report ---- */

static void pair_list(char *text, size_t bytes, int rank, uint64_t inc)
{
	size_t at = strlen(text);

	snprintf(text + at, bytes - at, "%s%d:%" PRIu64, at ? "," : "", rank, inc);
}

/* Lists the proven dead and the unreachable. A change of either list needs a new report. */
static void complaints(struct cvy_group_state *g, char *proven, char *bad, size_t bytes)
{
	proven[0] = bad[0] = 0;
	CVY_MASK_EACH(r, &g->view->members)
	{
		if (r == g->rank)
			continue;
		if (g->peer[r].proven == g->view->member[r].inc)
			pair_list(proven, bytes, r, g->peer[r].proven);
		if (covey_mask_has(&g->bad_told, r))
			pair_list(bad, bytes, r, g->view->member[r].inc);
	}
	for (int r = 0; r < g->max_ranks; r++) /* voters that the view lacks count, too */
		if (g->peer[r].proven && g->peer[r].proven != g->view->member[r < g->view->max_ranks ? r : 0].inc &&
		    !covey_mask_has(&g->view->members, r))
			pair_list(proven, bytes, r, g->peer[r].proven);
	if (!proven[0])
		strcpy(proven, "-");
	if (!bad[0])
		strcpy(bad, "-");
}

static void report(struct cvy_group_state *g)
{
	const struct cvy_report *rep = &g->report;
	char n[5][24], flags[6], vid[20], epoch[16];
	size_t bytes = 32 * (size_t)g->max_ranks + 2, f = 0;
	char *proven = malloc(bytes), *bad = malloc(bytes);

	if (rep->spoiled)
		flags[f++] = 's';
	if (rep->mismatch)
		flags[f++] = 'm';
	if (g->leaving)
		flags[f++] = 'l';
	if (g->dead)
		flags[f++] = 'o';
	if (g->direct && g->was && g->was->epoch == g->view->epoch)
		flags[f++] = 'a';
	if (!f)
		flags[f++] = '-';
	flags[f] = 0;
	snprintf(epoch, sizeof(epoch), "%u", g->view->epoch);
	cvy_text_set(vid, sizeof(vid), cvy_record_get(&g->learned, "vid"));
	snprintf(n[0], sizeof(n[0]), "%" PRIu64, rep->done);
	snprintf(n[1], sizeof(n[1]), "%" PRIu64, rep->ent);
	snprintf(n[2], sizeof(n[2]), "%" PRIu64, rep->adm);
	snprintf(n[3], sizeof(n[3]), "%u", rep->stamp > g->view->stamp ? rep->stamp : g->view->stamp);
	if (proven && bad) {
		const char *argv[] = { epoch, vid, n[0], n[1], n[2], n[3], flags, proven, bad };

		complaints(g, proven, bad, bytes);
		cvy_call(g, CALL_REPORT, g->version, 9, argv);
	}
	free(proven);
	free(bad);
}

/* The lowest ranks press first, then some more, in case those are dead, and in a large group the others much later. */
static uint64_t stagger_ms(const struct cvy_group_state *g)
{
	const int below = members_below(g, PRESS_SECOND);

	if (below < PRESS_FIRST)
		return 0;
	return CVY_STAGGER_MS + (below < PRESS_SECOND ? 0 : patience_ms(g));
}

static void press(struct cvy_group_state *g)
{
	uint64_t start = g->told_ns + stagger_ms(g) * CVY_MS;
	uint64_t grace = start + (uint64_t)g->args.grace_ms * CVY_MS,
		 flush = start + (uint64_t)g->args.flush_ms * CVY_MS;
	uint64_t due = g->decide_due > grace ? g->decide_due : grace;
	int force = g->now >= flush ? 2 : 1;
	char epoch[16];
	const char *argv[] = { epoch, force == 2 ? "2" : "1" };

	if (force == 1 && g->decide_due <= grace && g->now < grace)
		due = grace;
	if (g->now < due) {
		cvy_group_wake(g, due < flush ? due : flush > g->now ? flush : due);
		return;
	}
	if (!cvy_call_free(g, CALL_DECIDE))
		return;
	snprintf(epoch, sizeof(epoch), "%u", g->view->epoch);
	cvy_call(g, CALL_DECIDE, g->view->epoch, 2, argv);
	g->decide_due = g->now + (uint64_t)(force == 2 ? 10 : 1) * cvy_group_pace_ms(g) * CVY_MS;
}

/*
 * Voters are missing that are in no view any more: they were left out, and a death followed before the view without them was
 * active. Nobody watches them. A process that is gone has promised nothing to a rival, or nobody is left who follows it.
 */
static void look_for_voters(struct cvy_group_state *g, const char *need)
{
	struct covey_mask missing;

	if (!need || cvy_ranks_parse(need, &missing))
		return;
	CVY_MASK_EACH(r, &missing)
	if (r < g->max_ranks && g->peer[r].voter.field)
		cvy_taken_look(g, r, g->peer[r].voter.value, 1);
}

void cvy_change_decided(struct cvy_group_state *g, int script, uint64_t mark, const struct cvy_event *e)
{
	const char *status = e->argv[0];

	if (!g->view)
		return;
	if (script == CALL_OPEN && mark == g->view->epoch) {
		g->open_wanted = 0;
		CVY_MASK_EACH(r, &g->view->members)
		if (g->peer[r].telling)
			g->peer[r].told = g->peer[r].telling;
		g->look_again = 1;
		return;
	}
	/*
	 * The report was stored only if the change is still open. Else COMMIT brings the record, or the store forgot.
	 */
	if (script == CALL_REPORT && changing(g) && g->phase == CVY_PHASE_FROZEN &&
	    (strcmp(status, "WAIT") == 0 || strcmp(status, "NOQUORUM") == 0)) {
		if (!g->told_version) {
			g->told_ns = g->now;
			g->decide_due = 0;
		}
		g->told_version = mark;
	}
	if (strcmp(status, "NOQUORUM") == 0)
		look_for_voters(g, cvy_reply_get(e->argc, e->argv, "need"));
	if (strcmp(status, "NOQUORUM") == 0 && !g->noquorum_told) {
		char text[120];

		snprintf(text, sizeof(text), "too few members can agree on a view: missing rank %.60s",
			 cvy_reply_get(e->argc, e->argv, "need") ? cvy_reply_get(e->argc, e->argv, "need") : "-");
		cvy_group_event(g, COVEY_EVENT_SUSPECT, -1, text);
		g->out->item[g->out->count - 1].err = COVEY_ERR_NOQUORUM;
		g->noquorum_told = 1;
	}
}

void cvy_change_advance(struct cvy_group_state *g)
{
	int dead;

	if (!g->view || g->need_hello)
		return;
	look(g);
	/* A view with a dead member will be replaced: there is no need to wait for the store's word. */
	dead = g->dead && cvy_call_path(g);
	open_if_due(g);
	if (movable(g) && (changing(g) || ahead(g) || dead)) {
		cvy_do(g, CVY_DO_FREEZE, -1);
		cvy_group_enter(g, CVY_PHASE_FREEZING);
		g->freeze_ns = g->now;
		cvy_group_tell_view(g, 0);
	}
	if (g->phase != CVY_PHASE_FROZEN || ahead(g) || (!changing(g) && !dead))
		return;
	if (g->told_version != g->version) {
		if (cvy_call_free(g, CALL_REPORT))
			report(g);
	} else {
		press(g);
	}
}
