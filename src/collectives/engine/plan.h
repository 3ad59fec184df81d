/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of algorithms, as the handle and calls see it (algorithm.h). */
#ifndef CVY_PLAN_H
#define CVY_PLAN_H

#include <stdio.h>

#include "engine.h"

#define CVY_RULES_MAX 32 /* of COVEY_ALGO */

/* Reads COVEY_ALGO: 0, NOMEM, or INVAL with a cause that names the right form. */
int cvy_plan_rules(struct cvy_engine *e, const char *text);
void cvy_plan_explain(struct cvy_engine *e, FILE *to); /* which algorithm is taken at which size */

#endif
