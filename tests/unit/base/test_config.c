/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: the order of sources, what is refused and how, what is never printed. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "config.h"
#include "log.h"

static struct cvy_config out;
static struct covey_error_info info;

static void setup(void)
{
	static const char *const names[] = { "RANK",
					     "WORLD_SIZE",
					     "COVEY_STORE",
					     "COVEY_GROUP",
					     "COVEY_RANK",
					     "COVEY_WORLD",
					     "COVEY_MAX_RANKS",
					     "COVEY_CREATE",
					     "COVEY_SLOT_BYTES",
					     "COVEY_HANG_MS",
					     "COVEY_JOB",
					     "TORCHELASTIC_RUN_ID",
					     "PMIX_NAMESPACE",
					     "OMPI_MCA_ess_base_jobid",
					     "SLURM_JOB_ID",
					     "SLURM_STEP_ID",
#define LAUNCHER_NAMES(rank, world, both, meaning) rank, world,
					     CVY_LAUNCHER_LIST(LAUNCHER_NAMES)
#undef LAUNCHER_NAMES
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		unsetenv(names[i]);
	setenv("COVEY_WORLD", "4", 1);
	memset(&out, 0, sizeof(out));
}

static void teardown(void)
{
	cvy_config_clear(&out);
}

static int resolve(const struct covey_config *from)
{
	int err = cvy_config_resolve(from, &out, NULL);

	cvy_errbox_get(NULL, &info);
	return err;
}

static int resolve_url(const char *url)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	config.store = url;
	return resolve(&config);
}

TEST(config_defaults_fill_every_field)
{
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_str_eq(out.store, "redis://h");
	ck_assert_str_eq(out.group, "covey");
	ck_assert_int_eq(out.rank, -1);
	ck_assert_int_eq(out.max_ranks, 64);
	ck_assert_int_eq(out.admission, COVEY_ADMISSION_AUTO);
	ck_assert_int_eq(out.hang_ms, 100);
	ck_assert_uint_eq(out.window_bytes, 4294967296);
	ck_assert_str_eq(out.host, "");
}

TEST(config_sources_have_an_order)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	setenv("RANK", "1", 1);
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_int_eq(out.rank, 1);
	teardown();
	setenv("COVEY_RANK", "2", 1);
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_int_eq(out.rank, 2);
	teardown();
	ck_assert_int_eq(resolve_url("redis://h?rank=3"), 0);
	ck_assert_int_eq(out.rank, 3);
	teardown();
	config.store = "redis://h?rank=3";
	config.rank = 0;
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.rank, 0);
}

TEST(config_forms_a_group_where_the_environment_is_a_replacements)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	config.store = "redis://h";
	setenv("COVEY_CREATE", "never", 1);
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.create, COVEY_CREATE_NEVER);
	teardown();
	config.create = COVEY_CREATE_FIRST;
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.create, COVEY_CREATE_FIRST);
	teardown();
	config.create = COVEY_CREATE_DEFAULT;
	unsetenv("COVEY_CREATE");
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.create, COVEY_CREATE_FIRST);
}

/* Sets the variables of all launchers from @first on, each with a rank of its own. */
static void launched_by(int first)
{
	static const char *const names[][2] = {
#define LAUNCHER_ROW(rank, world, both, meaning) { rank, world },
		CVY_LAUNCHER_LIST(LAUNCHER_ROW)
#undef LAUNCHER_ROW
	};
	char text[8];

	for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++) {
		snprintf(text, sizeof(text), "%d", i);
		i < first ? unsetenv(names[i][0]) : setenv(names[i][0], text, 1);
		snprintf(text, sizeof(text), "%d", 10 + i);
		i < first ? unsetenv(names[i][1]) : setenv(names[i][1], text, 1);
	}
}

TEST(config_takes_rank_and_world_of_the_innermost_launcher)
{
	unsetenv("COVEY_WORLD");
	for (int i = 0; i < 4; i++) {
		launched_by(i);
		ck_assert_int_eq(resolve_url("redis://h"), 0);
		ck_assert_int_eq(out.rank, i);
		ck_assert_int_eq(out.world, 10 + i);
		teardown();
	}
	setenv("COVEY_RANK", "7", 1);
	ck_assert_int_eq(resolve_url("redis://h?world=9"), 0);
	ck_assert_int_eq(out.rank, 7);
	ck_assert_int_eq(out.world, 9);
}

TEST(config_takes_no_half_of_a_launcher)
{
	setenv("SLURM_PROCID", "0", 1); /* the script of a batch job has a rank, but is none */
	ck_assert_int_eq(resolve_url("redis://h?world=9"), 0);
	ck_assert_int_eq(out.rank, -1);
	teardown();
	setenv("OMPI_COMM_WORLD_RANK", "x", 1);
	setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
	ck_assert_int_eq(resolve_url("redis://h"), COVEY_ERR_INVAL);
	ck_assert_ptr_nonnull(strstr(info.cause, "OMPI_COMM_WORLD_RANK"));
}

TEST(config_takes_the_job_of_the_launcher_whose_world_it_takes)
{
	static const char *const names[] = { "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
					     "SLURM_JOB_ID", "SLURM_STEP_ID" };
	static const char *const want[] = { "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "", "SLURM_JOB_ID.SLURM_STEP_ID" };

	for (int i = 0; i < 5; i++)
		setenv(names[i], names[i], 1);
	ck_assert_int_eq(resolve_url("redis://h"), 0); /* COVEY_WORLD is nobody's */
	ck_assert_str_eq(out.job, "");
	teardown();
	unsetenv("COVEY_WORLD");
	for (int i = 0; i < 4; i++) {
		launched_by(i);
		ck_assert_int_eq(resolve_url("redis://h?create=never"), 0);
		ck_assert_str_eq(out.job, want[i]);
		teardown();
	}
	launched_by(1);
	unsetenv("PMIX_NAMESPACE");
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_str_eq(out.job, "OMPI_MCA_ess_base_jobid");
	teardown();
	setenv("COVEY_JOB", "mine", 1);
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_str_eq(out.job, "mine");
	teardown();
	unsetenv("COVEY_JOB");
	launched_by(0);
	setenv("TORCHELASTIC_RUN_ID", "none", 1); /* torchrun's default says nothing */
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_str_eq(out.job, "");
	teardown();
	ck_assert_int_eq(resolve_url("redis://h?job=0123456789012345678901234567890123456789"), 0);
	ck_assert_uint_eq(strlen(out.job), CVY_JOB_MAX);
	ck_assert(strncmp(out.job, "012345678901234~", 16) == 0);
}

/* Every rank has to have these, so they are told to the store in words without spaces. */
TEST(config_tells_what_must_be_alike)
{
	char *text;

	ck_assert_int_eq(resolve_url("redis://h?slot_bytes=64K&device_memory=ipc&max_ranks=8"), 0);
	text = cvy_config_alike(&out, 1);
	ck_assert_ptr_nonnull(strstr(text,
				     "slot_bytes=65536 window_bytes=4294967296 device_window_bytes=0 device_memory=ipc "
				     "topology=none lease_ms=5000 algo=none"));
	ck_assert_ptr_nonnull(strstr(text, "max_ranks=8"));
	ck_assert_ptr_null(strstr(text, "device_ranks")); /* groups without devices are of any builds */
	free(text);
	teardown();
	ck_assert_int_eq(resolve_url("redis://h?device=0&lease_ms=-1"), 0);
	text = cvy_config_alike(&out, 0);
	ck_assert_ptr_nonnull(strstr(text, "device_ranks="));
	ck_assert_ptr_nonnull(strstr(text, " lease_ms=-1 "));
	free(text);
	text = cvy_config_alike(&out, 0);
	ck_assert_ptr_null(strstr(text, "max_ranks")); /* a joiner takes the group's */
	free(text);
}

TEST(config_takes_its_parameters_from_the_url_and_leaves_db)
{
	ck_assert_int_eq(resolve_url("redis+unix:///s?group=a.b&db=3&world=8&slot_bytes=64K&host=a%2Db&create=never"),
			 0);
	ck_assert_str_eq(out.store, "redis+unix:///s?db=3");
	ck_assert_str_eq(out.group, "a.b");
	ck_assert_str_eq(out.host, "a-b");
	ck_assert_int_eq(out.world, 8);
	ck_assert_uint_eq(out.slot_bytes, 65536);
	ck_assert_int_eq(out.create, COVEY_CREATE_NEVER);
}

TEST(config_reads_everything_from_the_environment)
{
	setenv("COVEY_STORE", "redis://e:1?group=g", 1);
	setenv("COVEY_CREATE", "never", 1);
	unsetenv("COVEY_WORLD");
	ck_assert_int_eq(resolve(NULL), 0);
	ck_assert_str_eq(out.store, "redis://e:1");
	ck_assert_str_eq(out.group, "g");
	ck_assert_int_eq(out.world, 0);
}

TEST(config_takes_queues_in_the_order_given)
{
	int way[CVY_QUEUES_WAYS];

	ck_assert_int_eq(cvy_queues_parse("tcp,direct", way), 1);
	ck_assert_int_eq(way[0], CVY_QUEUES_TCP);
	ck_assert_int_eq(way[1], CVY_QUEUES_DIRECT);
	ck_assert_int_eq(way[2], 0);
	ck_assert_int_eq(cvy_queues_parse("copy,direct,assisted,ring,tcp", way), 1);
	ck_assert_int_eq(way[0], CVY_QUEUES_COPY);
	ck_assert_int_eq(way[4], CVY_QUEUES_TCP);
	ck_assert_int_eq(way[5], 0);
	ck_assert_int_eq(cvy_queues_parse("direct,assisted,ring,tcp,direct", way), 0);
	ck_assert_int_eq(cvy_queues_parse("", way), 0);
}

TEST(config_refuses_what_is_wrong_and_says_what_is_right)
{
	static const struct {
		const char *url, *cause;
	} wrong[] = {
		{ "http://h", "store (covey_config) is wrong: it does not begin with redis://, rediss://" },
		{ "redis://h:x", "a port is not a number" },
		{ "redis://u:p?w@h", "in a user or a password write ? as %3F" },
		{ "redis://u:p/w@h", "in a user or a password write / as %2F" },
		{ "redis://h?rank=x", "rank \"x\" (parameter of the store URL) is wrong: it must be a whole number" },
		{ "redis://h?rank=64&create=never", "rank 64 is wrong: it must be below max_ranks 64" },
		{ "redis://h?rank=4",
		  "rank 4 (parameter of the store URL) is wrong: with world 4 (COVEY_WORLD) it must be from 0 to 3" },
		{ "redis://h?job=a%20b", "job \"a b\"" },
		{ "redis://h?world=65", "world 65 is wrong: it must be at most max_ranks 64" },
		{ "redis://h?max_ranks=4097", "max_ranks \"4097\"" },
		{ "redis://h?group=a/b", "group \"a/b\"" },
		{ "redis://h?create=maybe", "it must be first or never" },
		{ "redis://h?slot_bytes=5000", "it must be a multiple of 4096" },
		{ "redis://h?slot_bytes=4Q", "slot_bytes \"4Q\"" },
		{ "redis://h?window_bytes=64K", "it must be at least" },
		{ "redis://h?device_window_bytes=3M", "a multiple of 2M" },
		{ "redis://h?window_bytes=4096G", "it must be at most" },
		{ "redis://h?hang_ms=0", "or -1 (never)" },
		{ "redis://h?hang_ms=12", "at least twice heartbeat_ms" },
		{ "redis://h?rank=1&gruop=a", "parameter 2 of the store URL is wrong" },
		{ "redis://h?device_memory=fd", "auto, vmm or ipc" },
		{ "redis://h?topology=2", "two whole numbers from 1 to 4096" },
		{ "redis://h?topology=0x2", "topology \"0x2\"" },
		{ "redis://h?topology=2x-2", "topology \"2x-2\"" },
		{ "redis://h?topology=2x2x2", "topology \"2x2x2\"" },
		{ "redis://h?queues=direct,udp", "queues \"direct,udp\"" },
		{ "redis://h?queues=tcp,", "direct, assisted, ring or tcp, each once" },
		{ "redis://h?queues=ring,tcp,ring", "each once" },
		{ "redis://h?world=3&topology=2x2", "it is for 4 ranks, and the group is formed by 3" },
		{ "", "store is not set" },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		ck_assert_int_eq(resolve_url(wrong[i].url), COVEY_ERR_INVAL);
		ck_assert_msg(strstr(info.cause, wrong[i].cause) != NULL, "%s: %s", wrong[i].url, info.cause);
		ck_assert_ptr_null(out.store);
	}
}

/* A secret stands before the last @ of a URL that is damaged at each place in turn. */
TEST(config_never_shows_what_stands_before_an_at)
{
	static const char *const urls[] = {
		"redis://moe:S3CR3T@h:7411",
		"redis://S3CR3T:abc@h:7411/1",
		"redis://moe:abcS3CR3T@h?rank=1",
		"redis+unix://moe:S3CR3T@/s",
		"redis+sentinel://a,b:S3CR3T@h/m",
		"rediss://moe:S3CR3T@h?ca=/f",
		"redis://moe:?rank=S3CR3T@h",
		"redis://moe:?group=S3CR3T&x@h",
		"redis://moe:1/S3CR3T@h",
		"redis://moe:abc?S3CR3T@h:7411",
		"S3CR3T://moe:x@h",
		"redis//moe:S3CR3T@h",
	};
	static const char damage[] = "?/#@:&=%,[] \t\\+";
	char url[80];

	for (size_t i = 0; i < sizeof(urls) / sizeof(*urls); i++) {
		size_t secret = (size_t)(strstr(urls[i], "S3CR3T") - urls[i]), last;

		last = (size_t)(strrchr(urls[i], '@') - urls[i]);
		for (size_t at = 0; at <= last; at++)
			for (size_t d = 0; d < sizeof(damage); d++) { /* at the end of it nothing is put in */
				if (at > secret && at < secret + 6)
					continue;
				snprintf(url, sizeof(url), "%.*s%.1s%s", (int)at, urls[i], &damage[d], urls[i] + at);
				info.cause[0] = '\0';
				if (!resolve_url(url)) {
					ck_assert_msg(!strstr(out.group, "S3CR3T") && !strstr(out.host, "S3CR3T"), "%s",
						      url);
					cvy_config_clear(&out);
					continue;
				}
				ck_assert_msg(!strstr(info.cause, "S3CR3T"), "%s: %s", url, info.cause);
			}
	}
}

TEST(config_names_the_variable_that_is_wrong)
{
	setenv("WORLD_SIZE", "many", 1);
	unsetenv("COVEY_WORLD");
	ck_assert_int_eq(resolve_url("redis://h"), COVEY_ERR_INVAL);
	ck_assert_ptr_nonnull(strstr(info.cause, "world \"many\" (WORLD_SIZE)"));
	unsetenv("WORLD_SIZE");
	ck_assert_int_eq(resolve_url("redis://h"), COVEY_ERR_INVAL);
	ck_assert_ptr_nonnull(strstr(info.cause, "world is not set"));
}

TEST(config_never_prints_a_password)
{
	static const char *const urls[] = {
		"http://user:hunter2@h",      "redis://u:hunter2@h o",	    "u:hunter2@h",
		"redis://u:hunter2@h?rank=x", "redis://h?password=hunter2", "redis://u:hunter2@h?pass"
	};

	for (size_t i = 0; i < sizeof(urls) / sizeof(*urls); i++) {
		ck_assert_int_eq(resolve_url(urls[i]), COVEY_ERR_INVAL);
		ck_assert_msg(!strstr(info.cause, "hunter2"), "%s", info.cause);
	}
}

TEST(config_reads_an_older_struct_as_zero_filled)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	config.store = "redis://h";
	config.hang_ms = 55; /* past the end of the older struct */
	config.size = offsetof(struct covey_config, join_ms);
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.hang_ms, 100);
	teardown();
	config.size = offsetof(struct covey_config, rank);
	config.rank = 7;
	ck_assert_int_eq(resolve(&config), 0);
	ck_assert_int_eq(out.rank, -1);
}

TEST(config_refuses_a_newer_struct_that_uses_its_new_fields)
{
	struct {
		struct covey_config config;
		uint64_t more;
	} newer = { COVEY_CONFIG_INIT, 0 };

	newer.config.store = "redis://h";
	newer.config.size = sizeof(newer);
	ck_assert_int_eq(resolve(&newer.config), 0);
	teardown();
	newer.more = 1;
	ck_assert_int_eq(resolve(&newer.config), COVEY_ERR_INVAL);
	newer.config.size = 0;
	ck_assert_int_eq(resolve(&newer.config), COVEY_ERR_INVAL);
	ck_assert_ptr_nonnull(strstr(info.cause, "COVEY_CONFIG_INIT"));
}

static char warned[1024];
static int warnings;

static void keep_warning(void *ctx, int level, const char *line)
{
	(void)ctx;
	ck_assert_int_eq(level, COVEY_LOG_WARN);
	warnings++;
	strncat(warned, line, sizeof(warned) - strlen(warned) - 1);
}

TEST(config_warns_once_of_what_nobody_reads)
{
	covey_log_set(keep_warning, NULL, COVEY_LOG_WARN);
	setenv("COVEY_LOG", "loud", 1);
	setenv("COVEY_GRUOP", "x", 1);
	setenv("COVEY_ENTIRELY_OTHER", "y", 1);
	setenv("COVEY_EMPTY", "", 1);
	setenv("COVEY_TEST_WHATEVER", "1", 1);
	setenv("COVEY_BUILD", "/", 1);
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	cvy_config_clear(&out);
	ck_assert_int_eq(warnings, 2);
	ck_assert_ptr_nonnull(
		strstr(warned, "COVEY_LOG is \"loud\": it must be error, warn, info or debug; warn is taken"));
	ck_assert_ptr_nonnull(strstr(warned, "COVEY_GRUOP (do you mean COVEY_GROUP?)"));
	ck_assert_ptr_nonnull(strstr(warned, "COVEY_ENTIRELY_OTHER"));
	ck_assert_ptr_null(strstr(warned, "COVEY_ENTIRELY_OTHER (do"));
	ck_assert_ptr_null(strstr(warned, "COVEY_EMPTY"));
	ck_assert_ptr_null(strstr(warned, "COVEY_TEST_WHATEVER"));
	ck_assert_ptr_null(strstr(warned, "COVEY_BUILD"));
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_int_eq(warnings, 2);
}

/* Many and long ones: cut, and no more than the line has room for. */
TEST(config_warns_of_many_in_one_line)
{
	char name[80];

	covey_log_set(keep_warning, NULL, COVEY_LOG_WARN);
	for (int i = 0; i < 9; i++) {
		snprintf(name, sizeof(name), "COVEY_%d_%.*s", i, 70,
			 "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUV");
		setenv(name, "x", 1);
		snprintf(name, sizeof(name), "COVEY_DEVICE_WINDOW_BYTE%d", i);
		setenv(name, "x", 1);
	}
	ck_assert_int_eq(resolve_url("redis://h"), 0);
	ck_assert_int_eq(warnings, 1);
	ck_assert_ptr_nonnull(strstr(warned, "COVEY_0_ABC"));
}

TEST(config_finds_the_nearest_name)
{
	ck_assert_str_eq(cvy_environment_nearest("COVEY_GRUOP"), "COVEY_GROUP");
	ck_assert_str_eq(cvy_environment_nearest("COVEY_STOR"), "COVEY_STORE");
	ck_assert_str_eq(cvy_environment_nearest("COVEY_TRANSPROT"), "COVEY_TRANSPORT");
	ck_assert_str_eq(cvy_environment_nearest("COVEY_MAXRANKS"), "COVEY_MAX_RANKS");
	ck_assert_str_eq(cvy_environment_nearest("COVEY_JOIN_MS"), "COVEY_JOIN_MS");
	ck_assert_ptr_null(cvy_environment_nearest("COVEY_ENTIRELY_OTHER"));
	ck_assert_ptr_null(cvy_environment_nearest(
		"COVEY_ABCDEFGHIJKLMNOPQRSTUVWXYZ_ABCDEFGHIJKLMNOPQRSTUVWXYZ_ABCDEFGHIJKLMNOPQRSTUVWXYZ"));
}

TEST(config_lists_every_way_of_queues_in_its_refusal)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	config.store = "redis://h";
	config.queues = "none-of-them";
	ck_assert_int_eq(resolve(&config), COVEY_ERR_INVAL);
	for (int way = CVY_QUEUES_COPY + 1; way < CVY_QUEUES_WAYS; way++)
		ck_assert_ptr_nonnull(strstr(info.cause, cvy_queues_word(way)));
}

TEST(manual_has_a_row_for_every_setting)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&text, &bytes);

	cvy_config_manual(file);
	fclose(file);
#define HAS_ROW(field, env, type, fallback, meaning) \
	ck_assert_ptr_nonnull(strstr(text, "| `" #field "` | `" env "` |"));
	CVY_CONFIG_LIST(HAS_ROW)
#undef HAS_ROW
	ck_assert_ptr_nonnull(strstr(text, "| `create` | `COVEY_CREATE` | first |"));
	ck_assert_ptr_nonnull(strstr(text, "| `COVEY_LOG` |"));
	free(text);
}

SUITE_MAIN(.name = "base/config", .setup = setup, .teardown = teardown)
