/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of a run, as a table or as JSON. */
#include <stdio.h>
#include <stdlib.h>

#include "chaos.h"

/* Bars of the p50 after SIGKILL, for operations up to a size; larger ones add their redo; p99: of the samples. */
#define SMALL_BYTES 65536
#define SMALL_BAR_MS 1.5
#define MIDDLE_BYTES (1u << 20)
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

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The samples are sorted. */
double chaos_percentile(const struct chaos_samples *samples, double percent)
{
	int at = (int)(percent / 100 * samples->count);

	if (!samples->count)
		return 0;
	return samples->ms[at < samples->count ? at : samples->count - 1];
}

static int row(const struct chaos *c, struct chaos_samples *samples, double p50_bar_ms)
{
	double p50, p99, max;
	bool miss;

	if (!samples->count)
		return 0;
	qsort(samples->ms, (size_t)samples->count, sizeof(double), compare);
	p50 = chaos_percentile(samples, 50);
	p99 = chaos_percentile(samples, 99);
	max = samples->ms[samples->count - 1];
	miss = (samples->bar_ms > 0 && p99 > samples->bar_ms) || (p50_bar_ms > 0 && p50 > p50_bar_ms);
	if (c->opt->json)
		printf(", \"%s\": {\"n\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"bar_ms\": %.0f}",
		       samples->name, samples->count, p50, p99, max, samples->bar_ms);
	else if (samples->bar_ms > 0 && p50_bar_ms <= 0)
		printf("%-36s %6d %9.2f %9.2f %9.2f   p99 <= %.0f: %s\n", samples->name, samples->count, p50, p99, max,
		       samples->bar_ms, miss ? "MISS" : "pass");
	else if (samples->bar_ms > 0)
		printf("%-36s %6d %9.2f %9.2f %9.2f   p50 <= %.1f, p99 <= %.0f: %s\n", samples->name, samples->count,
		       p50, p99, max, p50_bar_ms, samples->bar_ms, miss ? "MISS" : "pass");
	else if (p50_bar_ms > 0)
		printf("%-36s %6d %9.2f %9.2f %9.2f   p50 <= %.1f: %s\n", samples->name, samples->count, p50, p99, max,
		       p50_bar_ms, miss ? "MISS" : "pass");
	else
		printf("%-36s %6d %9.2f %9.2f %9.2f\n", samples->name, samples->count, p50, p99, max);
	return miss;
}

/* Of the p50. A large operation is executed again from its beginning, so its own time is added. */
static double killed_bar(struct chaos *c)
{
	if (c->opt->devices)
		return DEVICE_BAR_MS;
	if (c->opt->bytes <= SMALL_BYTES)
		return SMALL_BAR_MS;
	if (c->opt->bytes <= MIDDLE_BYTES)
		return MIDDLE_BAR_MS;
	return LARGE_FACTOR * chaos_percentile(&c->calm, 50) + LARGE_BAR_MS;
}

int chaos_report(struct chaos *c)
{
	int missed = 0;

	if (c->opt->json)
		printf("{\"kills\": %d, \"inside\": %d, \"needless\": %d, \"unplanned\": %d, \"compared\": %llu, "
		       "\"wrong\": %d",
		       c->done, c->inside, c->spared, c->unplanned, (unsigned long long)c->compared, c->wrong);
	else
		printf("\n%-34s %6s %9s %9s %9s   bar\n", "ms", "n", "p50", "p99", "max");
	row(c, &c->calm, 0);
	missed += row(c, &c->killed, killed_bar(c));
	missed += row(c, &c->stopped, 0);
	missed += row(c, &c->replaced, c->opt->devices ? DEVICE_REPLACED_BAR_MS : REPLACED_BAR_MS);
	missed += row(c, &c->pause, c->opt->devices ? DEVICE_PAUSE_BAR_MS : PAUSE_BAR_MS);
	missed += row(c, &c->extended, 0);
	missed += c->unplanned != 0;
	if (c->opt->json) {
		printf(", \"missed\": %d}\n", missed);
		return missed;
	}
	printf("%d kills, %d inside an operation; %d after which no operation needed the new view (not in the table)\n",
	       c->done, c->inside, c->spared);
	printf("%d ranks ended without being killed%s\n", c->unplanned, c->unplanned ? ": MISS" : "");
	printf("%llu outcomes compared with another rank's, %d wrong\n", (unsigned long long)c->compared, c->wrong);
	return missed;
}
