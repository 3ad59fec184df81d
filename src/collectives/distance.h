/* SPDX-License-Identifier: Apache-2.0 */
/* Near or far cores, as one ping-pong found them. */
#ifndef CVY_DISTANCE_H
#define CVY_DISTANCE_H

#include "engine.h"

#define CVY_DISTANCE_TRIES 4

void cvy_distance_measure(struct cvy_engine *e); /* after an operation that all wait for; lock not held */
const char *cvy_distance_text(const struct cvy_engine *e);

#endif
