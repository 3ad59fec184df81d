/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines. A line is formatted whole and written by one call, so that lines of threads and processes that share
 * standard error do not mix. The level is one atomic word: a dropped line costs a load.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clean.h"
#include "log.h"

#define LINE_BYTES 512

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER; /* of the two below */
static covey_log_fn sink_fn;
static void *sink_ctx;
static int level_now; /* 0: COVEY_LOG was not read yet */

static const char *const level_names[] = { "", "error", "warn", "info", "debug" };

int cvy_log_level(const char *name)
{
	for (int level = COVEY_LOG_ERROR; level <= COVEY_LOG_DEBUG; level++)
		if (!strcmp(name, level_names[level]))
			return level;
	return 0;
}

static int level_of_environment(void)
{
	const char *text = getenv("COVEY_LOG");
	int level = text ? cvy_log_level(text) : 0;

	return level ? level : COVEY_LOG_WARN;
}

static int level_get(void)
{
	int level = __atomic_load_n(&level_now, __ATOMIC_RELAXED);

	if (!level) {
		level = level_of_environment();
		__atomic_store_n(&level_now, level, __ATOMIC_RELAXED);
	}
	return level;
}

void covey_log_set(covey_log_fn fn, void *ctx, int level)
{
	pthread_mutex_lock(&sink_lock);
	sink_fn = fn;
	sink_ctx = ctx;
	pthread_mutex_unlock(&sink_lock);
	if (level > COVEY_LOG_DEBUG)
		level = COVEY_LOG_DEBUG;
	__atomic_store_n(&level_now, level > 0 ? level : level_of_environment(), __ATOMIC_RELAXED);
}

int cvy_log_enabled(int level)
{
	return level <= level_get();
}

static void write_line(const char *line)
{
	char text[LINE_BYTES + 1];
	int n = snprintf(text, sizeof(text), "%s\n", line);

	/* One write, not stdio: its lock may be held by a thread that a fork left behind. */
	if (write(STDERR_FILENO, text, (size_t)n) < 0)
		return; /* an error here cannot be logged */
}

void cvy_log(int level, const char *room, const char *format, ...)
{
	int saved = errno;
	char line[LINE_BYTES];
	covey_log_fn fn;
	void *ctx;
	va_list args;
	int n;

	if (level < COVEY_LOG_ERROR || level > COVEY_LOG_DEBUG || !cvy_log_enabled(level))
		return;
	n = snprintf(line, sizeof(line), "covey: %s: %s: ", level_names[level], room);
	if (n < (int)sizeof(line)) {
		errno = saved; /* for %m */
		va_start(args, format);
		vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
		va_end(args);
	}
	cvy_clean(line);
	/* The function is called without the lock, so that it may set another one. */
	pthread_mutex_lock(&sink_lock);
	fn = sink_fn;
	ctx = sink_ctx;
	pthread_mutex_unlock(&sink_lock);
	if (fn)
		fn(ctx, level, line);
	else
		write_line(line);
	errno = saved;
}
