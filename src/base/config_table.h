/* SPDX-License-Identifier: Apache-2.0 */
/* Private to config*.c: the list in config.h as one table, and the values that are right. */
#ifndef CVY_CONFIG_TABLE_H
#define CVY_CONFIG_TABLE_H

#include <stdint.h>

#include "config.h"

#define NAMES 5 /* most words of an ENUM */
#define NO_FIELD SIZE_MAX
#define CVY_RESERVE_MAX (1ull << 46) /* addresses for the windows of all ranks: 64 TiB are known to work */

enum type { TYPE_INT, TYPE_SIZE, TYPE_STR, TYPE_ENUM };

enum setting {
#define SETTING_ENUM(field, env, type, fallback, meaning) SET_##field,
	CVY_CONFIG_LIST(SETTING_ENUM) SETTINGS_PUBLIC,
	SETTINGS_BEFORE_TESTS = SETTINGS_PUBLIC - 1, /* the next is SETTINGS_PUBLIC again */
	CVY_TEST_CONFIG_LIST(SETTING_ENUM)
#undef SETTING_ENUM
		SETTINGS
};

struct row {
	const char *name, *env, *meaning;
	enum type type;
	size_t from, to;  /* offsets in covey_config (NO_FIELD: not there) and cvy_config */
	const char *text; /* default of a STR */
	long long number; /* default of the others */
};

/* The valid values of each setting; `right` ends the sentence "<value> is wrong: it must be ...". */
struct bound {
	long long min, max;
	const char *right;
	const char *names[NAMES]; /* ENUM: the words of the values min, min + 1, ... */
};

extern const struct row cvy_rows[SETTINGS];
extern const struct bound cvy_bounds[SETTINGS];

#endif
