/* SPDX-License-Identifier: Apache-2.0 */
/* sim-device --seeds A-B | --seed N [--trace] | --list FILE, with [--off CHECKER,...] [--op NAME,...] [--ragged] [--wide] [--tall] [--late] [--uneven] [--leave] [--linger] [--apart] [--flat] [--places] [--close] [--bulk] [--hosts] [--hops] [--steps] [--pieces]; see device.h */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOUND (300 * MS) /* of virtual time: all is over then */
#define EVENTS (CVY_GPU_IS_WIDE ? 60000000ull : 3000000ull)

static const char usage[] =
	"sim-device --seeds A-B | --seed N [--trace] | --list FILE [--off CHECKER,...] [--op NAME,...] [--ragged] "
	"[--wide] [--tall] [--late] [--uneven] [--leave] [--linger] [--apart] [--flat] [--places] [--close] [--bulk] "
	"[--hosts] [--hops] [--steps] [--pieces]\n"
	"  NAME: dispatch (with combine), allreduce, two-shot, allgather, reduce_scatter, alltoall, barrier; with "
	"--uneven: alltoallv; with --hosts: broadcast\n";

static void stuck(void)
{
	for (struct process *p : processes)
		sim_tell("rank %d.%d: alive %d out %d stopped %d called %zu completed %zu epoch %u phase %d", p->rank,
			 (int)p->inc, p->alive, p->out, p->stopped, p->next, p->completed, p->device->epoch,
			 (int)p->device->phase);
	machine_tell();
	sim_fail("G5", "it stands still");
}

/* How many ranks: 2x2, 2x3, 3x2. */
static int hosts(uint64_t seed)
{
	sim.width = seed / 4 % 3 == 1 ? 3 : 2;
	return seed / 4 % 3 ? ROOM : RANKS;
}

static int run(uint64_t seed)
{
	int n, first;

	sim_begin(seed);
	n = sim.hosts ? hosts(seed) : sim.crowded ? RANKS - (int)sim_below(4) / 3 : 2 + (int)sim_below(RANKS - 1);
	first = n > 2 && sim_odds(4) ? n - 1 : n; /* the last comes later */
	app_begin();
	plan_begin(n);
	machine_begin();
	members_begin(first);
	faults_begin(n);
	for (int r = 0; r < first; r++)
		app_run(processes[(size_t)r]);
	while (!sim.failed && !app_over())
		if (sim.now > 1000 * MS + (sim.late ? 4 : 1) * BOUND || sim.events > EVENTS || !sim_step()) {
			stuck();
			break;
		}
	sim_tell("%llu events", (unsigned long long)sim.events);
	machine_end();
	members_end();
	plan_end();
	return sim.failed;
}

static const struct flag {
	const char *name;
	int *set, of_a_run; /* in a list, behind the seed */
} flags[] = { { "--trace", &sim.trace, 0 }, { "--ragged", &sim.ragged, 1 }, { "--wide", &sim.wide, 1 },
	      { "--tall", &sim.tall, 1 },   { "--late", &sim.late, 1 },	    { "--uneven", &sim.uneven, 1 },
	      { "--apart", &sim.apart, 1 }, { "--leave", &sim.leave, 1 },   { "--linger", &sim.linger, 1 },
	      { "--flat", &sim.flat, 1 },   { "--places", &sim.places, 1 }, { "--close", &sim.close, 1 },
	      { "--bulk", &sim.bulk, 1 },   { "--hosts", &sim.hosts, 1 },   { "--hops", &sim.hops, 1 },
	      { "--steps", &sim.steps, 1 }, { "--pieces", &sim.pieces, 1 } };

static int run_list(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[200], op[64];
	int failed = 0, seeds = 0;

	if (!f) {
		perror(path);
		return 1;
	}
	while (fgets(line, sizeof(line), f))
		if (line[0] >= '0' && line[0] <= '9') {
			line[strcspn(line, "#")] = 0;
			for (auto &flag : flags)
				if (flag.of_a_run)
					*flag.set = strstr(line, flag.name + 2) != NULL;
			op[0] = 0;
			if (strstr(line, " op "))
				sscanf(strstr(line, " op "), " op %63s", op);
			sim.only = op;
			failed += run(strtoull(line, NULL, 10));
			seeds++;
		}
	fclose(f);
	printf("%d seeds, %d failed\n", seeds, failed);
	return failed;
}

/* One that has no value: 1. */
static int set_flag(const char *name)
{
	for (auto &flag : flags)
		if (!strcmp(name, flag.name)) {
			*flag.set = 1;
			return 1;
		}
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t from = 1, to = 100, failed = 0;
	const char *list = NULL;
	char *end;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (set_flag(argv[i]))
			continue;
		if (!strcmp(argv[i], "--seed")) {
			from = to = strtoull(value, NULL, 10);
		} else if (!strcmp(argv[i], "--seeds")) {
			from = strtoull(value, &end, 10);
			to = *end == '-' ? strtoull(end + 1, NULL, 10) : from;
		} else if (!strcmp(argv[i], "--off")) {
			sim.off = value;
		} else if (!strcmp(argv[i], "--op")) {
			sim.only = value;
		} else if (!strcmp(argv[i], "--list")) {
			list = value;
		} else {
			fputs(usage, stderr);
			return 2;
		}
		i++;
	}
	if (list)
		return run_list(list) > 0;
	for (uint64_t seed = from; seed <= to; seed++)
		failed += (uint64_t)run(seed);
	printf("%llu seeds, %llu failed\n", (unsigned long long)(to - from + 1), (unsigned long long)failed);
	return failed > 0;
}
