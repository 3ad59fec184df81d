/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waiting times of a run: a column for every slice of time, as high as the longest wait of an operation that was
 * under way in it. Above them a row for every kind of fault, with a mark for each.
 */
#include <math.h>
#include <stdio.h>

#include "../svg/svg.h"
#include "plan.h"

#define ROW 14	 /* pixels of a kind of fault */
#define PLOT 340 /* and of the waits */
#define HEAD 36
#define LOW_US 100
#define HIGH_US 100000 /* at least */

static double seconds(const struct chaos_run *run, uint64_t at_ns)
{
	return (double)(at_ns - run->start_ns) / 1e9;
}

static double longest_us(const struct chaos_run *run)
{
	uint64_t most = 0;

	for (int i = 0; i < CHAOS_BUCKETS; i++)
		most = run->longest[i] > most ? run->longest[i] : most;
	return (double)most / 1e3;
}

static void ticks(const struct svg_plot *p)
{
	double step = pow(10, floor(log10(p->x_high)));
	char text[32];

	step /= p->x_high / step < 3 ? 5 : 1;
	for (int i = 0; i * step <= p->x_high; i++) {
		snprintf(text, sizeof(text), "%g s", i * step);
		svg_tick(p, i * step, text);
	}
}

static void waits(const struct chaos_run *run, const struct svg_plot *p)
{
	double slice = (double)run->bucket_ns / 1e9, width = fmax(svg_x(p, slice) - svg_x(p, 0), 1);

	fprintf(p->f, "<g fill=\"#69d\">\n");
	for (int i = 0; i < CHAOS_BUCKETS && i * slice < p->x_high; i++) {
		double y = svg_y(p, (double)run->longest[i] / 1e3);

		if (run->longest[i])
			fprintf(p->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n",
				svg_x(p, i * slice), y, width, p->height - p->bottom - y);
	}
	fprintf(p->f, "</g>\n");
}

static void faults(const struct chaos_run *run, const struct svg_plot *p)
{
	for (int k = 0; k < run->kinds; k++)
		svg_text(p, p->left - 6, HEAD + ROW * (k + 1) - 3, "end", run->kind[k]);
	fprintf(p->f, "<g stroke=\"#d33\">\n");
	for (int i = 0; i < run->events; i++) {
		double x = svg_x(p, fmin(seconds(run, run->event[i].begin_ns), p->x_high));
		int y = HEAD + ROW * run->event[i].kind;

		fprintf(p->f,
			"<path stroke-width=\"2\" d=\"M%.1f %dv%d\"/><path stroke-width=\"0.5\" opacity=\"0.5\" "
			"d=\"M%.1f %dV%d\"/>\n",
			x, y + 2, ROW - 4, x, p->top, p->height - p->bottom);
	}
	fprintf(p->f, "</g>\n");
}

int chaos_plot(const struct chaos_run *run, const char *file)
{
	int top = HEAD + ROW * run->kinds + 10;
	struct svg_plot p = { .width = 1600,
			      .height = top + PLOT + 50,
			      .left = 190,
			      .right = 20,
			      .top = top,
			      .bottom = 50,
			      .x_high = seconds(run, run->end_ns),
			      .low_us = LOW_US,
			      .high_us = fmax(longest_us(run), HIGH_US) };
	char heading[200];

	snprintf(heading, sizeof(heading), "ep-chaos, plan %s, seed %llu: %d faults, %llu operations checked, %s",
		 run->plan.name, (unsigned long long)run->opt->seed, run->events, (unsigned long long)run->checked,
		 run->wrong ? "NOT HELD" : "held");
	if (svg_open(&p, "ep-chaos", file, heading, "time of the run", "longest wait of an operation under way"))
		return -1;
	ticks(&p);
	waits(run, &p);
	faults(run, &p);
	return svg_close(&p);
}
