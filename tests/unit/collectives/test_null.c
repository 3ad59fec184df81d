/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public function with every set of its pointers NULL, first without a group and then with one that works. The
 * calls are made from covey.h when the test is built (null_calls.awk), so that no function can be forgotten: nothing
 * faults, what cannot do without a pointer says so, and the group is as good as before. Whether a call succeeds or not, it
 * leaves errno, locale, umask, working directory and signal mask as they were.
 *
 * labels: redis real
 */
#include "covey_admin.h"
#include "covey_device.h"
#include "harness.h"

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM 4096
#define ODD 4711 /* no number of an error */
#define ODD_UMASK 0137

/* What stands in each place where a pointer is not NULL. */
struct values {
	struct covey_config *config;
	struct covey_group *group, **group_out;
	struct covey_work *work, **work_out;
	struct covey_ep *ep, **ep_out;
	struct covey_result *result;
	struct covey_error_info *error_info;
	struct covey_view *view;
	struct covey_event *event;
	struct covey_ep_config *ep_config;
	struct covey_ep_sizes *ep_sizes;
	struct covey_dispatch_args *dispatch_args;
	struct covey_combine_args *combine_args;
	const struct covey_device_outcome **device_outcome_out;
	struct covey_device_peers *device_peers;
	void *bytes, *ctx, **memory_out;
	const size_t *sizes;
	const int *ints;
	char *text;
	const char *store_name, *group_name;
	const char *const *words;
	covey_log_fn log;
	void (*pair)(void *ctx, const char *key, const char *value);
};

enum kind { INT, OTHER };

#define P(bit, value) (null >> (bit)&1 ? NULL : v->value)
/* Functions whose result is no status give nothing to compare. */
#define CALL(name, pointers, needed, kind, call) \
	static long run_##name(const struct values *v, unsigned null) \
	{ \
		(void)v, (void)null; \
		return STATUS_##kind(call); \
	}
#define STATUS_INT(call) (call)
#define STATUS_OTHER(call) ((void)(call), 0)
#define FIELD(args, field)
#include "null_calls.h"
#undef CALL
#undef FIELD

static const struct row {
	const char *name;
	int pointers;
	unsigned needed;
	enum kind kind;
	long (*run)(const struct values *v, unsigned null);
} rows[] = {
#define CALL(name, pointers, needed, kind, call) { #name, pointers, needed, kind, run_##name },
#define FIELD(args, field)
#include "null_calls.h"
#undef CALL
#undef FIELD
};

/* These end what they are given, or make another: with NULL only. */
static int ends_its_handle(const char *name)
{
	static const char *const list[] = { "covey_leave",     "covey_abort",	   "covey_close",
					    "covey_work_free", "covey_ep_destroy", "covey_join_start",
					    "covey_join_wait", "covey_join" };

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
		if (!strcmp(list[i], name))
			return 1;
	return 0;
}

static void clean_up(const struct values *v)
{
	if (*v->work_out)
		covey_work_free(*v->work_out);
	if (*v->ep_out)
		covey_ep_destroy(*v->ep_out);
	*v->work_out = NULL;
	*v->ep_out = NULL;
}

/* ---- what belongs to the caller ---- */

static struct {
	char directory[PATH_MAX], locale[256];
	locale_t of_thread;
	sigset_t signals;
} own;

/* Nothing of it is as a process has it at first. */
static void make_own(void)
{
	must(setlocale(LC_ALL, "C.UTF-8") && !chdir("/usr"), "no locale or directory");
	own.of_thread = newlocale(LC_NUMERIC_MASK, "C", NULL);
	uselocale(own.of_thread);
	umask(ODD_UMASK);
	sigemptyset(&own.signals);
	sigaddset(&own.signals, SIGUSR2);
	sigaddset(&own.signals, SIGRTMIN + 3);
	pthread_sigmask(SIG_SETMASK, &own.signals, NULL);
	must(getcwd(own.directory, sizeof(own.directory)), "the working directory");
	snprintf(own.locale, sizeof(own.locale), "%s", setlocale(LC_ALL, NULL));
}

static void before(void)
{
	errno = ODD;
}

static void after(const char *call, unsigned null)
{
	const int error = errno;
	char directory[PATH_MAX];
	sigset_t signals;

	must(error == ODD, "%s with %x NULL: errno is %d", call, null, error);
	must(!strcmp(setlocale(LC_ALL, NULL), own.locale) && uselocale((locale_t)0) == own.of_thread,
	     "%s with %x NULL: the locale is another", call, null);
	must(umask(ODD_UMASK) == ODD_UMASK, "%s with %x NULL: the umask is another", call, null);
	must(getcwd(directory, sizeof(directory)) && !strcmp(directory, own.directory),
	     "%s with %x NULL: the directory is %s", call, null, directory);
	pthread_sigmask(SIG_SETMASK, NULL, &signals);
	for (int n = 1; n <= SIGRTMAX; n++)
		must(sigismember(&signals, n) == sigismember(&own.signals, n),
		     "%s with %x NULL: signal %d is masked, or no longer", call, null, n);
}

#define SAME(call) (before(), same_status((call), #call))

static int same_status(int status, const char *call)
{
	after(call, 0);
	return status;
}

static void run_row(const struct row *row, const struct values *v, unsigned null)
{
	int needs = (null & row->needed) != 0, joins = !strncmp(row->name, "covey_join", 10);
	long status;

	if (!needs && (!v->group || (ends_its_handle(row->name) && !(joins && null))))
		return;
	*v->group_out = (struct covey_group *)8;
	fprintf(stderr, "%s, NULL %x\n", row->name, null); /* the last one named is the one that faults */
	before();
	status = row->run(v, null);
	after(row->name, null);
	must(row->kind != INT || !needs || status < 0, "%s with %x NULL: %ld", row->name, null, status);
	if (joins && row->pointers == 2 && !(null & 2))
		must(status < 0 && !*v->group_out, "%s with %x NULL: %ld", row->name, null, status);
	clean_up(v);
}

static void run_all(const struct values *v)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		for (unsigned null = 0; null < 1u << rows[i].pointers; null++)
			run_row(&rows[i], v, null);
	covey_log_set(NULL, NULL, 0);
}

/* ---- what the pointers point to ---- */

static struct {
	struct covey_config config;
	struct covey_group *group_out;
	struct covey_work *work_out;
	struct covey_ep *ep_out;
	struct covey_result result;
	struct covey_error_info error_info;
	struct covey_view view;
	struct covey_event event;
	struct covey_ep_config ep_config;
	struct covey_ep_sizes ep_sizes;
	struct covey_dispatch_args dispatch_args;
	struct covey_combine_args combine_args;
	const float *expert_scale; /* NULL: not with this preset */
	const struct covey_device_outcome *device_outcome_out;
	struct covey_device_peers device_peers;
	void *memory_out;
	size_t sizes[COVEY_MAX_RANKS];
	int ints[COVEY_MAX_RANKS];
	char text[8192];
	const char *words[1];
	uint8_t bytes[ROOM];
} room;

static void no_line(void *ctx, int level, const char *line)
{
	(void)ctx, (void)level, (void)line;
}

static void no_pair(void *ctx, const char *key, const char *value)
{
	(void)ctx, (void)key, (void)value;
}

static void fill_args(void)
{
	static uint16_t x[64], y[64], out[64];
	static int32_t experts[4] = { 0, 1, 2 }, count[4], source[64], recv_experts[64], flat[128], triplets[192];
	static uint32_t arrived[COVEY_EP_ARRIVED_ROWS + 64];
	static int64_t range[64];
	static float scales[64], weights[4], recv_weights[64], constant_v[8], bias[32];

	room.ep_config = (struct covey_ep_config)COVEY_EP_CONFIG_INIT;
	room.ep_sizes = (struct covey_ep_sizes)COVEY_EP_SIZES_INIT;
	room.ep_config.max_tokens = 4;
	room.ep_config.hidden = 8;
	room.ep_config.top_k = room.ep_config.experts = 1;
	room.ep_config.expert_owner = room.ints;
	room.dispatch_args = (struct covey_dispatch_args){ .size = sizeof(struct covey_dispatch_args),
							   .num_tokens = 4,
							   .x = x,
							   .experts = experts,
							   .packed_x = y,
							   .count = count,
							   .src_info = source,
							   .range = range,
							   .packed_scales = scales,
							   .weights = weights,
							   .recv_experts = recv_experts,
							   .recv_weights = recv_weights,
							   .flat = flat,
							   .triplets = triplets,
							   .arrived = arrived };
	room.combine_args = (struct covey_combine_args){ .size = sizeof(struct covey_combine_args),
							 .num_tokens = 4,
							 .y = y,
							 .count = count,
							 .src_info = source,
							 .range = range,
							 .experts = experts,
							 .weights = weights,
							 .expert_scale = room.expert_scale,
							 .x = x,
							 .copy_experts = 1,
							 .constant_experts = 1,
							 .constant_a1 = weights,
							 .constant_a2 = weights,
							 .constant_v = constant_v,
							 .bias = bias,
							 .out = out };
}

static struct values fill(const struct covey_config *config)
{
	struct values v = { 0 };

	room.config = *config;
	room.words[0] = "peek";
	room.sizes[0] = 1;
	fill_args();
	v.config = &room.config;
	v.group_out = &room.group_out;
	v.work_out = &room.work_out;
	v.ep_out = &room.ep_out;
	v.result = &room.result;
	v.error_info = &room.error_info;
	v.view = &room.view;
	v.event = &room.event;
	v.ep_config = &room.ep_config;
	v.ep_sizes = &room.ep_sizes;
	v.dispatch_args = &room.dispatch_args;
	v.combine_args = &room.combine_args;
	v.device_outcome_out = &room.device_outcome_out;
	v.device_peers = &room.device_peers;
	v.bytes = v.ctx = room.bytes;
	v.memory_out = &room.memory_out;
	v.sizes = room.sizes;
	v.ints = room.ints;
	v.text = room.text;
	v.store_name = harness_store();
	v.group_name = "null";
	v.words = room.words;
	v.log = no_line;
	v.pair = no_pair;
	return v;
}

/* Those that end what they are given, once with success. */
static void end_all(const struct values *v, struct covey_config *config)
{
	struct covey_group *group;

	config->group = "null-ends";
	must(!SAME(covey_join_start(config, &group)), "a join begins");
	must(!SAME(covey_join_wait(group, harness_deadline(WATCHDOG_MS))), "a join");
	must(!SAME(covey_leave(group, harness_deadline(WATCHDOG_MS))), "a leave");
	SAME((covey_close(group), 0));
	config->group = "null-aborts";
	must(!SAME(covey_join(config, &group)), "a join");
	SAME((covey_abort(group), 0));
	SAME((covey_close(group), 0));
	SAME((covey_ep_destroy(v->ep), 0));
	SAME((covey_work_free(v->work), 0));
	SAME((covey_close(v->group), 0));
}

TEST(null_instead_of_any_pointer_is_refused_or_welcome)
{
	struct covey_config config = harness_config("null", 1);
	struct values v = fill(&config);
	int64_t value = 5;

	unsetenv("COVEY_STORE");
	make_own();
	run_all(&v);
	v.group = harness_join(&config, 0);
	must(!covey_allreduce_start(&value, &value, 1, COVEY_INT64, COVEY_SUM, v.group, NULL, &v.work), "no work");
	must(!covey_work_wait(v.work, harness_deadline(WATCHDOG_MS), NULL), "the work");
	must(!covey_ep_create(v.group, &room.ep_config, &v.ep), "no handle");
	run_all(&v);
	must(!covey_allreduce(&value, &value, 1, COVEY_INT64, COVEY_SUM, v.group, NULL, NULL) && value == 5, "%ld",
	     (long)value);
	end_all(&v, &config);
}

/* ---- pointers in structs of arguments ---- */

static void run_ep_config(const struct values *v)
{
	(void)covey_ep_create(v->group, &room.ep_config, v->ep_out);
	clean_up(v);
}

static void run_dispatch_args(const struct values *v)
{
	(void)covey_dispatch(v->ep, &room.dispatch_args, NULL, NULL);
}

static void run_combine_args(const struct values *v)
{
	(void)covey_combine(v->ep, &room.combine_args, NULL, NULL);
}

#define CALL(name, pointers, needed, kind, call)
#define FIELD(args, field) \
	static void null_##args##_##field(const struct values *v) \
	{ \
		fill_args(); \
		room.args.field = NULL; \
		run_##args(v); \
	}
#include "null_calls.h"
#undef FIELD

static const struct {
	const char *name;
	void (*run)(const struct values *v);
} fields[] = {
#define FIELD(args, field) { #args "." #field, null_##args##_##field },
#include "null_calls.h"
#undef FIELD
#undef CALL
};

TEST(null_in_a_struct_of_arguments_faults_nowhere)
{
	struct covey_config config = harness_config("fields", 1);
	struct values v = fill(&config);
	static const float scale[1] = { 2 };

	v.group = harness_join(&config, 0);
	for (int preset = COVEY_EP_LL; preset <= COVEY_EP_WIN; preset++) {
		room.expert_scale = preset == COVEY_EP_LL || preset == COVEY_EP_FLAT ? scale : NULL;
		room.ep_config.preset = preset;
		must(!covey_ep_create(v.group, &room.ep_config, &v.ep), "no handle");
		for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
			fprintf(stderr, "%s is NULL\n", fields[i].name);
			fields[i].run(&v);
		}
		fill_args();
		covey_ep_destroy(v.ep);
	}
	must(!covey_barrier(v.group, NULL, NULL), "the group");
	covey_close(v.group);
}

/* ---- a join that fails ---- */

static char lines[4096];

static void keep_line(void *ctx, int level, const char *line)
{
	size_t used = strlen(lines);

	(void)ctx;
	if (level == COVEY_LOG_ERROR)
		snprintf(lines + used, sizeof(lines) - used, "%s\n", line);
}

TEST(a_failed_join_says_why_at_level_error_and_gives_no_handle)
{
	struct covey_config config = harness_config("why", 2);
	struct covey_group *group;
	struct covey_error_info info;
	int err = 0;

	covey_log_set(keep_line, NULL, COVEY_LOG_ERROR);
	config.rank = 0;
	/* The other one does not come. Again with more time, if the store had not answered on a busy machine. */
	for (config.join_ms = 300; err != COVEY_ERR_TIMEOUT && config.join_ms < WATCHDOG_MS; config.join_ms *= 4) {
		lines[0] = '\0';
		group = (struct covey_group *)8;
		err = covey_join(&config, &group);
		covey_last_error(NULL, &info);
	}
	covey_log_set(NULL, NULL, 0);
	ck_assert_int_eq(err, COVEY_ERR_TIMEOUT);
	ck_assert_ptr_null(group);
	ck_assert(*info.cause && !strstr(info.cause, "again"));
	ck_assert_ptr_null(strstr(covey_strerror(err), "again"));
	ck_assert_msg(strstr(lines, info.cause) && strstr(lines, "error: join: group"), "%s", lines);
	ck_assert_ptr_null(strstr(strstr(lines, "error: join") + 1, "error: join")); /* once */
}

HARNESS_MAIN(.name = "collectives/null")
