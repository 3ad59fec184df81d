/* SPDX-License-Identifier: Apache-2.0 */
/* CLOCK_MONOTONIC in ns, and deadlines on it. */
#ifndef CVY_CLOCK_H
#define CVY_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CVY_MS 1000000ull
#define CVY_NEVER UINT64_MAX

static inline uint64_t cvy_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* The deadline of a public timeout; <= 0 ms: never. */
static inline uint64_t cvy_deadline_ns(uint64_t now_ns, int timeout_ms)
{
	return timeout_ms > 0 ? now_ns + (uint64_t)timeout_ms * CVY_MS : CVY_NEVER;
}

#endif
