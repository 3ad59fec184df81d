/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --plot FILE: time by size, both logarithmic: a line each for the means out of place and in place, and for the p99 out
 * of place, of the first type, reduction and root of the table.
 */
#include <math.h>

#include "../svg/svg.h"
#include "perf.h"

#define WIDTH 900
#define HEIGHT 520
#define LEFT 80
#define RIGHT 20
#define TOP 50
#define BOTTOM 60

struct frame {
	double x0, x1, y0, y1; /* log2 of bytes, log10 of us */
};

enum { OUT_MEAN, IN_MEAN, OUT_P99, LINES };

static const char *const names[LINES] = { "mean, out of place", "mean, in place", "p99, out of place" };
static const char *const colours[LINES] = { "#2a6", "#26a", "#c52" };

static double us_of(const struct perf_row *row, int line)
{
	if (line == OUT_MEAN)
		return row->out.us;
	return line == IN_MEAN ? row->in.us : row->out.p99_us;
}

static bool same(const struct perf_row *a, const struct perf_row *b)
{
	return a->type == b->type && a->redop == b->redop && a->root == b->root;
}

static bool drawn(const struct perf_job *job, int i, int line)
{
	return same(&job->rows[i], &job->rows[0]) && us_of(&job->rows[i], line) > 0;
}

static double x_of(const struct frame *fr, double bytes)
{
	double at = log2(bytes < 1 ? 1 : bytes);

	return LEFT + (WIDTH - LEFT - RIGHT) * (at - fr->x0) / (fr->x1 - fr->x0);
}

static double y_of(const struct frame *fr, double us)
{
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (log10(us) - fr->y0) / (fr->y1 - fr->y0);
}

static struct frame frame_of(const struct perf_job *job)
{
	struct frame fr = { 1e9, -1e9, 1e9, -1e9 };

	for (int i = 0; i < job->row_count; i++) {
		double x = log2(job->rows[i].bytes ? (double)job->rows[i].bytes : 1);

		for (int line = 0; line < LINES; line++) {
			double us = us_of(&job->rows[i], line);

			if (!drawn(job, i, line))
				continue;
			fr.x0 = fmin(fr.x0, x);
			fr.x1 = fmax(fr.x1, x);
			fr.y0 = fmin(fr.y0, floor(log10(us)));
			fr.y1 = fmax(fr.y1, ceil(log10(us)));
		}
	}
	fr.x1 = fr.x1 > fr.x0 ? fr.x1 : fr.x0 + 1;
	fr.y1 = fr.y1 > fr.y0 ? fr.y1 : fr.y0 + 1;
	return fr;
}

static void axes(const struct frame *fr, FILE *f)
{
	static const char *const units[] = { "", "K", "M", "G", "T" };
	double step = ceil((fr->x1 - fr->x0) / 14);
	char text[32];

	for (int i = 0; fr->y0 + i <= fr->y1; i++) {
		double us = pow(10, fr->y0 + i), at = y_of(fr, us);

		svg_line(f, LEFT, at, WIDTH - RIGHT, at, "#ddd");
		snprintf(text, sizeof(text), "%g us", us);
		svg_text(f, LEFT - 6, at + 4, "end", text);
	}
	for (int i = 0; ceil(fr->x0) + i * step <= fr->x1; i++) {
		double x = ceil(fr->x0) + i * step, at = x_of(fr, pow(2, x));
		int unit = x < 0 ? 0 : (int)x / 10 > 4 ? 4 : (int)x / 10;

		svg_line(f, at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, "#888");
		snprintf(text, sizeof(text), "%g %s", pow(2, x - 10 * unit), units[unit]);
		svg_text(f, at, HEIGHT - BOTTOM + 20, "middle", text);
	}
}

static void curve(const struct perf_job *job, const struct frame *fr, int line, FILE *f)
{
	int points = 0;

	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s points=\"", colours[line],
		line == OUT_P99 ? " stroke-dasharray=\"4 3\"" : "");
	for (int i = 0; i < job->row_count; i++) {
		if (!drawn(job, i, line))
			continue;
		fprintf(f, "%.1f,%.1f ", x_of(fr, (double)job->rows[i].bytes), y_of(fr, us_of(&job->rows[i], line)));
		points++;
	}
	fprintf(f, "\"/>\n");
	if (!points)
		return;
	svg_line(f, LEFT + 10 + 220 * line, HEIGHT - 18, LEFT + 34 + 220 * line, HEIGHT - 18, colours[line]);
	svg_text(f, LEFT + 40 + 220 * line, HEIGHT - 14, "start", names[line]);
}

int perf_plot(const struct perf_job *job)
{
	struct frame fr = frame_of(job);
	FILE *f = svg_open("ep-perf", job->opt.plot, WIDTH, HEIGHT);
	char text[160];

	if (!f)
		return -1;
	snprintf(text, sizeof(text), "ep-perf %s, %d ranks: time by bytes", job->opt.op->name, job->size);
	svg_text(f, LEFT, 24, "start", text);
	axes(&fr, f);
	for (int line = 0; line < LINES; line++)
		curve(job, &fr, line, f);
	return svg_close(f);
}
