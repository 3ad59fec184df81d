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
	row(file, "`max_ranks` x `max_tokens` x the smaller of `top_k` and `experts`, with WIN", "", CVY_EP_MAX_ROWS,
	    "`covey_ep_create`: INVAL");
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

/* What README's sentences about the guarantees leave out. */
static void exceptions(FILE *file)
{
	fputs("\n## What the guarantees do not cover\n\n"
	      "| guarantee | exception |\n|---|---|\n"
	      "| G1: views are one history | a store that came back with older data, while half of the voters or fewer "
	      "live to decide: one rare case, `docs/design/PROTOCOL.md`, section 4 |\n"
	      "| G1, G2: alike on every survivor | alltoall(v), dispatch and combine have a mask of their own on each "
	      "rank; reduce_scatter and scatter may end with LOST on one rank alone (`docs/guide/losses.md`) |\n"
	      "| G2: an operation that ends | above `undo_bytes` in place, and above 3,840 KiB in place on a device, a "
	      "death may end it with LOST, alike on all |\n"
	      "| G4: a removed process changes no byte | kernels of your own that store in memory of peers: until the "
	      "process learns of its removal it may store there (`docs/guide/kernels.md`) |\n"
	      "| G3: a mask says whose parts are here | on devices, found by reading and never seen: a rank that "
	      "others completed a combine without, of three or another odd number of steps, may write over what a "
	      "rank two operations behind has not read |\n"
	      "| G4 | `device_memory` is ipc: nothing tells when the last store of a killed process has landed. Its "
	      "chunk is used again 500 ms after the system closed its descriptors; stores were seen 30 ms after that "
	      "|\n"
	      "| G5: it ends | more than half of the members are lost at once, and nothing proves them dead: the "
	      "others wait for one of them, or for `ep-admin evict --dead` (`docs/design/PROTOCOL.md`, section 13) |\n"
	      "| G5 | the store does not answer: a view change waits for it, and so does an operation that lacks a "
	      "dead rank |\n"
	      "| G5 | a living rank does not make the call: it is waited for, unless `late_ms` or a deadline says "
	      "otherwise |\n"
	      "| G5 | `hang_ms`, `link_ms` or `lease_ms` is -1: a rank that is silent and not proven dead is not given "
	      "up |\n"
	      "| G5 | ranks that make different calls on devices, which are not compared; kernels of your own that one "
	      "rank does not launch, or that wait for a word that a removed process stored over "
	      "(`docs/guide/kernels.md`) |\n"
	      "| G8: addresses stay | a communicator of libnccl ends by a loss: its graphs cannot be replayed, and "
	      "another one is made (`docs/reference/nccl.md`) |\n"
	      "| G8 | a group that grows: handles of dispatch have new sizes, and their graphs are captured again |\n"
	      "| G9: at most 2 % | in place above one slot an operation on hosts saves its input: 1.22 of the time at "
	      "1 MiB; small operations on hosts cost nanoseconds |\n"
	      "| G9 | on devices an operation of 32 KiB to 64 MiB costs up to 11 %, from 128 MiB on up to 2 %, and a "
	      "smaller one up to 0.42 us (`BENCHMARKS.md`) |\n"
	      "| devices | all ranks of a group with devices have one; messages on devices do not cross hosts |\n",
	      file);
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
	exceptions(file);
}
