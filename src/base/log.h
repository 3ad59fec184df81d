/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: `covey: warn: membership: rank 3 missed its lease by 1200 ms, epoch 17`. Keeps errno. */
#ifndef CVY_LOG_H
#define CVY_LOG_H

#include "covey.h"

void cvy_log(int level, const char *room, const char *format, ...) __attribute__((format(printf, 3, 4)));
int cvy_log_enabled(int level);
int cvy_log_level(const char *name); /* COVEY_LOG_*; 0: no such level */

#define cvy_error(room, ...) cvy_log(COVEY_LOG_ERROR, room, __VA_ARGS__)
#define cvy_warn(room, ...) cvy_log(COVEY_LOG_WARN, room, __VA_ARGS__)
#define cvy_info(room, ...) cvy_log(COVEY_LOG_INFO, room, __VA_ARGS__)
#define cvy_debug(room, ...) \
	do { \
		if (cvy_log_enabled(COVEY_LOG_DEBUG)) \
			cvy_log(COVEY_LOG_DEBUG, room, __VA_ARGS__); \
	} while (0)

#endif
