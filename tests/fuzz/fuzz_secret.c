/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A secret in a URL of the store, however malformed: the first line of the input stands before it, the second behind it.
 * Where an @ follows, it may be of a user or a password: no cause and no line of the log has it, and no setting but the
 * URL itself takes it (what is in a setting is shown in many places).
 */
#include "config.h"
#include "fuzz.h"
#include "redis_url.h"

#define SECRET "S3CR3T"

static void look(void *ctx, int level, const char *line)
{
	(void)ctx, (void)level;
	fuzz_check(!strstr(line, SECRET));
}

static void look_at_cause(void)
{
	struct covey_error_info info;

	covey_last_error(NULL, &info);
	fuzz_check(!strstr(info.cause, SECRET));
}

static int has(const char *text)
{
	return text && strstr(text, SECRET);
}

static void check_settings(const struct cvy_config *c)
{
	fuzz_check(!has(c->group) && !has(c->host) && !has(c->interface) && !has(c->secret_file) && !has(c->metrics) &&
		   !has(c->flight) && !has(c->algo) && !has(c->device) && !has(c->rdma_device) && !has(c->topology) &&
		   !has(c->queues));
}

static void check_places(const struct cvy_redis_url *u)
{
	fuzz_check(!has(u->server.host) && !has(u->master) && !has(u->ca) && !has(u->cert) && !has(u->key));
	for (int i = 0; i < u->sentinels; i++)
		fuzz_check(!has(u->sentinel[i].host));
}

static void try_url(const char *url)
{
	struct covey_config from = COVEY_CONFIG_INIT;
	struct cvy_redis_url parsed;
	struct cvy_config config;

	from.store = url;
	from.world = 1;
	if (!cvy_config_resolve(&from, &config, NULL)) {
		check_settings(&config);
		if (!cvy_redis_url_parse(config.store, &parsed, NULL))
			check_places(&parsed);
		cvy_config_clear(&config);
	}
	look_at_cause();
	if (!cvy_redis_url_parse(url, &parsed, NULL))
		check_places(&parsed);
	look_at_cause();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *rest = text, *url;
	const char *before, *behind;

	covey_log_set(look, NULL, COVEY_LOG_DEBUG);
	before = strsep(&rest, "\n");
	behind = rest ? strsep(&rest, "\n") : "@h";
	if (strchr(behind, '@') && !strstr(before, SECRET) && !strstr(behind, SECRET) &&
	    asprintf(&url, "%s" SECRET "%s", before, behind) >= 0) {
		/* The file of a unix socket, and what stands before an own parameter, may have an @ of their own. */
		if (strncmp(url, "redis+unix:///", 14))
			try_url(url);
		free(url);
	}
	free(text);
	return 0;
}
