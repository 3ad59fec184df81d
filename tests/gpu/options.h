/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the form `--NAME NUMBER`. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdlib.h>
#include <string.h>

struct number {
	const char *name;
	int *to;
};

/* Those of @numbers, whose last has no name. */
static inline void options_read(int argc, char **argv, const struct number *numbers)
{
	for (int i = 1; i + 1 < argc; i += 2)
		for (const struct number *n = numbers; n->name; n++)
			if (!strcmp(argv[i], n->name))
				*n->to = atoi(argv[i + 1]);
}

#endif
