/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tables of losses, and of calls that took their place. */
#include "losses.h"

#include "covey.h"
#include "engine.h"

static const struct loss {
	const struct cvy_op_kind *kind;
	const char *dies, *mask, *else_ends;
} losses[] = {
#define LOSS_ROW(kind, says, dies, mask, else_ends) { &cvy_op_##kind, dies, mask, else_ends },
	CVY_KIND_LIST(LOSS_ROW)
#undef LOSS_ROW
};

static const struct turn {
	int err; /* for the compiler: it must be a known error */
	const char *name, *when, *place, *ranks, *cure;
} turns[] = {
#define TURN_ROW(name, when, place, ranks, cure) { COVEY_ERR_##name, "COVEY_ERR_" #name, when, place, ranks, cure },
	CVY_TURN_LIST(TURN_ROW)
#undef TURN_ROW
};

static const char *needs(int op_class)
{
	switch (op_class) {
	case CVY_OP_ALL:
		return "all; alike on all survivors";
	case CVY_OP_PRIVATE:
		return "all; each rank has its own part";
	case CVY_OP_ROOT:
		return "the root; alike on all survivors";
	case CVY_OP_TO_ROOT:
		return "all, at the root; alike on all survivors";
	case CVY_OP_ADMIT:
		return "all, and the joiners if any wait";
	default:
		return "?";
	}
}

void cvy_losses_manual(FILE *file)
{
	fputs("| operation | needs | a rank dies in it | `result->mask` | may also end with |\n|---|---|---|---|---|\n",
	      file);
	for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
		fprintf(file, "| `%s` | %s | %s | %s | %s |\n", losses[i].kind->name, needs(losses[i].kind->op_class),
			losses[i].dies, losses[i].mask, losses[i].else_ends[0] ? losses[i].else_ends : "-");
}

void cvy_turns_manual(FILE *file)
{
	fputs("| what an operation returned | when | its place | ranks that get it | what the caller does |\n"
	      "|---|---|---|---|---|\n",
	      file);
	for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++)
		fprintf(file, "| `%s` | %s | %s | %s | %s |\n", turns[i].name, turns[i].when, turns[i].place,
			turns[i].ranks, turns[i].cure);
}
