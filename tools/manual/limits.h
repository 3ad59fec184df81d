/* SPDX-License-Identifier: Apache-2.0 */
/* The page of limits: see limits.c. */
#ifndef LIMITS_H
#define LIMITS_H

#include <stdio.h>

void limits_manual(FILE *file);

#endif
