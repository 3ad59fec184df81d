/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is scarce (`--scarce`): one allocation of one process fails, or a few in a row. The linker sends what the
 * library asks for through here; the simulator's own files ask libc (CMakeLists.txt). What fails follows from the seed:
 * whose, counted from which moment, and the how-manieth. Nothing else of the run is another.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "world.h"

#define ANY_MOST 1500	/* allocations of a process in a run, about */
#define CHANGE_MOST 200 /* while it stands still */
#define REPAIR_MOST 30	/* while it repairs, or keeps what was repaired */

enum moment { ANY, IN_CHANGE, IN_REPAIR, MOMENTS };

int sim_scarce; /* of all runs */

static struct {
	struct proc *now; /* whose code runs; NULL: nobody's */
	int paused;
	const char *what; /* failed */
} scarce;

struct proc *sim_scarce_enter(struct proc *p)
{
	struct proc *was = scarce.now;

	scarce.now = sim_scarce && p->alive ? p : NULL;
	return was;
}

void sim_scarce_leave(struct proc *was)
{
	scarce.now = was;
}

/* The application's and the checkers' own work, in the middle of the library's. */
void sim_scarce_pause(int on)
{
	scarce.paused += on ? 1 : -1;
}

int sim_scarce_hit(const struct proc *p)
{
	return sim_scarce && p->failed_allocations > 0;
}

static int counts(const struct proc *p, uint64_t moment)
{
	const struct cvy_engine *e = p->engine;

	if (!p->joined)
		return 0;
	if (moment == IN_CHANGE)
		return e->view && e->gate;
	return moment == ANY || e->repair || e->outcomes;
}

static int fails(const char *what)
{
	static const uint64_t most[MOMENTS] = { ANY_MOST, CHANGE_MOST, REPAIR_MOST };
	struct proc *p = scarce.paused ? NULL : scarce.now;
	uint64_t h, moment, n;

	if (!p)
		return 0;
	h = sim_hash(p->sim->seed, 90001);
	moment = h % MOMENTS;
	if ((uint64_t)p->id != h / 8 % (uint64_t)(p->sim->world + 1) || !counts(p, moment))
		return 0;
	n = 1 + h / 4096 % most[moment];
	p->allocations++;
	if (p->allocations < n || p->allocations >= n + (h / 64 % 8 ? 1 : 4))
		return 0;
	p->failed_allocations++;
	sim_trace(p->sim, "process %d: %s fails, number %" PRIu64 " of its kind %d", p->id, what, p->allocations,
		  (int)moment);
	errno = ENOMEM;
	return 1;
}

int sim_scarce_fails(struct proc *p, const char *what)
{
	return scarce.now == p && fails(what);
}

#define WRAP(type, name, params, args, failure) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		return fails(#name) ? (failure) : __real_##name args; \
	}

#undef malloc
#undef calloc
#undef realloc
#undef strdup
#undef mmap
WRAP(void *, malloc, (size_t n), (n), NULL)
WRAP(void *, calloc, (size_t n, size_t each), (n, each), NULL)
WRAP(void *, realloc, (void *old, size_t n), (old, n), NULL)
WRAP(char *, strdup, (const char *text), (text), NULL)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t from), (at, n, prot, flags, fd, from),
     MAP_FAILED)
