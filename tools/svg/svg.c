/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include <errno.h>
#include <math.h>
#include <string.h>

double svg_x(const struct svg_plot *p, double x)
{
	return p->left + (p->width - p->left - p->right) * (x - p->x_low) / (p->x_high - p->x_low);
}

double svg_y(const struct svg_plot *p, double us)
{
	double part = log10(fmax(us, p->low_us) / p->low_us) / log10(p->high_us / p->low_us);

	return p->height - p->bottom - (p->height - p->top - p->bottom) * fmin(part, 1);
}

void svg_line(const struct svg_plot *p, double x1, double y1, double x2, double y2, const char *colour)
{
	fprintf(p->f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, x2, y1, y2,
		colour);
}

void svg_text(const struct svg_plot *p, double x, double y, const char *anchor, const char *text)
{
	fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

void svg_tick(const struct svg_plot *p, double x, const char *text)
{
	double at = svg_x(p, x), axis = p->height - p->bottom;

	svg_line(p, at, axis, at, axis + 5, "#888");
	svg_text(p, at, axis + 18, "middle", text);
}

static void axes(const struct svg_plot *p, const char *x_title, const char *y_title)
{
	int middle = (p->top + p->height - p->bottom) / 2;
	char text[32];
	int decades = (int)lround(log10(p->high_us / p->low_us));

	for (int i = 0; i <= decades; i++) {
		double us = p->low_us * pow(10, i), unit = us < 999 ? 1 : us < 999e3 ? 1e3 : 1e6;

		svg_line(p, p->left, svg_y(p, us), p->width - p->right, svg_y(p, us), "#ddd");
		snprintf(text, sizeof(text), "%.3g %s", us / unit, unit > 1e3 ? "s" : unit > 1 ? "ms" : "us");
		svg_text(p, p->left - 6, svg_y(p, us) + 4, "end", text);
	}
	svg_text(p, (p->left + p->width - p->right) / 2.0, p->height - p->bottom + 36, "middle", x_title);
	fprintf(p->f, "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", middle,
		y_title);
}

int svg_open(struct svg_plot *p, const char *tool, const char *file, const char *heading, const char *x_title,
	     const char *y_title)
{
	p->f = fopen(file, "we");
	if (!p->f) {
		fprintf(stderr, "%s: --plot %s: %s\n", tool, file, strerror(errno));
		return -1;
	}
	p->low_us = pow(10, floor(log10(p->low_us)));
	p->high_us = fmax(pow(10, ceil(log10(p->high_us))), p->low_us * 10);
	fprintf(p->f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
		"font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
		"<text x=\"%d\" y=\"20\" font-size=\"14\">%s</text>\n",
		p->width, p->height, p->left, heading);
	axes(p, x_title, y_title);
	return 0;
}

int svg_close(struct svg_plot *p)
{
	fprintf(p->f, "</svg>\n");
	return fclose(p->f) ? -1 : 0;
}
