/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of a run, as a table or as JSON. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* Bars of the p50 after SIGKILL, for operations up to a size; larger ones add their redo; p99: of the samples. */
#define SMALL_BYTES 65536
#define SMALL_BAR_MS 1.5
#define MIDDLE_BYTES (1 << 20)
#define MIDDLE_BAR_MS 3.0
#define LARGE_FACTOR 1.3
#define LARGE_BAR_MS 5.0
#define REPLACED_BAR_MS 120.0
#define PAUSE_BAR_MS 5.0
/* On devices. */
#define DEVICE_BAR_MS 4.0
#define DEVICE_REPLACED_BAR_MS 500.0
#define DEVICE_PAUSE_BAR_MS 10.0

void chaos_sample(struct chaos_samples *samples, double ms)
{
	if (samples->count < CHAOS_SAMPLES)
		samples->ms[samples->count++] = ms;
}

/* The samples are sorted. */
static double percentile(const struct chaos_samples *samples, int percent)
{
	return samples->count ? samples->ms[(samples->count - 1) * percent / 100] : 0;
}

/* To the microsecond. */
static json_t *rounded(double ms)
{
	return json_real(round(ms * 1000) / 1000);
}

static void print_row(const struct chaos_samples *samples, double p50_bar_ms, bool miss)
{
	char bar[64] = "";

	if (p50_bar_ms > 0)
		snprintf(bar, sizeof(bar), "p50 <= %.1f%s", p50_bar_ms, samples->bar_ms > 0 ? ", " : "");
	if (samples->bar_ms > 0)
		snprintf(bar + strlen(bar), sizeof(bar) - strlen(bar), "p99 <= %.0f", samples->bar_ms);
	printf("%-36s %6d %9.2f %9.2f %9.2f", samples->name, samples->count, percentile(samples, 50),
	       percentile(samples, 99), percentile(samples, 100));
	if (*bar)
		printf("   %s: %s", bar, miss ? "MISS" : "pass");
	printf("\n");
}

/* 1: a bar was missed. @json: NULL: print */
static int row(json_t *json, struct chaos_samples *samples, double p50_bar_ms)
{
	bool miss;

	if (!samples->count)
		return 0;
	qsort(samples->ms, (size_t)samples->count, sizeof(double), tool_ascending);
	miss = (samples->bar_ms > 0 && percentile(samples, 99) > samples->bar_ms) ||
	       (p50_bar_ms > 0 && percentile(samples, 50) > p50_bar_ms);
	if (json)
		json_object_set_new(json, samples->name,
				    json_pack("{s:i, s:o, s:o, s:o, s:o}", "n", samples->count, "p50_ms",
					      rounded(percentile(samples, 50)), "p99_ms",
					      rounded(percentile(samples, 99)), "max_ms",
					      rounded(percentile(samples, 100)), "bar_ms", rounded(samples->bar_ms)));
	else
		print_row(samples, p50_bar_ms, miss);
	return miss;
}

/* Of the p50. A large operation is executed again from its beginning, so its own time is added. */
static double killed_bar(const struct chaos_run *run)
{
	if (run->opt->devices)
		return DEVICE_BAR_MS;
	if (run->opt->bytes <= SMALL_BYTES)
		return SMALL_BAR_MS;
	if (run->opt->bytes <= MIDDLE_BYTES)
		return MIDDLE_BAR_MS;
	return LARGE_FACTOR * percentile(&run->bench->calm, 50) + LARGE_BAR_MS;
}

static int rows(const struct chaos_run *run, json_t *json)
{
	bool devices = run->opt->devices != 0;
	struct chaos_bench *b = run->bench;
	int missed = run->alarms != 0;

	row(json, &b->calm, 0);
	missed += row(json, &b->killed, killed_bar(run));
	missed += row(json, &b->stopped, 0);
	missed += row(json, &b->replaced, devices ? DEVICE_REPLACED_BAR_MS : REPLACED_BAR_MS);
	missed += row(json, &b->first, 0);
	missed += row(json, &b->meanwhile, 0);
	missed += row(json, &b->pause, devices ? DEVICE_PAUSE_BAR_MS : PAUSE_BAR_MS);
	return missed + row(json, &b->extended, 0);
}

void chaos_print_json(json_t *json)
{
	if (!json || json_dumpf(json, stdout, JSON_REAL_PRECISION(9)))
		fprintf(stderr, "ep-chaos: no JSON\n");
	printf("\n");
	json_decref(json);
}

int chaos_report(struct chaos_run *run)
{
	const struct chaos_bench *b = run->bench;
	json_t *json;
	int missed;

	if (run->opt->json) {
		json = json_pack("{s:i, s:i, s:i, s:I, s:I, s:i}", "kills", b->done, "inside", b->inside, "needless",
				 b->spared, "unplanned", (json_int_t)run->alarms, "compared", (json_int_t)run->compared,
				 "wrong", run->wrong);
		missed = rows(run, json);
		json_object_set_new(json, "missed", json_integer(missed));
		chaos_print_json(json);
		return missed;
	}
	printf("\n%-36s %6s %9s %9s %9s   bar\n", "ms", "n", "p50", "p99", "max");
	missed = rows(run, NULL);
	printf("%d kills, %d inside an operation; %d after which no operation needed the new view (not in the table)\n",
	       b->done, b->inside, b->spared);
	printf("%llu ranks ended without being killed%s\n", (unsigned long long)run->alarms,
	       run->alarms ? ": MISS" : "");
	printf("%llu outcomes compared with another rank's, %d wrong\n", (unsigned long long)run->compared, run->wrong);
	return missed;
}
