/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of limits. Each number is the constant that the code compares with, so that the page cannot differ: the test
 * build/docs prints it anew. The limits of settings come from their table, which refuses larger values.
 */
#include "limits.h"

#include "../../src/membership/group_state.h"
#include "../../src/membership/redis_url.h"
#include "../run/run.h"
#include "calls.h"
#include "config.h"
#include "ep_call.h"
#include "ep_layout.h"
#include "handle.h"
#include "plan.h"

static void head(FILE *file, const char *title)
{
	fprintf(file, "\n## %s\n\n| what | least | most | beyond |\n|---|---|---|---|\n", title);
}

static void row(FILE *file, const char *what, const char *least, unsigned long long most, const char *beyond)
{
	fprintf(file, "| %s | %s | %llu | %s |\n", what, least, most, beyond);
}

static void group(FILE *file)
{
	head(file, "A group");
	row(file, "ranks (`max_ranks`)", "1", COVEY_MAX_RANKS, "`covey_join`: INVAL");
	row(file, "ranks that are looked at for which hosts they share", "", CVY_HOSTS_MAX,
	    "operations take no account of hosts");
	row(file, "bytes of state in `covey_admit`", "0", CVY_STATE_MAX, "INVAL");
	row(file, "`covey_group_start` inside one another", "", CVY_NESTED_MAX, "INVAL");
	row(file, "requests (recover, extend, retire, evict) of one process under way", "", CVY_ASKS_MAX, "REFUSED");
	row(file, "events that wait for `covey_event_next`", "", CVY_EVENTS_KEPT, "the oldest are dropped");
	row(file, "tag of a message", "0", INT32_MAX, "INVAL");
	row(file, "rules in `algo`", "", CVY_RULES_MAX, "`covey_join`: INVAL");
	row(file, "Sentinels in a store URL", "1", CVY_SENTINELS_MAX, "`covey_join`: INVAL");
	row(file, "bytes of a user or a password of the store", "", CVY_SECRET_BYTES - 1, "`covey_join`: INVAL");
	row(file, "bytes of the path of a file of TLS", "", CVY_FILE_BYTES - 1, "`covey_join`: INVAL");
}

static void pair(FILE *file)
{
	static const char refused[] = "`covey_ep_create` warns; dispatch and combine on devices: UNSUPPORTED";

	head(file, "Dispatch and combine on host memory");
	row(file, "`max_tokens`", "1", CVY_EP_MAX_TOKENS, "`covey_ep_create`: INVAL");
	row(file, "`hidden`, a multiple of 8", "8", CVY_EP_MAX_HIDDEN, "`covey_ep_create`: INVAL");
	row(file, "`top_k`", "1", CVY_EP_MAX_TOP_K, "`covey_ep_create`: INVAL");
	row(file, "`experts`", "1", CVY_EP_MAX_EXPERTS, "`covey_ep_create`: INVAL");
	row(file, "`max_ranks` x `max_tokens`", "", CVY_EP_MAX_ROWS, "`covey_ep_create`: INVAL");
	row(file, "`max_ranks` x `max_tokens` x the smaller of `top_k` and `experts`, with WIN and MESH", "",
	    CVY_EP_MAX_ROWS, "`covey_ep_create`: INVAL");
	row(file, "`places`; 0: 1. At most `max_ranks`", "0", COVEY_MAX_RANKS, "`covey_ep_create`: INVAL");
	row(file, "`experts` x `places`", "", CVY_EP_MAX_PLACES, "`covey_ep_create`: INVAL");
	head(file, "Device memory");
	row(file, "ranks of a group with devices; a build with COVEY_DEVICE_RANKS takes up to 256", "1",
	    COVEY_DEVICE_MAX_RANKS, "operations on devices: UNSUPPORTED");
	row(file, "`max_tokens`", "1", COVEY_DEVICE_MAX_TOKENS, refused);
	row(file, "`hidden`", "8", COVEY_DEVICE_MAX_HIDDEN, refused);
	row(file, "`experts`, and `experts` x `places`", "1", COVEY_DEVICE_MAX_EXPERTS, refused);
	row(file, "`top_k`", "1", CVY_EP_TOP_K, "`covey_ep_create`: INVAL");
	row(file, "`lanes`; 0: as many as pay", "0", CVY_GPU_LANES, "`covey_ep_create`: INVAL");
	row(file, "messages in one group of calls", "", CVY_GPU_MESSAGES, "UNSUPPORTED");
	row(file, "works of operations and messages on a device that are not freed", "", CVY_GPU_RECEIPTS, "NOMEM");
}

static void tools(FILE *file)
{
	head(file, "ep-run");
	row(file, "ranks, joiners included", "1", COVEY_MAX_RANKS, "usage");
	row(file, "bytes of TMPDIR, an absolute path of letters, digits, `/ . _ +` and `-`", "1", TOOL_TMP_MAX,
	    "/tmp is taken");
	row(file, "hosts of `--hosts`", "", RUN_MAX_HOSTS, "usage");
	row(file, "words of `--ssh` and `--launch`", "1", RUN_MAX_WORDS, "usage");
	row(file, "replacements of all ranks together", "", RUN_MAX_RESTARTS, "the dead are not replaced");
}

void limits_manual(FILE *file)
{
	fputs("# Limits\n\n"
	      "Printed from the constants that the code compares with. What a refusal says names the value and the "
	      "limit.\n",
	      file);
	group(file);
	pair(file);
	fputs("\n## Settings\n\nA setting beyond its limits is refused by `covey_join` with INVAL, wherever it was "
	      "made.\n\n",
	      file);
	cvy_config_limits(file);
	tools(file);
}
