/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --plot FILE: time by size, both logarithmic: a line each for the p50 out of place and in place, and for the p99 out of
 * place, of the first type, reduction and root of the table. All are of the loop that times each operation, so that a
 * p99 is never below its p50.
 */
#include <math.h>

#include "../svg/svg.h"
#include "perf.h"

#define LEGEND 220 /* pixels from one name to the next */

enum { OUT_P50, IN_P50, OUT_P99, LINES };

static const char *const names[LINES] = { "p50, out of place", "p50, in place", "p99, out of place" };
static const char *const colours[LINES] = { "#2a6", "#26a", "#c52" };

static double us_of(const struct perf_row *row, int line)
{
	if (line == OUT_P50)
		return row->out.p50_us;
	return line == IN_P50 ? row->in.p50_us : row->out.p99_us;
}

static bool drawn(const struct perf_job *job, int i, int line)
{
	const struct perf_row *a = &job->rows[i], *b = &job->rows[0];

	return a->type == b->type && a->redop == b->redop && a->root == b->root && us_of(a, line) > 0;
}

static double power_of(size_t bytes)
{
	return log2(bytes ? (double)bytes : 1);
}

static void set_scales(const struct perf_job *job, struct svg_plot *p)
{
	p->x_low = p->low_us = 1e9;
	p->x_high = p->high_us = 1e-9;
	for (int i = 0; i < job->row_count * LINES; i++) {
		const struct perf_row *row = &job->rows[i / LINES];

		if (!drawn(job, i / LINES, i % LINES))
			continue;
		p->x_low = fmin(p->x_low, power_of(row->bytes));
		p->x_high = fmax(p->x_high, power_of(row->bytes));
		p->low_us = fmin(p->low_us, us_of(row, i % LINES));
		p->high_us = fmax(p->high_us, us_of(row, i % LINES));
	}
	if (p->x_low > p->x_high) /* nothing was measured */
		p->x_low = p->low_us = 1;
	p->x_high = fmax(p->x_high, p->x_low + 1);
}

static void sizes(const struct svg_plot *p)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	int step = (int)ceil((p->x_high - p->x_low) / 14);
	char text[32];

	for (int x = (int)ceil(p->x_low); step && x <= p->x_high; x += step) {
		int unit = x > 40 ? 4 : x / 10;

		snprintf(text, sizeof(text), "%g %s", pow(2, x - 10 * unit), units[unit]);
		svg_tick(p, x, text);
	}
}

static void curve(const struct perf_job *job, const struct svg_plot *p, int line)
{
	int points = 0, x = p->left + LEGEND * line, y = p->height - 10;

	fprintf(p->f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s points=\"", colours[line],
		line == OUT_P99 ? " stroke-dasharray=\"4 3\"" : "");
	for (int i = 0; i < job->row_count; i++) {
		if (!drawn(job, i, line))
			continue;
		fprintf(p->f, "%.1f,%.1f ", svg_x(p, power_of(job->rows[i].bytes)),
			svg_y(p, us_of(&job->rows[i], line)));
		points++;
	}
	fprintf(p->f, "\"/>\n");
	if (!points)
		return;
	svg_line(p, x, y - 4, x + 24, y - 4, colours[line]);
	svg_text(p, x + 30, y, "start", names[line]);
}

int perf_plot(const struct perf_job *job)
{
	struct svg_plot p = { .width = 900, .height = 540, .left = 80, .right = 30, .top = 50, .bottom = 70 };
	char heading[160];

	set_scales(job, &p);
	snprintf(heading, sizeof(heading), "ep-perf %s, %d ranks", job->opt.op->name, job->size);
	if (svg_open(&p, "ep-perf", job->opt.plot, heading, "size", "time of an operation"))
		return -1;
	sizes(&p);
	for (int line = 0; line < LINES; line++)
		curve(job, &p, line);
	return svg_close(&p);
}
