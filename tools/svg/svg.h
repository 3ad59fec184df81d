/* SPDX-License-Identifier: Apache-2.0 */
/* Plots of times as SVG: the time is logarithmic and goes up, from `low_us` to `high_us`; x is what the caller has. */
#ifndef SVG_H
#define SVG_H

#include <stdio.h>

struct svg_plot {
	int width, height, left, right, top, bottom; /* of the page; of the margins */
	double x_low, x_high, low_us, high_us;	     /* svg_open() makes powers of ten of the last two */
	FILE *f;
};

/* The page with its heading, the axes and their titles. 0, or -1 after a message that names @tool and --plot. */
int svg_open(struct svg_plot *p, const char *tool, const char *file, const char *heading, const char *x_title,
	     const char *y_title);
int svg_close(struct svg_plot *p); /* 0, or -1: not all of it was written */

double svg_x(const struct svg_plot *p, double x); /* in pixels */
double svg_y(const struct svg_plot *p, double us);
void svg_tick(const struct svg_plot *p, double x, const char *text);

/* @colour: "#ddd" and the like */
void svg_line(const struct svg_plot *p, double x1, double y1, double x2, double y2, const char *colour);
/* @anchor: start, middle or end */
void svg_text(const struct svg_plot *p, double x, double y, const char *anchor, const char *text);

#endif
