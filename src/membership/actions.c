/* SPDX-License-Identifier: Apache-2.0 */
/* The list of actions of a step: growth and release. */
#include "group_state.h"

#include <stdlib.h>

#define ROOM 32 /* actions of a step that need no memory */
#define LAST 8	/* of the room, for actions that come only once and are waited for */

static void release(struct cvy_action *a)
{
	for (int k = 0; k < a->argc; k++)
		free(a->argv[k]);
	free(a->argv);
	free(a->body);
	free(a->text);
	free(a->host);
	memset(a, 0, sizeof(*a));
}

static int resize(struct cvy_actions *list, int room)
{
	struct cvy_action *item = realloc(list->item, (size_t)room * sizeof(*item));

	if (!item)
		return COVEY_ERR_NOMEM;
	list->item = item;
	list->room = room;
	return 0;
}

/* One step may dial thousands of peers. Its room is not kept for the steps that follow. */
void cvy_actions_clear(struct cvy_actions *actions)
{
	while (actions->count)
		release(&actions->item[--actions->count]);
	if (actions->room > ROOM)
		resize(actions, ROOM);
}

void cvy_actions_free(struct cvy_actions *actions)
{
	cvy_actions_clear(actions);
	free(actions->item);
	memset(actions, 0, sizeof(*actions));
}

int cvy_actions_init(struct cvy_actions *actions)
{
	memset(actions, 0, sizeof(*actions));
	return resize(actions, ROOM);
}

void cvy_do_spare(struct cvy_group_state *g)
{
	release(&g->spare);
}

/* Will a lost action be repeated, or done by others? */
static int comes_again(int kind)
{
	return kind != CVY_DO_FREEZE && kind != CVY_DO_LEARN && kind != CVY_DO_REPAIR && kind != CVY_DO_THAW &&
	       kind != CVY_DO_STOP && kind != CVY_DO_JOINED && kind != CVY_DO_IDENTITY && kind != CVY_DO_ANSWER;
}

static int full(const struct cvy_actions *list, int kind)
{
	return list->count >= list->room - (comes_again(kind) ? LAST : 0);
}

static int grow(struct cvy_actions *list)
{
	return resize(list, list->room ? 2 * list->room : ROOM);
}

struct cvy_action *cvy_do(struct cvy_group_state *g, int kind, int rank)
{
	struct cvy_actions *list = g->out;
	struct cvy_action *a;

	if (full(list, kind) && grow(list) && full(list, kind)) {
		/* a later step repeats a lost action, or members that see this one silent act */
		release(&g->spare);
		return &g->spare;
	}
	a = &list->item[list->count++];
	memset(a, 0, sizeof(*a));
	a->kind = kind;
	a->rank = rank;
	return a;
}

/* A call is made with all its strings or not at all. */
int cvy_do_call(struct cvy_group_state *g, uint64_t id, int argc, const char *const *argv)
{
	struct cvy_action call = { .kind = CVY_DO_CALL, .rank = -1, .id = id }, *a;

	call.argv = calloc((size_t)argc + 1, sizeof(*call.argv));
	while (call.argv && call.argc < argc && (call.argv[call.argc] = strdup(argv[call.argc])))
		call.argc++;
	a = call.argc == argc ? cvy_do(g, CVY_DO_CALL, -1) : NULL;
	if (!a || a == &g->spare) {
		release(&call);
		return COVEY_ERR_NOMEM;
	}
	*a = call;
	return 0;
}
