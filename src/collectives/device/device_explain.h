/* SPDX-License-Identifier: Apache-2.0 */
/* The table of forms of operations on device memory, as text: added by covey_explain if a group has a device. */
#ifndef CVY_DEVICE_EXPLAIN_H
#define CVY_DEVICE_EXPLAIN_H

#include <stdio.h>

struct cvy_device;

void cvy_device_explain(const struct cvy_device *d, FILE *to);
void cvy_device_forms(FILE *to); /* the rows alone */

#endif
