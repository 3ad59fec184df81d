/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey-manual - prints the pages of docs/ that are tables of the registries
 *
 * A part of the build, not installed. The registries are inside the library, so this program, unlike the
 * tools, is linked with all of it.
 */
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "error.h"
#include "limits.h"
#include "losses.h"
#include "metrics.h"

static void jobs(FILE *file)
{
	fputs("\n## Jobs\n\n"
	      "A group belongs to the job whose processes have formed it. A process with `create = first` forms a "
	      "group together with `world` - 1 others; it never joins a group that others have formed. A process with "
	      "`create = never` is a replacement or a joiner; it never forms a group. ep-run sets it for those that it "
	      "starts again.\n\n"
	      "The same job means: the same `world`, and the same `job` where both sides know theirs. `job` is "
	      "`COVEY_JOB`, or else the identity that the launcher gives to all processes of one launch:\n\n",
	      file);
	cvy_job_manual(file);
	fputs("\n| what a process with `create = first` meets under its name | what follows |\n|---|---|\n"
	      "| nothing, or a group that was closed by its last member | a new group is formed at once |\n"
	      "| a group that is being formed, of the same job | it is one of the founders |\n"
	      "| the same, but `world`, a setting or a rank does not fit | INVAL or BUSY, at once and for all "
	      "founders; both values are named |\n"
	      "| a group that is being formed by another job | BUSY |\n"
	      "| a group with a process that lives | BUSY; the group is not touched |\n"
	      "| a group whose processes are all gone | a new group is formed at once |\n"
	      "| a group of which it cannot be known | it waits, until a beat is heard, or until `lease_ms` (at least "
	      "5000) without any; at the end of `join_ms` BUSY, with the age of the beats and the line of `ep-admin` "
	      "that forgets the group |\n\n"
	      "A process is gone when it was started on this machine, in this PID namespace, and is not there (its "
	      "number, the number and the start time of its thread are compared), when its launcher has proven it "
	      "dead, or when the store has not heard of it for `lease_ms`. A process of the old group that wakes later "
	      "is fenced: the new group has another identity. `COVEY_JOB` is worth setting where a launcher gives no "
	      "identity and one store serves several jobs.\n",
	      file);
}

static void environment(FILE *file)
{
	fputs("# Environment\n\n"
	      "Made from the registry in `src/base/config.h`. A setting is taken from `struct covey_config`, else from "
	      "the parameters of the store URL, else from its variable, else from the launcher, else it has its "
	      "default. An empty variable counts as not set. A number of bytes may end in K, M or G.\n\n",
	      file);
	cvy_config_manual(file);
	fputs("\n## Launchers\n\n"
	      "Where neither `COVEY_RANK` nor `COVEY_WORLD` says so, rank and number of ranks are the launcher's, the "
	      "first of these whose variables are set (both of them, except for the first row). A launcher has to hand "
	      "on `COVEY_STORE` too: `mpirun -x COVEY_STORE=redis://host:6379 -n 8 ./job`; `srun` hands on everything. "
	      "Replacements that it did not start need `COVEY_CREATE=never`.\n\n",
	      file);
	cvy_launcher_manual(file);
	jobs(file);
	fputs("\n## Scripts and tests\n\n"
	      "The library does not read these. It warns once of any other variable that begins with `COVEY_`, with "
	      "the name that comes nearest.\n\n",
	      file);
	cvy_tool_manual(file);
}

static void errors(FILE *file)
{
	fputs("# Errors\n\n"
	      "Made from the registry in `include/covey.h`. Codes are grouped by what is lost, since that decides the "
	      "cure: -1..-19 this call (nothing changed), -20..-39 one peer (carry on), -40..-59 this handle (close "
	      "it, join again), -60..-79 this process. `covey_last_error()` names rank, epoch and cause.\n\n",
	      file);
	cvy_error_manual(file);
	fputs("\n## Has the call taken its place?\n\n"
	      "All ranks make the same calls in one order, and every operation has a number. A call that is refused "
	      "gets no number: nothing is sent, `*result` stays as it is, and the other ranks wait for the call. A "
	      "call whose operation failed has its number, also in `result->seq`: the next call is the next operation. "
	      "Messages (covey_send, covey_recv) are not numbered.\n\n",
	      file);
	cvy_turns_manual(file);
}

static void losses(FILE *file)
{
	fputs("# Losses\n\n"
	      "Made from the registry in `src/collectives/ops/kinds.h`: what every operation does when a rank dies in "
	      "it. Under `COVEY_ON_LOSS_FAIL` an operation that lacks a rank of the last safe point ends with "
	      "`COVEY_ERR_PEER` on all survivors instead. *Alike* means: the same status, bytes, contributors and "
	      "epoch on every survivor. A dead rank leaves a hole: numbers never shift.\n\n",
	      file);
	cvy_losses_manual(file);
}

static void metrics(FILE *file)
{
	fputs("# Metrics\n\n"
	      "Made from the registry in `src/observe/metrics.h`. With `COVEY_METRICS` a member answers any request at "
	      "a socket with these numbers, in the text form of Prometheus behind a header of HTTP: `unix:PATH`, in "
	      "which `{rank}`, `{pid}` and `{group}` are filled in, or `tcp:PORT` or `tcp:ADDRESS:PORT` (without an "
	      "address: 127.0.0.1); with a `+` behind the port the rank is added to it. Every sample has the labels "
	      "`group` and `rank`. Names and labels stay as they are; new ones may come.\n\n"
	      "    curl --unix-socket /run/covey-0.sock http://covey/metrics\n\n",
	      file);
	cvy_metrics_manual(file);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*print)(FILE *file);
	} pages[] = { { "environment", environment },
		      { "errors", errors },
		      { "limits", limits_manual },
		      { "losses", losses },
		      { "metrics", metrics } };

	for (size_t i = 0; argc == 2 && i < sizeof(pages) / sizeof(pages[0]); i++)
		if (!strcmp(argv[1], pages[i].name)) {
			pages[i].print(stdout);
			return fflush(stdout) != 0;
		}
	fputs("usage: covey-manual environment|errors|limits|losses|metrics\n", stderr);
	return 2;
}
