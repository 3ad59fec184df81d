/* SPDX-License-Identifier: Apache-2.0 */
/* Agents: each is a fiber of the host that does one deed after the other, and may stand still in the middle of one. */
#include "device.h"

#include <sys/mman.h>

#define AGENT_STACK ((size_t)512 << 10)

static struct agent *speaking;
static void *home;

static void agent_main(void)
{
	for (;;) {
		struct agent *a = speaking;
		deed what;

		if (a->inbox.empty()) {
			a->busy = 0;
			cpu_switch(&a->stack_at, home);
			continue;
		}
		what = a->inbox.front();
		a->inbox.pop_front();
		what();
	}
}

static void agent_go(struct agent *a)
{
	struct process *p = a->of;

	if (!p->alive)
		return;
	if (p->stopped) {
		p->held_deeds.push_back([a] { agent_go(a); });
		return;
	}
	if (p->stalled_until > sim.now) {
		sim_after(p->stalled_until - sim.now + sim_below(US), [a] { agent_go(a); });
		return;
	}
	speaking = a;
	cpu_switch(&home, a->stack_at);
	speaking = NULL;
}

int agent_pause(uint64_t ns)
{
	struct agent *a = speaking;

	if (!a || a->holds)
		return 0;
	sim_after(ns, [a] { agent_go(a); });
	cpu_switch(&a->stack_at, home);
	return 1;
}

void agent_do(struct agent *a, uint64_t after, deed what)
{
	sim_after(after, [a, what] {
		a->inbox.push_back(what);
		if (a->busy)
			return;
		a->busy = 1;
		agent_go(a);
	});
}

void agent_open(struct agent *a, struct process *of)
{
	void **top;

	a->of = of;
	a->stack = (uint8_t *)mmap(NULL, AGENT_STACK, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	top = (void **)(a->stack + AGENT_STACK) - 2;
	*top = (void *)agent_main;
	a->stack_at = top - 6;
}

void agent_close(struct agent *a)
{
	munmap(a->stack, AGENT_STACK);
	a->inbox.clear();
}
