/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices on the store's channel. A notice may be lost or late, so nothing waits for one: it makes a member ask. If it
 * carries state or a record, these were true in the life that it names, like a reply, and nobody needs to ask. That
 * saves two calls of every member but one in a view change.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Lines of a notice as the strings of a reply: the first is the status. Splits @text; NULL: no memory. */
static const char **lines(char *text, int *argc)
{
	int n = 1;
	const char **argv;

	for (const char *at = text; *at; at++)
		n += *at == '\n';
	argv = calloc((size_t)n, sizeof(*argv));
	for (*argc = 0; argv && *argc < n; ++*argc) {
		char *end = strchr(text, '\n');

		argv[*argc] = text;
		if (end)
			*end = '\0';
		text = end ? end + 1 : text + strlen(text);
	}
	return argv;
}

/* Takes in the contents; 1: they were all that a peek would bring. */
static int told(struct cvy_group_state *g, const char *notice, uint32_t epoch)
{
	char *text = strchr(notice, '\n') && g->view && !g->need_hello ? strdup(notice) : NULL;
	const char **argv, *gid, *life;
	int argc = 0, whole = 0;

	argv = text ? lines(text, &argc) : NULL;
	gid = argv ? cvy_reply_get(argc, argv, "gid") : NULL;
	life = argv ? cvy_reply_get(argc, argv, "life") : NULL;
	if (gid && life && strcmp(gid, g->gid) == 0 && strcmp(life, g->life) == 0) {
		cvy_store_told(g, argc, argv);
		whole = g->seen_epoch == epoch && g->heard_view && g->heard_view->epoch == epoch;
		if (whole && cvy_reply_get(argc, argv, "since"))
			whole = cvy_store_told_news(g, argc, argv);
	}
	free(argv);
	free(text);
	return whole;
}

/* Is a report on this view under way, or due soon? Its reply says what a peek would. */
static int reporting(const struct cvy_group_state *g, uint32_t epoch)
{
	return g->view && epoch == g->view->epoch && epoch == g->seen_epoch &&
	       (g->phase == CVY_PHASE_FREEZING || (g->phase == CVY_PHASE_FROZEN && g->call[CALL_REPORT].id));
}

void cvy_notice(struct cvy_group_state *g, const struct cvy_event *e)
{
	char word[16];
	uint32_t epoch;
	int ph;

	if (!e->text || sscanf(e->text, "%" SCNu32 " %15s", &epoch, word) != 2)
		return;
	ph = cvy_store_ph(word);
	/* A reply has brought this already; a needless peek would slow the store down during a change. */
	if (epoch < g->seen_epoch || ((ph == PH_OPEN || ph == PH_INST) && ph == g->seen_ph && epoch == g->seen_epoch))
		return;
	if (told(g, e->text, epoch))
		return;
	/*
	 * Freezing on a hint is safe and saves a round trip. If the hint is wrong, the reply to the report says so and
	 * this member opens a change itself. Replies to earlier calls are older than the hint and ignored.
	 */
	if (ph == PH_OPEN && g->phase == CVY_PHASE_RUN && g->view && epoch == g->view->epoch &&
	    g->seen_epoch == epoch && !g->need_hello) {
		g->seen_ph = PH_OPEN;
		g->seen_id = g->next_id + 1;
		return;
	}
	if (ph == PH_OPEN && reporting(g, epoch))
		return;
	g->peek_due = g->now;
	g->call[CALL_PEEK].again = 1;
}
