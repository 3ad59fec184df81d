/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include <errno.h>
#include <string.h>

FILE *svg_open(const char *tool, const char *file, int width, int height)
{
	FILE *f = fopen(file, "we");

	if (!f) {
		fprintf(stderr, "%s: --plot %s: %s\n", tool, file, strerror(errno));
		return NULL;
	}
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
		"font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		width, height);
	return f;
}

void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour)
{
	fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, x2, y1, y2, colour);
}

void svg_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

int svg_close(FILE *f)
{
	fprintf(f, "</svg>\n");
	return fclose(f) ? -1 : 0;
}
