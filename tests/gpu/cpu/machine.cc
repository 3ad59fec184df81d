/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: a CTA on a thread of the system (machine.h). */
#include "machine.h"

#include <sys/mman.h>
#include <time.h>

#define STACK ((size_t)64 << 10)
#define MOST_THREADS 512
#define SHORT_NAP 20000 /* nanoseconds */
#define LONG_NAP 1000000
#define BREAK 16 /* rounds without a look at the clock: they are of one wait, whose threads meet in between */

struct cta {
	cpu_fiber fiber[MOST_THREADS];
	void *home; /* stack of the scheduler */
	unsigned threads;
	int waits; /* somebody looked at the clock in this round */
	const std::function<void()> *body;
	uint64_t given[MOST_THREADS / 32][2][32];
	unsigned warp_here[MOST_THREADS / 32], warp_done[MOST_THREADS / 32];
	unsigned cta_here, cta_done;
	uint64_t round, warp_round[MOST_THREADS / 32],
		cta_round; /* turns of all fibers; that in which one was complete */
	int any[2], any_out[2];
	std::vector<uint64_t> dynamic;
	uint8_t *stacks;
};

thread_local cpu_fiber *cpu_now;
thread_local cpu_index cpu_block, cpu_block_dim;
static thread_local cta *here;
std::atomic<int> cpu_failed;

extern "C" void cpu_switch(void **from, void *to);
__asm__(".text\n.globl cpu_switch\ncpu_switch:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

void cpu_yield(void)
{
	cpu_switch(&cpu_now->stack_at, here->home);
}

void cpu_broken(const char *what)
{
	fprintf(stderr, "in a kernel this does not hold: %s\n", what);
	abort();
}

static void fiber_main(void)
{
	(*here->body)();
	cpu_now->done = 1;
	for (;;)
		cpu_yield();
}

uint64_t *cpu_dynamic(void)
{
	return here->dynamic.data();
}

const uint64_t *cpu_warp(uint64_t mine)
{
	unsigned w = cpu_now->tid / 32, turn = cpu_now->warp_turn++;

	here->given[w][turn % 2][cpu_now->tid % 32] = mine;
	if (++here->warp_here[w] == 32) {
		here->warp_here[w] = 0;
		here->warp_done[w]++;
		here->warp_round[w] = here->round;
	}
	/* All go on in the next round, in ascending order: who bears a tag stores it last. */
	while (here->warp_done[w] == turn || here->warp_round[w] == here->round)
		cpu_yield();
	return here->given[w][turn % 2];
}

int cpu_cta(int any)
{
	unsigned turn = cpu_now->cta_turn++;

	here->any[turn % 2] |= any;
	if (++here->cta_here == here->threads) {
		here->cta_here = 0;
		here->any_out[turn % 2] = here->any[turn % 2];
		here->any[turn % 2] = 0;
		here->cta_done++;
		here->cta_round = here->round;
	}
	while (here->cta_done == turn || here->cta_round == here->round)
		cpu_yield();
	return here->any_out[turn % 2];
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Whom a CTA waits for may need the core: naps grow with the wait, to a quarter of it, so that many that wait for long leave the cores
 * to those who work.
 */
static void nap(uint64_t since)
{
	uint64_t ns = (now_ns() - since) / 4;
	struct timespec t = { 0, (long)(ns < SHORT_NAP ? SHORT_NAP : ns > LONG_NAP ? LONG_NAP : ns) };

	nanosleep(&t, NULL);
}

/*
 * Whatever else is in these words (the current device, what is pushed) must not be used on this thread from here on: it runs
 * CTAs and nothing else, and what cpu_run() needs is set afterwards.
 */
static void poison_shared(void)
{
	cpu_words w = { &here, NULL, 0 };

	if (!dl_iterate_phdr(cpu_words_here, &w))
		abort();
	memset(w.at, CPU_POISON, w.bytes);
}

void cpu_run(unsigned block, unsigned threads, size_t room, const std::function<void()> &body)
{
	static std::mutex &lock = *new std::mutex; /* never destroyed: CTAs run while a process exits */
	static std::vector<uint8_t *> &stacks = *new std::vector<uint8_t *>;
	cta *c = new cta();
	unsigned left = threads;
	uint64_t since = 0; /* when the wait began */
	uint64_t last = 0;  /* round in which somebody looked at the clock */

	poison_shared();
	here = c;
	cpu_block.x = block;
	cpu_block_dim.x = threads;
	c->threads = threads;
	c->body = &body;
	c->dynamic.assign(room / 8 + 1, 0xa5a5a5a5a5a5a5a5u);
	lock.lock();
	if (!stacks.empty()) {
		c->stacks = stacks.back();
		stacks.pop_back();
	}
	lock.unlock();
	if (!c->stacks)
		c->stacks = (uint8_t *)mmap(NULL, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (unsigned i = 0; i < threads; i++) {
		void **top = (void **)(c->stacks + (i + 1) * STACK) - 2;

		c->fiber[i].tid = i;
		*top = (void *)fiber_main;
		c->fiber[i].stack_at = top - 6;
	}
	while (left && !cpu_failed) {
		c->round++;
		for (unsigned i = 0; i < threads; i++) {
			if (c->fiber[i].done)
				continue;
			cpu_now = &c->fiber[i];
			cpu_switch(&c->home, cpu_now->stack_at);
			left -= cpu_now->done;
		}
		if (!c->waits)
			continue;
		if (!since || c->round - last > BREAK)
			since = now_ns();
		last = c->round;
		c->waits = 0;
		nap(since);
	}
	lock.lock();
	stacks.push_back(c->stacks);
	lock.unlock();
	delete c;
}

/* Whoever waits looks at the clock: the other threads of its CTA go on, as they do on a device. */
unsigned long long clock64(void)
{
	if (cpu_now) {
		here->waits = 1;
		cpu_yield();
	}
	return now_ns();
}

void __nanosleep(unsigned)
{
	here->waits = 1;
	cpu_yield();
}
