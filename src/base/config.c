/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings. Each source (code, URL, environment, default) gives values for the rows of the table, and every value passes
 * the same check, so that a mistake is reported in the same way for all sources. A store URL may hold a password: no message
 * prints one.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "config_table.h"
#include "hash.h"
#include "interface.h"
#include "page.h"
#include "url.h"

#define GROUP_NAME_MAX 64

/* The sources of a resolve. URL parameters are decoded copies; NULL: the URL has none. */
struct sources {
	struct covey_config code; /* of our size, zero-filled */
	char *url[SETTINGS];
	struct cvy_errbox *box;
};

static int wrong(const struct sources *from, enum setting s, const char *where, const char *value)
{
	if (s == SET_store) /* the value may hold a password */
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0, "store (%s) is wrong: %s; it must be %s", where,
				cvy_url_wrong(value), cvy_bounds[s].right);
	return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0, "%s \"%.80s\" (%s) is wrong: it must be %s",
			cvy_rows[s].name, value, where, cvy_bounds[s].right);
}

static int only_of(const char *text, const char *others, size_t max)
{
	size_t n = 0;

	for (; text[n]; n++)
		if (!isalnum((unsigned char)text[n]) && !strchr(others, text[n]))
			return 0;
	return n <= max;
}

static size_t graph(const char *text)
{
	size_t n = 0;

	while (isgraph((unsigned char)text[n]))
		n++;
	return n;
}

int cvy_topology_parse(const char *text, int *hosts, int *ranks)
{
	int end = 0;

	/* %d would take spaces and signs, too */
	return isdigit((unsigned char)text[0]) && sscanf(text, "%4dx%n", hosts, &end) == 1 && end &&
	       isdigit((unsigned char)text[end]) && strlen(text + end) <= 4 &&
	       strspn(text + end, "0123456789") == strlen(text + end) && sscanf(text + end, "%4d", ranks) == 1 &&
	       *hosts >= 1 && *hosts <= COVEY_MAX_RANKS && *ranks >= 1 && *ranks <= COVEY_MAX_RANKS;
}

const char *cvy_queues_word(int way)
{
	static const char *const words[] = { "none", "copy", "direct", "assisted", "ring", "tcp" };

	return words[way > 0 && way < CVY_QUEUES_WAYS ? way : 0];
}

int cvy_queues_parse(const char *text, int way[CVY_QUEUES_WAYS])
{
	size_t n = 0;

	memset(way, 0, CVY_QUEUES_WAYS * sizeof(*way));
	for (int i = 0; i < CVY_QUEUES_WAYS - 1; i++) {
		n = strcspn(text, ",");
		for (int w = 1; w < CVY_QUEUES_WAYS; w++)
			if (strlen(cvy_queues_word(w)) == n && !strncmp(text, cvy_queues_word(w), n))
				way[i] = w;
		for (int before = 0; before < i; before++)
			if (way[before] == way[i])
				return 0;
		if (!way[i] || !text[n])
			return way[i] != 0;
		text += n + 1;
	}
	return 0;
}

static int text_is_right(enum setting s, const char *value)
{
	int hosts, ranks, ways[CVY_QUEUES_WAYS];

	switch (s) {
	case SET_store:
		return !cvy_url_wrong(value);
	case SET_group:
		return only_of(value, "._-", GROUP_NAME_MAX) && *value;
	case SET_host:
		return only_of(value, "._:-", GROUP_NAME_MAX);
	case SET_interface:
		return !cvy_interface_wrong(value);
	case SET_rdma_device:
	case SET_algo:
		return !strpbrk(value, " \t\r\n");
	case SET_job:
		return !value[graph(value)];
	case SET_queues:
		return cvy_queues_parse(value, ways);
	case SET_topology:
		return cvy_topology_parse(value, &hosts, &ranks);
	case SET_metrics:
		return (!strncmp(value, "unix:", 5) && value[5]) || (!strncmp(value, "tcp:", 4) && value[4]);
	default:
		return 1;
	}
}

static int number_is_right(enum setting s, long long value)
{
	if (value < cvy_bounds[s].min || value > cvy_bounds[s].max)
		return 0;
	switch (s) {
	case SET_slot_bytes:
	case SET_window_bytes:
		return value % 4096 == 0;
	case SET_device_window_bytes:
		return value % (2 << 20) == 0;
	case SET_hang_ms:
		return value == -1 || value >= 2;
	case SET_link_ms:
		return value == -1 || value >= 4;
	case SET_lease_ms:
		return value != 0;
	default:
		return 1;
	}
}

/* Parses a whole number (sizes: with K, M or G), or the word of an ENUM. 0: it is neither. */
static int parse_number(enum setting s, const char *value, long long *out)
{
	const char *suffix;
	char *end;
	long long n;

	if (cvy_rows[s].type == TYPE_ENUM) {
		for (int i = 0; i < NAMES && cvy_bounds[s].names[i]; i++)
			if (!strcmp(value, cvy_bounds[s].names[i])) {
				*out = cvy_bounds[s].min + i;
				return 1;
			}
		return 0;
	}
	errno = 0;
	n = strtoll(value, &end, 10);
	if (end == value || errno)
		return 0;
	if (cvy_rows[s].type == TYPE_SIZE && *end) {
		suffix = strchr("KMG", toupper((unsigned char)*end));
		if (!suffix || end[1] || n < 0 || n > LLONG_MAX >> 30)
			return 0;
		n <<= *suffix == 'K' ? 10 : *suffix == 'M' ? 20 : 30;
	} else if (*end) {
		return 0;
	}
	*out = n;
	return 1;
}

static void store_number(struct cvy_config *to, enum setting s, long long value)
{
	if (cvy_rows[s].type == TYPE_SIZE)
		*(size_t *)((char *)to + cvy_rows[s].to) = (size_t)value;
	else
		*(int *)((char *)to + cvy_rows[s].to) = (int)value;
}

static int take_text(const struct sources *from, struct cvy_config *to, enum setting s, const char *where,
		     const char *value)
{
	char **slot = (char **)((char *)to + cvy_rows[s].to);
	long long number;

	if (cvy_rows[s].type == TYPE_STR) {
		if (*value && !text_is_right(s, value))
			return wrong(from, s, where, value);
		*slot = strdup(value);
		return *slot ? 0 : cvy_fail(from->box, COVEY_ERR_NOMEM, -1, 0, "no memory for the settings");
	}
	if (!parse_number(s, value, &number) || !number_is_right(s, number))
		return wrong(from, s, where, value);
	store_number(to, s, number);
	return 0;
}

static int take_number(const struct sources *from, struct cvy_config *to, enum setting s, long long value)
{
	char text[24];

	if (number_is_right(s, value)) {
		store_number(to, s, value);
		return 0;
	}
	snprintf(text, sizeof(text), "%lld", value);
	return wrong(from, s, "covey_config", text);
}

/* 1: the application has set the field, and *value holds it; a string is in *text */
static int code_has(const struct sources *from, enum setting s, long long *value, const char **text)
{
	const char *field;

	*value = 0;
	if (cvy_rows[s].from == NO_FIELD)
		return 0;
	field = (const char *)&from->code + cvy_rows[s].from;
	switch (cvy_rows[s].type) {
	case TYPE_STR:
		*text = *(const char *const *)field;
		return *text && **text;
	case TYPE_SIZE:
		/* past LLONG_MAX it becomes negative and is refused like any other wrong number */
		*value = (long long)*(const size_t *)field;
		return *value != 0;
	default:
		*value = *(const int *)field;
		return *value != (s == SET_rank ? COVEY_RANK_ANY : 0);
	}
}

/* 1, and the launcher's variable for @s in *where, if a launcher started this process. */
static int launcher(enum setting s, const char **where)
{
	static const struct {
		const char *name[2]; /* of rank and world */
		int both;
	} list[] = {
#define LAUNCHER_ROW(rank, world, both, meaning) { { rank, world }, both },
		CVY_LAUNCHER_LIST(LAUNCHER_ROW)
#undef LAUNCHER_ROW
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const char *other = getenv(list[i].name[s == SET_rank]);
		const char *own = getenv(list[i].name[s == SET_world]);

		*where = list[i].name[s == SET_world];
		if (own && *own && (!list[i].both || (other && *other)))
			return 1;
	}
	return 0;
}

static const char *environment(enum setting s, const char **where)
{
	const char *value = getenv(cvy_rows[s].env);

	*where = cvy_rows[s].env;
	if ((!value || !*value) && (s == SET_rank || s == SET_world) && launcher(s, where))
		value = getenv(*where);
	return value && *value ? value : NULL;
}

static int take(const struct sources *from, struct cvy_config *to, enum setting s)
{
	const char *text = NULL, *where;
	long long value;

	if (code_has(from, s, &value, &text))
		return text ? take_text(from, to, s, "covey_config", text) : take_number(from, to, s, value);
	if (from->url[s])
		return take_text(from, to, s, "parameter of the store URL", from->url[s]);
	text = environment(s, &where);
	if (text)
		return take_text(from, to, s, where, text);
	if (cvy_rows[s].type == TYPE_STR)
		return take_text(from, to, s, "default", cvy_rows[s].text);
	store_number(to, s, cvy_rows[s].number);
	return 0;
}

/* The source of the value of @s, as take() found it. */
static const char *origin(const struct sources *from, enum setting s)
{
	const char *text = NULL, *where;
	long long value;

	if (code_has(from, s, &value, &text))
		return "covey_config";
	if (from->url[s])
		return "parameter of the store URL";
	return environment(s, &where) ? where : "default";
}

/* The launcher's identity of the job, in memory of the caller; "": it gives none; NULL: no memory. */
static char *launched_job(const struct sources *from)
{
	static const char *const list[][3] = {
#define JOB_ROW(world, first, second, meaning) { world, first, second },
		CVY_JOB_LIST(JOB_ROW)
#undef JOB_ROW
	};
	const char *where = origin(from, SET_world);
	char *text;

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const char *first = getenv(list[i][1]), *second = *list[i][2] ? getenv(list[i][2]) : "";

		if (strcmp(where, list[i][0]) || !first || !*first || !strcmp(first, "none") || !second)
			continue;
		return asprintf(&text, "%s%s%s", first, *second ? "." : "", second) < 0 ? NULL : text;
	}
	return strdup("");
}

/* A job's identity is part of error texts, so a long one is shortened; a hash keeps two of them distinct. */
static int settle_job(const struct sources *from, struct cvy_config *to)
{
	char *name = *to->job ? strdup(to->job) : launched_job(from), *job = malloc(CVY_JOB_MAX + 1);

	if (!job || !name) {
		free(job);
		free(name);
		return cvy_fail(from->box, COVEY_ERR_NOMEM, -1, 0, "no memory for the settings");
	}
	if (strlen(name) <= CVY_JOB_MAX)
		snprintf(job, CVY_JOB_MAX + 1, "%s", name);
	else
		snprintf(job, CVY_JOB_MAX + 1, "%.*s~%016llx", CVY_JOB_MAX - 17, name,
			 (unsigned long long)cvy_hash_text(name));
	for (char *c = job; *c; c++)
		if (!isgraph((unsigned char)*c))
			*c = '_';
	free(name);
	free(to->job);
	to->job = job;
	return 0;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes %2F and the like in place. */
static void decode(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (*text == '%' && hex_digit(text[1]) >= 0 && hex_digit(text[2]) >= 0 && strncmp(text, "%00", 3)) {
			*to++ = (char)(hex_digit(text[1]) * 16 + hex_digit(text[2]));
			text += 2;
		} else {
			*to++ = *text;
		}
	}
	*to = 0;
}

/* An error shows neither name nor value of an unknown parameter: they may be the rest of a password with a ? in it. */
static int url_parameter(struct sources *from, char *name, int number)
{
	char *value = strchr(name, '=');

	if (value)
		*value++ = 0;
	for (int s = 0; value && s < SETTINGS; s++)
		if (s != SET_store && !strcmp(name, cvy_rows[s].name)) {
			decode(value);
			free(from->url[s]);
			from->url[s] = *value ? strdup(value) : NULL;
			return *value && !from->url[s] ? COVEY_ERR_NOMEM : 0;
		}
	return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
			"parameter %d of the store URL is wrong: it must be db=N, ca=FILE, cert=FILE, key=FILE or one "
			"of the settings, as name=value; "
			"in a password a ? is written %%3F",
			number);
}

static int of_the_store(const char *part)
{
	return !strncmp(part, "db=", 3) || !strncmp(part, "ca=", 3) || !strncmp(part, "cert=", 5) ||
	       !strncmp(part, "key=", 4);
}

/* Takes covey's parameters out of @url, in place; those of the store stay. */
static int url_split(struct sources *from, char *url)
{
	char *query = strchr(url, '?'), *copy, *rest = NULL;
	char joint = '?';
	int err = 0, number = 0;

	if (!query)
		return 0;
	copy = strdup(query + 1);
	if (!copy)
		return COVEY_ERR_NOMEM;
	*query = 0;
	for (char *part = strtok_r(copy, "&", &rest); part && !err; part = strtok_r(NULL, "&", &rest)) {
		number++;
		if (!of_the_store(part)) {
			err = url_parameter(from, part, number);
			continue;
		}
		/* the kept text is never longer than the old one */
		*query++ = joint;
		memmove(query, part, strlen(part) + 1);
		query += strlen(part);
		joint = '&';
	}
	free(copy);
	return err;
}

static int copy_code(struct sources *from, const struct covey_config *code)
{
	struct covey_config none = COVEY_CONFIG_INIT;
	const uint8_t *bytes = (const uint8_t *)code;
	size_t size = code ? code->size : 0;

	from->code = none;
	if (!code)
		return 0;
	if (size < sizeof(code->size))
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"covey_config.size %zu is wrong: start from COVEY_CONFIG_INIT, which sets it", size);
	for (size_t i = sizeof(none); i < size; i++)
		if (bytes[i])
			return cvy_fail(
				from->box, COVEY_ERR_INVAL, -1, 0,
				"covey_config.size %zu: a field past the %zu bytes known to covey %d.%d is set; "
				"a newer library is needed",
				size, sizeof(none), COVEY_VERSION_MAJOR, COVEY_VERSION_MINOR);
	memset(&from->code, 0, sizeof(from->code));
	memcpy(&from->code, code, size < sizeof(none) ? size : sizeof(none));
	if (size < offsetof(struct covey_config, rank) + sizeof(none.rank))
		from->code.rank = COVEY_RANK_ANY;
	return 0;
}

/* Ranks counted from 1 would wait for a rank 0 that does not exist. */
static int rank_past_world(const struct sources *from, const struct cvy_config *c)
{
	return cvy_fail(
		from->box, COVEY_ERR_INVAL, c->rank, 0,
		"rank %d (%s) is wrong: with world %d (%s) it must be from 0 to %d; only a joiner (create = never) may "
		"have a higher one",
		c->rank, origin(from, SET_rank), c->world, origin(from, SET_world), c->world - 1);
}

/* Checks that concern more than one setting. */
static int check_together(const struct sources *from, const struct cvy_config *c)
{
	struct cvy_layout layout = cvy_layout(c->window_bytes, c->slot_bytes);
	int hosts = 0, ranks = 0;

	if (!*c->store)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"store is not set: give a URL (COVEY_STORE=redis://host:6379) or start under ep-run");
	if (c->create == COVEY_CREATE_FIRST && !c->world)
		return cvy_fail(
			from->box, COVEY_ERR_INVAL, -1, 0,
			"world is not set: it must be the number of processes that form the group (COVEY_WORLD or "
			"WORLD_SIZE); create=never joins a group that is there");
	if (c->world > c->max_ranks)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0, "world %d is wrong: it must be at most max_ranks %d",
				c->world, c->max_ranks);
	if (*c->topology && cvy_topology_parse(c->topology, &hosts, &ranks) && c->create == COVEY_CREATE_FIRST &&
	    hosts * ranks != c->world)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"topology %s is wrong: it is for %d ranks, and the group is formed by %d", c->topology,
				hosts * ranks, c->world);
	if (c->create == COVEY_CREATE_FIRST && c->rank >= c->world)
		return rank_past_world(from, c);
	if (c->rank >= c->max_ranks)
		return cvy_fail(from->box, COVEY_ERR_INVAL, c->rank, 0,
				"rank %d is wrong: it must be below max_ranks %d", c->rank, c->max_ranks);
	if (c->hang_ms > 0 && c->hang_ms < 2 * c->heartbeat_ms)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"hang_ms %d is wrong: it must be at least twice heartbeat_ms %d", c->hang_ms,
				c->heartbeat_ms);
	if (layout.heap > c->window_bytes)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"window_bytes %zu is wrong: with slot_bytes %zu it must be at least %zu",
				c->window_bytes, c->slot_bytes, layout.heap);
	if (c->window_bytes > CVY_RESERVE_MAX / (size_t)c->max_ranks)
		return cvy_fail(from->box, COVEY_ERR_INVAL, -1, 0,
				"window_bytes %zu is wrong: with max_ranks %d it must be at most %llu", c->window_bytes,
				c->max_ranks, CVY_RESERVE_MAX / (unsigned long long)c->max_ranks);
	return 0;
}

int cvy_config_resolve(const struct covey_config *from, struct cvy_config *to, struct cvy_errbox *box)
{
	struct sources sources = { .box = box };
	struct cvy_config config = { 0 };
	int err = copy_code(&sources, from);

	cvy_environment_check();
	/* The store comes first: its URL is a source of the others. */
	for (int s = SET_store; s < SETTINGS && !err; s++) {
		err = take(&sources, &config, (enum setting)s);
		if (!err && s == SET_store && config.store)
			err = url_split(&sources, config.store);
	}
	if (!err)
		err = settle_job(&sources, &config);
	if (!err)
		err = check_together(&sources, &config);
	for (int s = 0; s < SETTINGS; s++)
		free(sources.url[s]);
	if (err) {
		cvy_config_clear(&config);
		return err;
	}
	*to = config;
	return 0;
}

void cvy_config_clear(struct cvy_config *config)
{
	for (int s = 0; s < SETTINGS; s++)
		if (cvy_rows[s].type == TYPE_STR)
			free(*(char **)((char *)config + cvy_rows[s].to));
	memset(config, 0, sizeof(*config));
}
