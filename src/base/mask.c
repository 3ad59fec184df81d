/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of ranks as text for people: runs are shortened; a text that does not fit ends in "..". */
#include <stdio.h>

#include "mask.h"

/* the last rank of the run that begins at @first */
static int run_end(const struct covey_mask *m, int first)
{
	int last = first;

	while (last + 1 < COVEY_MAX_RANKS && covey_mask_has(m, last + 1))
		last++;
	return last;
}

static int run_text(char *text, size_t bytes, int first, int last, const char *comma)
{
	if (first == last)
		return snprintf(text, bytes, "%s%d", comma, first);
	return snprintf(text, bytes, "%s%d%s%d", comma, first, last == first + 1 ? "," : "-", last);
}

char *cvy_mask_text(const struct covey_mask *m, char *text, size_t bytes)
{
	char run[24];
	size_t used = 0;

	if (!bytes)
		return text;
	snprintf(text, bytes, "%s", cvy_mask_empty(m) ? "none" : "");
	for (int first = cvy_mask_next(m, 0); first >= 0;) {
		int last = run_end(m, first);
		size_t n = (size_t)run_text(run, sizeof(run), first, last, used ? "," : "");

		first = cvy_mask_next(m, last + 1);
		/* unless this run is the last, keep room for the ".." that would follow it */
		if (used + n + (first >= 0 ? 2 : 0) + 1 > bytes) {
			if (used + 3 <= bytes)
				snprintf(text + used, bytes - used, "..");
			break;
		}
		memcpy(text + used, run, n + 1);
		used += n;
	}
	return text;
}
