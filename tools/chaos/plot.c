/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waiting times of a run as SVG: a column for every slice of time, as high as the longest wait of an operation that
 * was under way in it (logarithmic, from 0.1 ms), and a line with its name for every fault.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../svg/svg.h"
#include "plan.h"

#define WIDTH 1600
#define HEIGHT 560
#define LEFT 70
#define RIGHT 20
#define TOP 170
#define BOTTOM 50
#define DECADES 6 /* from 0.1 ms, at most; at least up to 100 ms */
#define DECADES_MIN 3
#define LABEL_GAP 13 /* between the names of two faults: closer ones share a line of text */
#define LABEL_BYTES 40
#define LABEL_SAME 3 /* names in one line of text */
#define MORE_BYTES 32

static double x_of(const struct chaos_run *run, uint64_t at_ns)
{
	double part = (double)(at_ns - run->start_ns) / (double)(run->end_ns - run->start_ns);

	return LEFT + (WIDTH - LEFT - RIGHT) * (part > 1 ? 1 : part);
}

/* Up to the longest wait. */
static int decades_of(const struct chaos_run *run)
{
	uint64_t most = 0, top = 100000;
	int n = 0;

	for (int i = 0; i < CHAOS_BUCKETS; i++)
		most = run->longest[i] > most ? run->longest[i] : most;
	for (; n < DECADES && (n < DECADES_MIN || top < most); n++)
		top *= 10;
	return n;
}

static double y_of(uint64_t wait_ns, int high)
{
	double decades = log10((double)(wait_ns ? wait_ns : 1) / 1e5);

	decades = decades < 0 ? 0 : decades > high ? high : decades;
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * decades / high;
}

static void axes(const struct chaos_run *run, FILE *f)
{
	static const char *const names[] = { "0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s" };
	double seconds = (double)(run->end_ns - run->start_ns) / 1e9, step = pow(10, floor(log10(seconds)));
	uint64_t wait = 100000;
	int high = decades_of(run);

	if (seconds / step < 3)
		step /= 5;
	for (int i = 0; i <= high; i++, wait *= 10) {
		svg_line(f, LEFT, y_of(wait, high), WIDTH - RIGHT, y_of(wait, high), "#ddd");
		svg_text(f, LEFT - 6, y_of(wait, high) + 4, "end", names[i]);
	}
	for (int i = 0; i * step <= seconds; i++) {
		double s = i * step;
		double x = x_of(run, run->start_ns + (uint64_t)(s * 1e9));
		char text[32];

		snprintf(text, sizeof(text), "%g s", s);
		svg_line(f, x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, "#888");
		svg_text(f, x, HEIGHT - BOTTOM + 20, "middle", text);
	}
}

static void waits(const struct chaos_run *run, FILE *f)
{
	double width = x_of(run, run->start_ns + run->bucket_ns) - LEFT;
	int high = decades_of(run);

	for (int i = 0; i < CHAOS_BUCKETS; i++) {
		double x = x_of(run, run->start_ns + (uint64_t)i * run->bucket_ns), y = y_of(run->longest[i], high);

		if (run->longest[i])
			fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", x, y,
				width < 1 ? 1 : width, HEIGHT - BOTTOM - y);
	}
}

/* Every fault has its line. The names of faults that are close together share one text, which also counts the rest. */
static void faults(const struct chaos_run *run, FILE *f)
{
	int n;

	for (int i = 0; i < run->events; i += n) {
		double first = x_of(run, run->event[i].begin_ns);
		char text[LABEL_SAME * LABEL_BYTES + MORE_BYTES] = "";

		for (n = 0; i + n < run->events; n++) {
			double x = x_of(run, run->event[i + n].begin_ns);

			if (x - first >= LABEL_GAP)
				break;
			fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, TOP, HEIGHT - BOTTOM);
			if (n < LABEL_SAME)
				snprintf(text + strlen(text), LABEL_BYTES, "%s%s", n ? ", " : "",
					 run->kind[run->event[i + n].kind]);
		}
		if (n > LABEL_SAME)
			snprintf(text + strlen(text), MORE_BYTES, ", %d more", n - LABEL_SAME);
		fprintf(f, "<text transform=\"translate(%.1f %d) rotate(-60)\" stroke=\"none\">%s</text>\n", first + 3,
			TOP - 4, text);
	}
}

int chaos_plot(const struct chaos_run *run, const char *file)
{
	FILE *f = svg_open("ep-chaos", file, WIDTH, HEIGHT);

	if (!f)
		return -1;
	fprintf(f,
		"<text x=\"%d\" y=\"18\" font-size=\"14\">ep-chaos, plan %s, seed %llu: "
		"%d faults, %llu operations checked, %s</text>\n"
		"<text x=\"%d\" y=\"%d\">blue: the longest wait among the operations under way; "
		"red: a fault or a replacement</text>\n",
		LEFT, run->plan.name, (unsigned long long)run->opt->seed, run->events, (unsigned long long)run->checked,
		run->wrong ? "NOT HELD" : "held", LEFT, HEIGHT - 12);
	axes(run, f);
	fprintf(f, "<g fill=\"#69d\">\n");
	waits(run, f);
	fprintf(f, "</g>\n<g stroke=\"#d33\" stroke-width=\"0.7\" fill=\"#a00\" opacity=\"0.8\">\n");
	faults(run, f);
	fprintf(f, "</g>\n");
	return svg_close(f);
}
