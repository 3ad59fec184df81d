/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation that the engine knows has a row in the table of losses. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "engine.h"
#include "losses.h"

TEST(losses_has_a_row_for_every_operation)
{
	char text[128], row[160], *table = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&table, &bytes);
	int known = 0;

	cvy_losses_manual(file);
	fclose(file);
	ck_assert_ptr_null(strchr(table, '?'));
	for (uint64_t kind = 0; kind < 16; kind++) {
		cvy_call_text(kind << 60, text, sizeof(text));
		if (!strncmp(text, "an unknown call", strlen("an unknown call")))
			continue;
		text[strcspn(text, "(")] = '\0';
		snprintf(row, sizeof(row), "\n| `%s` |", text);
		ck_assert_msg(strstr(table, row) != NULL, "no row for %s in CVY_LOSS_LIST (losses.h)", text);
		known++;
	}
	ck_assert_int_ge(known, 9);
	free(table);
}

int main(void)
{
	return suite_run(SUITE(.name = "collectives/losses"));
}
