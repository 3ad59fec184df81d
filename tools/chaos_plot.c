/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waiting times of a run as SVG: a column for every slice of time, as high as the longest wait of an
 * operation that ended in it (logarithmic, 0.1 ms to 100 s), and a line with its name for every fault.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chaos_plan.h"

#define WIDTH 1600
#define HEIGHT 520
#define LEFT 70
#define RIGHT 20
#define TOP 130
#define BOTTOM 50
#define DECADES 6    /* from 0.1 ms */
#define LABEL_GAP 11 /* between the names of two faults */

static double x_of(const struct chaos_run *run, uint64_t at_ns)
{
	double part = (double)(at_ns - run->start_ns) / (double)(run->end_ns - run->start_ns);

	return LEFT + (WIDTH - LEFT - RIGHT) * (part > 1 ? 1 : part);
}

static double y_of(uint64_t wait_ns)
{
	double decades = log10((double)(wait_ns ? wait_ns : 1) / 1e5);

	decades = decades < 0 ? 0 : decades > DECADES ? DECADES : decades;
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * decades / DECADES;
}

static void axes(const struct chaos_run *run, FILE *f)
{
	static const char *const names[] = { "0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s" };
	double seconds = (double)(run->end_ns - run->start_ns) / 1e9, step = pow(10, floor(log10(seconds)));
	uint64_t wait = 100000;

	if (seconds / step < 3)
		step /= 5;
	for (int i = 0; i <= DECADES; i++, wait *= 10)
		fprintf(f,
			"<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
			"<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			LEFT, WIDTH - RIGHT, y_of(wait), y_of(wait), LEFT - 6, y_of(wait) + 4, names[i]);
	for (double s = 0; s <= seconds; s += step) {
		double x = x_of(run, run->start_ns + (uint64_t)(s * 1e9));

		fprintf(f,
			"<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#888\"/>"
			"<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g s</text>\n",
			x, x, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 5, x, HEIGHT - BOTTOM + 20, s);
	}
}

static void waits(const struct chaos_run *run, FILE *f)
{
	double width = x_of(run, run->start_ns + run->bucket_ns) - LEFT;

	for (int i = 0; i < CHAOS_BUCKETS; i++) {
		double x = x_of(run, run->start_ns + (uint64_t)i * run->bucket_ns), y = y_of(run->longest[i]);

		if (run->longest[i])
			fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", x, y,
				width < 1 ? 1 : width, HEIGHT - BOTTOM - y);
	}
}

/* Every fault has its line; a name stands where there is room for one. */
static void faults(const struct chaos_run *run, FILE *f)
{
	double free_from = 0;

	for (int i = 0; i < run->events; i++) {
		const struct chaos_event *e = &run->event[i];
		double x = x_of(run, e->begin_ns);

		fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, TOP, HEIGHT - BOTTOM);
		if (x < free_from)
			continue;
		fprintf(f, "<text transform=\"translate(%.1f %d) rotate(-60)\" stroke=\"none\">%s</text>\n", x + 3,
			TOP - 4, run->kind[e->kind]);
		free_from = x + LABEL_GAP;
	}
}

int chaos_plot(const struct chaos_run *run, const char *file)
{
	FILE *f = fopen(file, "we");

	if (!f) {
		fprintf(stderr, "ep-chaos: --plot %s: %s\n", file, strerror(errno));
		return -1;
	}
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
		"font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
		"<text x=\"%d\" y=\"18\" font-size=\"14\">ep-chaos, plan %s, seed %llu: longest wait of an operation; "
		"%d faults, %llu operations checked, %s</text>\n",
		WIDTH, HEIGHT, LEFT, run->plan.name, (unsigned long long)run->base.opt->seed, run->events,
		(unsigned long long)run->checked, run->base.wrong ? "NOT HELD" : "held");
	axes(run, f);
	fprintf(f, "<g stroke=\"#d33\" stroke-width=\"0.7\" fill=\"#a00\" opacity=\"0.8\">\n");
	faults(run, f);
	fprintf(f, "</g>\n<g fill=\"#36c\">\n");
	waits(run, f);
	fprintf(f, "</g>\n</svg>\n");
	return fclose(f) ? -1 : 0;
}
