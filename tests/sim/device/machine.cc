/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CTAs of all processes on one thread of the system. What takes turns is a warp: in a turn each of its threads that can go on
 * does, in ascending order, up to where it waits for others, looks at the clock, or the seed says so at a load. So one
 * instruction of a warp that stores a line stays one.
 *
 * What is stored in a peer's memory is under way for a while, and arrives in any order but that of the words of one line;
 * a fence waits until all of its CTA's has arrived. Of a process that dies some of it never does.
 *
 * Shared memory is thread_local to the compiler (machine.h): each CTA has the words of a thread of its own, which sleeps
 * for ever, and the processor's base register of such words is pointed there while the CTA has its turn.
 */
#include "device.h"

#include <asm/prctl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine.h"

#define STACK ((size_t)64 << 10)
#define MOST_THREADS 512
#define LINES 256

struct store {
	uint64_t *at;
	uint64_t v[2];
	int words;
	unsigned line; /* number of the line that it is a part of, 0: of none */
};

struct bulk {
	cpu_fiber *by;
	unsigned group;
	uint8_t *to;
	const void *from;
	uint32_t bytes;
};

struct warp {
	struct cta *cta;
	unsigned index, here, runs; /* runs: a bit for each thread that can go on */
	uint64_t given[2][32];
	uint64_t stirred;
	unsigned idle;
	int queued, slept;
};

struct cta {
	struct launch *launch;
	struct process *of;
	unsigned block, threads, left, at_cta;
	cpu_fiber fiber[MOST_THREADS];
	struct warp warp[MOST_THREADS / 32];
	int any, any_out, draining;
	std::vector<uint64_t> dynamic;
	std::vector<store> under_way;
	std::vector<bulk> bulks; /* neither read nor stored yet */
	unsigned group[MOST_THREADS];
	unsigned lines;
	struct words *words;
};

/* Stacks and thread's words of a CTA: used again. */
struct words {
	unsigned long base;
	uint8_t *stacks;
	pthread_t thread;
	struct cpu_words shared;
};

CPU_LOCAL cpu_fiber *cpu_now;
CPU_LOCAL cpu_index cpu_block, cpu_block_dim;
std::atomic<int> cpu_failed;
static struct cta *here;
static struct warp *turn;
static void *home;
static unsigned long own_base;
static std::vector<struct words *> spare;
static std::vector<struct cta *> all;
static uint64_t loads; /* one in so many lets others go on */

__asm__(".text\n.globl cpu_switch\ncpu_switch:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

/* ---- words of CTAs ---- */

static unsigned long base_now(void)
{
	unsigned long base;

	__asm__ volatile("mov %%fs:0,%0" : "=r"(base));
	return base;
}

static void base_set(unsigned long base)
{
	long got;

	__asm__ volatile("syscall"
			 : "=a"(got)
			 : "0"((long)SYS_arch_prctl), "D"((long)ARCH_SET_FS), "S"(base)
			 : "rcx", "r11", "memory");
}

static thread_local char in_words;

static void *sleeper(void *arg)
{
	struct words *w = (struct words *)arg;

	w->shared.in = &in_words;
	if (!dl_iterate_phdr(cpu_words_here, &w->shared))
		abort();
	__atomic_store_n(&w->base, base_now(), __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static struct words *words_make(void)
{
	struct words *w = new words();

	w->stacks = (uint8_t *)mmap(NULL, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pthread_create(&w->thread, NULL, sleeper, w))
		abort();
	while (!__atomic_load_n(&w->base, __ATOMIC_ACQUIRE))
		usleep(10);
	return w;
}

static struct words *words_get(void)
{
	struct words *w;

	if (spare.empty())
		spare.push_back(words_make());
	w = spare.back();
	spare.pop_back();
	memset(w->shared.at, CPU_POISON, w->shared.bytes);
	return w;
}

/* ---- what a thread calls ---- */

void cpu_yield(void)
{
	turn->runs |= 1u << cpu_now->tid % 32;
	cpu_switch(&cpu_now->stack_at, home);
}

static void block(void)
{
	cpu_switch(&cpu_now->stack_at, home);
}

/* The seed has failed; without this checker the thread stands still where it is, so that it writes nothing wild. */
void cpu_broken(const char *what)
{
	sim_fail("held", "in a kernel this does not hold: %s", what);
	for (;;)
		block();
}

void cpu_look(void)
{
	if (cpu_now && sim_odds(loads))
		cpu_yield();
}

uint64_t *cpu_dynamic(void)
{
	return here->dynamic.data();
}

const uint64_t *cpu_warp(uint64_t mine)
{
	struct warp *w = turn;
	unsigned nth = cpu_now->warp_turn++;

	w->given[nth % 2][cpu_now->tid % 32] = mine;
	if (++w->here == 32) {
		w->here = 0;
		w->runs = 0xffffffffu;
	}
	block();
	return w->given[nth % 2];
}

static void queue_turn(struct warp *w, uint64_t ns)
{
	if (w->queued)
		return;
	w->queued = 1;
	sim_turn_after(ns, w);
}

int cpu_cta(int any)
{
	struct cta *c = here;

	c->any |= any;
	if (++c->at_cta == c->threads) {
		c->at_cta = 0;
		c->any_out = c->any;
		c->any = 0;
		for (unsigned i = 0; i < c->threads / 32; i++) {
			c->warp[i].runs = 0xffffffffu;
			queue_turn(&c->warp[i], 20 + sim_below(200));
		}
	}
	block();
	return c->any_out;
}

unsigned long long clock64(void)
{
	if (cpu_now) {
		turn->slept = 1;
		cpu_yield();
	}
	return sim.now;
}

void __nanosleep(unsigned)
{
	turn->slept = 1;
	cpu_yield();
}

/* ---- stores to peers ---- */

static int is_far(const struct process *p, const uint64_t *at)
{
	return (uintptr_t)at >= p->far_from && (uintptr_t)at < p->far_to;
}

static void arrive(const store *s)
{
	for (int i = 0; i < s->words; i++)
		__atomic_store_n(s->at + i, s->v[i], __ATOMIC_RELEASE);
}

static void stir_all(void)
{
	for (struct process *p : processes)
		p->stir++;
}

/*
 * The last packet of a line is @s: those before it are of the same instruction, which stores all of them at once. Pairs have
 * their tag in each.
 */
static void note_line(struct cta *c, store *s)
{
	enum { PACKETS = 8, NEAR = 64 };
	store *part[PACKETS] = { s };
	int n = 1, alike = 1;

	for (store *o = s; n < PACKETS && o > c->under_way.data() && o > s - NEAR;) {
		o--;
		if (o->words != 2 || o->line || (uintptr_t)o->at >> 7 != (uintptr_t)s->at >> 7)
			continue;
		alike &= o->v[1] == s->v[1];
		part[n++] = o;
	}
	if (n < PACKETS || alike)
		return;
	c->lines++;
	for (store *o : part)
		o->line = c->lines;
}

/* Some of what is under way arrives, @in_8 of 8 at once; lines whole, else the words of a line in their order. */
static void drain(struct cta *c, uint64_t in_8, int lose)
{
	static uint64_t held[LINES], times;
	unsigned comes[LINES] = {}; /* of a line the first packet has */
	size_t kept = 0;

	times++;
	for (size_t i = 0; i < c->under_way.size(); i++) {
		store s = c->under_way[i];
		uint64_t *line = &held[((uintptr_t)s.at >> 7) % LINES];
		unsigned *whole = &comes[s.line % LINES];

		if ((s.line && *whole == s.line) || (*line != times && sim_below(8) < in_8)) {
			*whole = s.line ? s.line : *whole;
			arrive(&s);
			continue;
		}
		*line = times;
		c->under_way[kept++] = s;
	}
	c->under_way.resize(lose ? 0 : kept);
	stir_all();
}

static void drain_some(struct cta *c)
{
	c->draining = 0;
	drain(c, 1 + sim_below(8), 0);
	if (!c->under_way.empty()) {
		c->draining = 1;
		sim_after(sim_odds(50) ? sim_below(100 * US) : 50 + sim_below(2 * US), [c] { drain_some(c); });
	}
}

int cpu_sends(uint64_t *at, uint64_t v0, uint64_t v1, int words)
{
	struct cta *c = here;

	if (!cpu_now || !is_far(c->of, at))
		return 0;
	c->under_way.push_back({ at, { v0, v1 }, words, 0 });
	if (words == 2 && ((uintptr_t)at & 127) == 112)
		note_line(c, &c->under_way.back());
	if (!c->draining) {
		c->draining = 1;
		sim_after(50 + sim_below(1500), [c] { drain_some(c); });
	}
	return 1;
}

void cpu_fence(void)
{
	if (cpu_now && !here->under_way.empty())
		drain(here, 8, 0);
}

static void bulk_done(const bulk *b)
{
	for (uint32_t i = 0; i < b->bytes / 8; i++) {
		uint64_t *at = (uint64_t *)b->to + i, v = ((const uint64_t *)b->from)[i];

		if (!cpu_sends(at, v, 0, 1))
			__atomic_store_n(at, v, __ATOMIC_RELEASE);
	}
}

/* Some are read at once, most when they are waited for: memory that is written over before is found. */
void cpu_bulk(uint8_t *to, const void *from, uint32_t bytes)
{
	bulk b = { cpu_now, here->group[cpu_now->tid], to, from, bytes };

	if (sim_odds(4))
		bulk_done(&b);
	else
		here->bulks.push_back(b);
}

void cpu_bulk_commit(void)
{
	here->group[cpu_now->tid]++;
}

void cpu_bulk_wait(unsigned left)
{
	struct cta *c = here;
	unsigned now = c->group[cpu_now->tid];
	size_t kept = 0;

	for (size_t i = 0; i < c->bulks.size(); i++) {
		bulk b = c->bulks[i];

		if (b.by == cpu_now && b.group + left < now)
			bulk_done(&b);
		else
			c->bulks[kept++] = b;
	}
	c->bulks.resize(kept);
}

/* What is on its way to a rank in @whom arrives. */
static void drain_to(struct cta *c, uint64_t whom)
{
	for (const store &s : c->under_way)
		if (is_far(c->of, s.at) &&
		    (whom >> ((uintptr_t)s.at - c->of->far_from) / CVY_GPU_STRIDE / CVY_GPU_GENERATIONS & 1))
			arrive(&s);
	stir_all();
}

/* By each link all or nothing, or on all links some. */
void machine_die(struct process *p)
{
	uint64_t in_8 = sim_below(9);
	uint64_t whom =
		(sim.linger || sim.uneven || sim.hosts) && sim_odds(2) ? sim_ranks(sim.hosts ? ROOM : RANKS) : 0;

	for (struct cta *c : all) {
		if (c->of == p && whom)
			drain_to(c, whom);
		if (c->of == p)
			drain(c, whom ? 0 : in_8, 1);
	}
}

void machine_stir(struct process *p)
{
	p->stir++;
}

/* ---- turns ---- */

static void fiber_main(void)
{
	here->launch->body();
	cpu_now->done = 1;
	for (;;)
		cpu_switch(&cpu_now->stack_at, home);
}

static void cta_ended(struct cta *c)
{
	struct launch *l = c->launch;

	if (!c->bulks.empty()) {
		fprintf(stderr, "a CTA ends with bulk copies under way\n");
		abort();
	}

	spare.push_back(c->words);
	c->words = NULL;
	l->left--;
	if (!l->starts_later && l->next < l->ctas && sim_odds(8)) { /* its place goes to another kernel first */
		l->starts_later = 1;
		sim_after(sim_below(400 * US), [l] {
			l->starts_later = 0;
			machine_start(l);
		});
	} else if (!l->starts_later) {
		machine_start(l);
	}
	if (l->left)
		return;
	for (struct cta *one : l->here)
		drain(one, 8, 0);
	l->ended();
}

static void pass(struct warp *w)
{
	struct cta *c = w->cta;
	unsigned runs = w->runs;

	w->runs = 0;
	for (; runs; runs &= runs - 1) {
		cpu_now = &c->fiber[w->index * 32 + (unsigned)__builtin_ctz(runs)];
		cpu_switch(&home, cpu_now->stack_at);
		c->left -= (unsigned)cpu_now->done;
	}
	cpu_now = NULL;
}

static uint64_t pause_of(struct warp *w)
{
	struct process *p = w->cta->of;

	if (sim.late && sim_odds(500)) /* it misses deadlines */
		return sim_below(10 * MS);
	if (!w->slept)
		return sim_odds(2000) ? sim_below(2 * MS) : sim_odds(100) ? sim_below(20 * US) : 20 + sim_below(400);
	w->idle = w->stirred == p->stir ? w->idle + (w->idle < (sim.uneven ? 2 : 7)) : 0;
	w->stirred = p->stir;
	return sim_below(300ull << w->idle) + 100;
}

void machine_turn(struct warp *w)
{
	struct cta *c = w->cta;
	struct process *p = c->of;

	w->queued = 0;
	if (!(p->alive || p->lingers) || !c->left)
		return;
	if (p->stopped) {
		w->queued = 1;
		p->held.push_back(w);
		return;
	}
	if (p->stalled_until > sim.now) {
		queue_turn(w, p->stalled_until - sim.now + sim_below(US));
		return;
	}
	if (p->held_back == HELD_LANE && c->block == p->held_lane) {
		queue_turn(w, US + sim_below(5 * US));
		return;
	}
	here = c;
	turn = w;
	cpu_block.x = c->block;
	cpu_block_dim.x = c->threads;
	w->slept = 0;
	base_set(c->words->base);
	do
		pass(w);
	while (w->runs && !w->slept && !sim_odds(6));
	base_set(own_base);
	here = NULL;
	if (!c->left)
		cta_ended(c);
	else if (w->runs)
		queue_turn(w, pause_of(w));
}

static void cta_open(struct launch *l, unsigned block)
{
	struct cta *c = new cta();

	c->launch = l;
	c->of = l->of;
	c->block = block;
	c->threads = c->left = l->threads;
	c->dynamic.assign(l->room / 8 + 1, 0xa5a5a5a5a5a5a5a5u);
	c->words = words_get();
	for (unsigned i = 0; i < l->threads; i++) {
		void **top = (void **)(c->words->stacks + (i + 1) * STACK) - 2;

		c->fiber[i].tid = i;
		*top = (void *)fiber_main;
		c->fiber[i].stack_at = top - 6;
	}
	for (unsigned i = 0; i < l->threads / 32; i++) {
		c->warp[i].cta = c;
		c->warp[i].index = i;
		c->warp[i].runs = 0xffffffffu;
	}
	all.push_back(c);
	l->here.push_back(c);
	for (unsigned i = 0; i < l->threads / 32; i++)
		queue_turn(&c->warp[i], sim_below(2 * US));
}

void machine_start(struct launch *l)
{
	unsigned ended = l->ctas - l->left;

	while (l->next < l->ctas && l->next < ended + l->resident)
		cta_open(l, l->next++);
}

/* Who stands still, and where. */
void machine_tell(void)
{
	for (struct cta *c : all)
		for (unsigned i = 0; c->left && c->of->alive && i < c->threads / 32; i++)
			sim_tell("rank %d.%d lane %u warp %u: %x can go on%s, %u at the warp's, %u at the CTA's, %zu "
				 "under way",
				 c->of->rank, (int)c->of->inc, c->block, i, c->warp[i].runs,
				 c->warp[i].queued ? ", will" : "", c->warp[i].here, c->at_cta, c->under_way.size());
}

void machine_begin(void)
{
	static const uint64_t odds[] = { 0, 3, 10, 40 };

	own_base = base_now();
	loads = odds[sim_below(4)];
}

void machine_end(void)
{
	for (struct cta *c : all) {
		if (c->words)
			spare.push_back(c->words);
		delete c;
	}
	all.clear();
}
