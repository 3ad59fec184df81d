/* SPDX-License-Identifier: Apache-2.0 */
/* The list of actions that a step gives out: growth and release. */
#include "group_state.h"

#include <stdlib.h>

void cvy_actions_clear(struct cvy_actions *actions)
{
	for (int i = 0; i < actions->count; i++) {
		struct cvy_action *a = &actions->item[i];

		for (int k = 0; k < a->argc; k++)
			free(a->argv[k]);
		free(a->argv);
		free(a->body);
		free(a->text);
		free(a->host);
	}
	free(actions->item);
	memset(actions, 0, sizeof(*actions));
}

struct cvy_action *cvy_do(struct cvy_group_state *g, int kind, int rank)
{
	struct cvy_actions *list = g->out;

	if (list->count == list->room) {
		int room = list->room ? 2 * list->room : 16;
		struct cvy_action *item = realloc(list->item, (size_t)room * sizeof(*item));

		if (!item) { /* a lost action is repaired by a later step or by the members who see us silent */
			memset(&g->spare, 0, sizeof(g->spare));
			return &g->spare;
		}
		list->item = item;
		list->room = room;
	}
	struct cvy_action *a = &list->item[list->count++];

	memset(a, 0, sizeof(*a));
	a->kind = kind;
	a->rank = rank;
	return a;
}
