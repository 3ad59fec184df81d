/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error texts, and the record of the last error. A box is shared by every thread of a group, so the
 * whole record is replaced and copied under its lock: a reader never sees half of two errors.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clean.h"
#include "error.h"

struct cvy_errbox {
	pthread_mutex_t lock;
	struct covey_error_info info;
};

/* Errors of this thread, for calls without a group. */
static _Thread_local struct covey_error_info thread_info = { .rank = -1 };

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

const char *covey_version(void)
{
	return TEXT(COVEY_VERSION_MAJOR) "." TEXT(COVEY_VERSION_MINOR) "." TEXT(COVEY_VERSION_PATCH);
}

const char *covey_strerror(int err)
{
	switch (err) {
	case COVEY_OK:
		return "success";
#define ERROR_CASE(name, code, text) \
	case (code): \
		return text;
		COVEY_ERROR_LIST(ERROR_CASE)
#undef ERROR_CASE
	}
	return "unknown error";
}

struct cvy_errbox *cvy_errbox_new(void)
{
	struct cvy_errbox *box = calloc(1, sizeof(*box));

	if (!box)
		return NULL;
	box->info.rank = -1;
	if (pthread_mutex_init(&box->lock, NULL)) {
		free(box);
		return NULL;
	}
	return box;
}

void cvy_errbox_free(struct cvy_errbox *box)
{
	if (!box)
		return;
	pthread_mutex_destroy(&box->lock);
	free(box);
}

int cvy_fail(struct cvy_errbox *box, int err, int rank, uint32_t epoch, const char *format, ...)
{
	struct covey_error_info info = { .err = err, .rank = rank, .epoch = epoch };
	va_list args;

	va_start(args, format);
	vsnprintf(info.cause, sizeof(info.cause), format, args);
	va_end(args);
	cvy_clean(info.cause);
	if (!box) {
		thread_info = info;
		return err;
	}
	pthread_mutex_lock(&box->lock);
	box->info = info;
	pthread_mutex_unlock(&box->lock);
	return err;
}

void cvy_errbox_seq(struct cvy_errbox *box, int err, uint64_t seq)
{
	pthread_mutex_lock(&box->lock);
	if (box->info.err == err)
		box->info.seq = seq;
	pthread_mutex_unlock(&box->lock);
}

void cvy_errbox_get(const struct cvy_errbox *box, struct covey_error_info *info)
{
	struct cvy_errbox *lockable = (struct cvy_errbox *)box;

	if (!box) {
		*info = thread_info;
		return;
	}
	pthread_mutex_lock(&lockable->lock);
	*info = lockable->info;
	pthread_mutex_unlock(&lockable->lock);
}

void cvy_error_manual(FILE *file)
{
	fputs("| name | code | meaning |\n|---|---|---|\n", file);
#define ROW(name, code, text) fprintf(file, "| `COVEY_ERR_%s` | %d | %s |\n", #name, code, text);
	COVEY_ERROR_LIST(ROW)
#undef ROW
}
