/* SPDX-License-Identifier: Apache-2.0 */
/* Time, chance and the heap of events (device.h). */
#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <queue>

struct world sim;

struct event {
	uint64_t at, nth;
	struct warp *warp;
	deed *what;

	bool operator<(const event &o) const
	{
		return at != o.at ? at > o.at : nth > o.nth;
	}
};

static std::priority_queue<event> heap;
static uint64_t nth;

void machine_turn(struct warp *warp);

void sim_begin(uint64_t seed)
{
	while (!heap.empty()) {
		delete heap.top().what;
		heap.pop();
	}
	nth = 0;
	sim.seed = seed;
	sim.now = 1000 * MS;
	sim.events = 0;
	sim.failed = 0;
	sim.crowded = seed % 4 == 2;
	sim.chance = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
	for (int i = 0; i < 4; i++)
		sim_below(2);
}

uint64_t sim_below(uint64_t n)
{
	uint64_t z = sim.chance += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (z ^ z >> 31) % n;
}

int sim_odds(uint64_t one_in)
{
	return one_in && !sim_below(one_in);
}

uint64_t sim_ranks(int n)
{
	return n == 64 ? sim_below(UINT64_MAX) : sim_below(1ull << n);
}

void sim_after(uint64_t ns, deed what)
{
	heap.push({ sim.now + ns, nth++, NULL, new deed(what) });
}

void sim_turn_after(uint64_t ns, struct warp *warp)
{
	heap.push({ sim.now + ns, nth++, warp, NULL });
}

int sim_step(void)
{
	event e;

	if (heap.empty())
		return 0;
	e = heap.top();
	heap.pop();
	sim.now = e.at;
	sim.events++;
	if (e.warp) {
		machine_turn(e.warp);
		return 1;
	}
	(*e.what)();
	delete e.what;
	return 1;
}

/* The library's clock: whoever waits by it on the host lets others go on. */
extern "C" int clock_gettime(clockid_t, struct timespec *t)
{
	agent_pause(5 * US + sim_below(60 * US));
	t->tv_sec = (time_t)(sim.now / 1000000000u);
	t->tv_nsec = (long)(sim.now % 1000000000u);
	return 0;
}

void sim_tell(const char *format, ...)
{
	va_list args;

	if (!sim.trace)
		return;
	printf("%10.3f us  ", (double)(sim.now - 1000 * MS) / 1e3);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

void sim_fail(const char *checker, const char *format, ...)
{
	char why[400];
	va_list args;

	if (("," + sim.off + ",").find(std::string(",") + checker + ",") != std::string::npos || sim.failed)
		return;
	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	printf("seed %llu: %s: %s (%.3f ms; sim-device --seed %llu --trace)\n", (unsigned long long)sim.seed, checker,
	       why, (double)(sim.now - 1000 * MS) / 1e6, (unsigned long long)sim.seed);
	fflush(stdout);
	sim.failed = 1;
}
