/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clock that can be stepped, preloaded into the redis-server of a run: wall time plus the seconds that
 * stand in the first eight bytes of the file CHAOS_CLOCK, looked at each time. Monotonic clocks stay as they
 * are. It asks the kernel itself and allocates nothing, so that an allocator may ask it for the time
 * before anything else is set up; libfaketime does not survive that with jemalloc.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

static void __attribute__((constructor)) find_step(void)
{
	const char *path = getenv("CHAOS_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*step), PROT_READ, MAP_SHARED, fd, 0);

	if (at != MAP_FAILED)
		step = at;
	if (fd >= 0)
		close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int err = (int)syscall(SYS_clock_gettime, clock, t);

	if (!err && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += *step;
	return err;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
