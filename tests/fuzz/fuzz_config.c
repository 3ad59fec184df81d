/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, `NAME=VALUE` a line: what is accepted lies within the bounds that the rest relies on. */
#include "config.h"
#include "fuzz.h"

static const char *const names[] = {
#define NAME(field, env, type, fallback, meaning) env,
	CVY_CONFIG_LIST(NAME)
#undef NAME
		"RANK",
	"WORLD_SIZE",
};

#define NAMES (sizeof(names) / sizeof(names[0]))

static void check(const struct cvy_config *c)
{
	fuzz_check(*c->store && *c->group && strlen(c->group) <= 64 && c->host && c->interface && c->secret_file);
	fuzz_check(c->max_ranks >= 1 && c->max_ranks <= COVEY_MAX_RANKS);
	fuzz_check(c->rank >= -1 && c->rank < c->max_ranks && c->world >= 0 && c->world <= c->max_ranks);
	fuzz_check(c->slot_bytes && c->slot_bytes % 4096 == 0 && c->window_bytes % 4096 == 0);
	fuzz_check(c->window_bytes / 8 >= c->slot_bytes);
	fuzz_check(c->window_bytes <= SIZE_MAX / (size_t)c->max_ranks);
	fuzz_check(c->join_ms > 0 && c->heartbeat_ms > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *rest = text, *line;
	struct covey_error_info info;
	struct cvy_config config;
	int err;

	for (size_t i = 0; i < NAMES; i++)
		unsetenv(names[i]);
	while ((line = strsep(&rest, "\n"))) {
		char *value = strchr(line, '=');

		if (!value)
			continue;
		*value++ = 0;
		for (size_t i = 0; i < NAMES; i++)
			if (!strcmp(names[i], line))
				setenv(line, value, 1);
	}
	err = cvy_config_resolve(NULL, &config, NULL);
	if (err) {
		cvy_errbox_get(NULL, &info);
		fuzz_check(err == COVEY_ERR_INVAL && info.err == err && info.cause[0]);
	} else {
		check(&config);
		cvy_config_clear(&config);
	}
	free(text);
	return 0;
}
