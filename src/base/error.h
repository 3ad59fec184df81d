/* SPDX-License-Identifier: Apache-2.0 */
/* The last error of a group (covey_last_error) as one record that any thread may set. */
#ifndef CVY_ERROR_H
#define CVY_ERROR_H

#include <stdarg.h>
#include <stdio.h>

#include "covey.h"

struct cvy_errbox; /* holds the last error; threads may set and read it at once */

struct cvy_errbox *cvy_errbox_new(void);
void cvy_errbox_free(struct cvy_errbox *box);

/*
 * Formats the cause, stores it and returns @err, so that callers write `return cvy_fail(...)`. NULL box: this thread's
 * box.
 */
int cvy_fail(struct cvy_errbox *box, int err, int rank, uint32_t epoch, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
void cvy_errbox_seq(struct cvy_errbox *box, int err, uint64_t seq); /* if the last error is @err: its operation */
void cvy_errbox_get(const struct cvy_errbox *box, struct covey_error_info *info);
void cvy_error_manual(FILE *file); /* the manual's table of errors, in Markdown */

#endif
