/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim --seed N [--trace] | --seeds A-B | --list FILE: runs of the simulator; a failure prints how to run it
 * again. A list has a line `seed name what it showed` for every seed that once found a bug. --off I8,G2 leaves
 * out checkers by the name that their reports begin with, --stop ends at the first seed that fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim.h"

/* A seed that failed leaves memory (world.c): a report of leaks would only hide what failed. */
static int finish(int err)
{
	fflush(stdout);
	if (err)
		_exit(err);
	return 0;
}

static int run_list(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[400], name[64], why[256];
	int bad = 0, n = 0;
	uint64_t seed, steps;

	if (!f) {
		perror(path);
		return 2;
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNu64 " %63s", &seed, name) != 2) /* a comment */
			continue;
		n++;
		if (sim_run(seed, 0, why, sizeof(why), &steps)) {
			printf("%s: seed %" PRIu64 ": %s\n  again: sim --seed %" PRIu64 " --trace\n", name, seed, why,
			       seed);
			bad++;
		}
	}
	fclose(f);
	printf("%d regressions, %d failed\n", n, bad);
	return finish(bad || !n);
}

int main(int argc, char **argv)
{
	uint64_t from = 1, to = 30, steps, all = 0;
	int trace = 0, bad = 0, stop = 0;
	char why[256];

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--trace") == 0) {
			trace = 1;
		} else if (strcmp(argv[i], "--scarce") == 0) {
			sim_scarce = 1;
		} else if (strcmp(argv[i], "--large") == 0) {
			sim_large = 1;
		} else if (strcmp(argv[i], "--away") == 0) {
			sim_away = 1;
		} else if (strcmp(argv[i], "--stop") == 0) {
			stop = 1;
		} else if (strcmp(argv[i], "--off") == 0 && i + 1 < argc) {
			sim_offs = argv[++i];
		} else if (strcmp(argv[i], "--list") == 0 && i + 1 < argc) {
			return run_list(argv[i + 1]);
		} else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
			from = to = strtoull(argv[++i], NULL, 10);
		} else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc &&
			   sscanf(argv[i + 1], "%" SCNu64 "-%" SCNu64, &from, &to) == 2) {
			i++;
		} else {
			fprintf(stderr,
				"usage: sim [--off NAMES] [--scarce] [--large] [--away] [--stop] --seed N [--trace] | "
				"--seeds A-B | --list FILE\n");
			return 2;
		}
	}
	for (uint64_t seed = from; seed <= to; seed++) {
		if (sim_run(seed, trace, why, sizeof(why), &steps)) {
			printf("seed %" PRIu64 ": %s\n  again: sim --seed %" PRIu64 " --trace\n", seed, why, seed);
			bad++;
		}
		if (seed > from && (seed - from) % 100 == 0)
			printf("seed %" PRIu64 ", %d failed\n", seed, bad);
		fflush(stdout);
		if (bad && stop)
			return finish(1);
		all += steps;
	}
	printf("%" PRIu64 " seeds, %d failed, %" PRIu64 " steps\n", to - from + 1, bad, all);
	return finish(bad != 0);
}
