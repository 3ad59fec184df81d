/* SPDX-License-Identifier: Apache-2.0 */
/* The table of forms of operations on device memory, as text: added by covey_explain if a group has a device. */
#ifndef CVY_DEVICE_EXPLAIN_H
#define CVY_DEVICE_EXPLAIN_H

#include <stdio.h>

struct cvy_device;
struct cvy_ep_form;
struct cvy_ep_shape_gpu;

void cvy_device_explain(struct cvy_device *d, FILE *to);
void cvy_device_forms(FILE *to); /* the rows alone */

/* device_explain_ep.c: dispatch and combine in a group of @size ranks, up to @ranks in time. */
void cvy_device_ep_forms(int size, int ranks, FILE *to);
/* Into @text [bytes]: "bulk steps of N", or "lines: WHY", of the handle laid out as @f. */
void cvy_device_ep_form(const struct cvy_ep_shape_gpu *s, int combine, const struct cvy_ep_form *f, char *text,
			size_t bytes);

#endif
