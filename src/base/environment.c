/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment is read by name, so a misspelt name is ignored. Once a process, every name that begins with COVEY_ is
 * compared with the registry in config.h, and the unknown ones are logged.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "log.h"

#define MAX_SAID 4  /* names in the warning */
#define MAX_SLIPS 3 /* letters by which a name may differ to be taken for another one */
#define NAME_BYTES 64
#define TESTS "COVEY_TEST_" /* all such names are of the tests */

static const char *const names[] = {
#define SETTING_NAME(field, env, type, fallback, meaning) env,
	CVY_CONFIG_LIST(SETTING_NAME)
#undef SETTING_NAME
#define OTHER_NAME(env, meaning) env,
		CVY_ENV_LIST(OTHER_NAME) CVY_TOOL_ENV_LIST(OTHER_NAME)
#undef OTHER_NAME
};

#define NAMES (sizeof(names) / sizeof(names[0]))

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* Counts letters that are missing, too many, wrong or exchanged with their neighbour, from @a to @b. */
static int slips(const char *a, const char *b)
{
	int row[3][NAME_BYTES + 1], n = (int)strlen(b), *before = row[0], *last = row[1], *now = row[2];

	for (int j = 0; j <= n; j++)
		last[j] = j;
	for (int i = 1; a[i - 1]; i++) {
		int *free_row = before;

		now[0] = i;
		for (int j = 1; j <= n; j++) {
			now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = least(now[j], before[j - 2] + 1);
		}
		before = last;
		last = now;
		now = free_row;
	}
	return last[n];
}

static int known(const char *name)
{
	for (size_t i = 0; i < NAMES; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return !strncmp(name, TESTS, strlen(TESTS));
}

const char *cvy_environment_nearest(const char *name)
{
	const char *best = NULL;
	int fewest = MAX_SLIPS + 1;

	for (size_t i = 0; i < NAMES && strlen(name) < NAME_BYTES; i++) {
		int n = strlen(names[i]) < NAME_BYTES ? slips(name, names[i]) : fewest;

		if (n < fewest) {
			fewest = n;
			best = names[i];
		}
	}
	return best;
}

static void check_names(void)
{
	char text[400] = "", name[NAME_BYTES];
	size_t used = 0;
	int count = 0;

	for (char **at = environ; at && *at; at++) {
		size_t length = strcspn(*at, "=");
		const char *nearest;

		/* An empty variable counts as not set. */
		if (strncmp(*at, "COVEY_", 6) || !(*at)[length] || !(*at)[length + 1])
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)length, *at);
		if (known(name) || count++ >= MAX_SAID)
			continue;
		nearest = cvy_environment_nearest(name);
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s%s%s", used ? ", " : "", name,
					 nearest ? " (do you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
		if (used >= sizeof(text))
			used = sizeof(text) - 1; /* it was cut */
	}
	if (count > MAX_SAID)
		snprintf(text + used, sizeof(text) - used, " and %d more", count - MAX_SAID);
	if (count)
		cvy_warn("settings",
			 "the environment has %s: no setting of covey is called so, see docs/reference/environment.md",
			 text);
}

static void check_level(void)
{
	const char *text = getenv("COVEY_LOG");

	if (text && *text && !cvy_log_level(text))
		cvy_warn("settings", "COVEY_LOG is \"%.40s\": it must be error, warn, info or debug; warn is taken",
			 text);
}

void cvy_environment_check(void)
{
	static int checked;

	if (__atomic_exchange_n(&checked, 1, __ATOMIC_RELAXED))
		return;
	check_level();
	check_names();
}
