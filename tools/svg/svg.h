/* SPDX-License-Identifier: Apache-2.0 */
/* The little SVG that the tools need: a white page, lines and words, in pixels. */
#ifndef SVG_H
#define SVG_H

#include <stdio.h>

/* A page with a heading; NULL after a message that names @tool and the option --plot. */
FILE *svg_open(const char *tool, const char *file, int width, int height);

/* @colour: "#ddd" and the like */
void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour);

/* @anchor: start, middle or end */
void svg_text(FILE *f, double x, double y, const char *anchor, const char *text);

/* 0, or -1: not all of it was written */
int svg_close(FILE *f);

#endif
