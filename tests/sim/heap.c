/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seed and the heap: what happens next in virtual time, what is drawn, what is told.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "world.h"

uint64_t sim_draw(struct sim *s, int stream, uint64_t below)
{
	uint64_t z = s->rng[stream] += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

uint64_t sim_random(struct sim *s, uint64_t below)
{
	return sim_draw(s, SIM_APPS, below);
}

uint64_t sim_hash(uint64_t a, uint64_t b)
{
	uint64_t z = (a ^ 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull + b * 0x94d049bb133111ebull;

	z = (z ^ (z >> 29)) * 0xd6e8feb86659fd93ull;
	return z ^ (z >> 32);
}

const char *sim_offs = "";

int sim_off(const char *name)
{
	size_t n = strcspn(name, ":");

	for (const char *at = sim_offs; *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, ",") == n && strncmp(at, name, n) == 0)
			return 1;
	return 0;
}

/* What is told begins with the name of the checker and a colon. */
void sim_fail(struct sim *s, const char *format, ...)
{
	char why[sizeof(s->why)];
	va_list ap;

	if (s->failed)
		return;
	va_start(ap, format);
	vsnprintf(why, sizeof(why), format, ap);
	va_end(ap);
	if (sim_off(why))
		return;
	s->failed = 1;
	memcpy(s->why, why, sizeof(why));
}

void sim_trace(struct sim *s, const char *format, ...)
{
	va_list ap;

	if (!s->trace)
		return;
	printf("%9.3f ", (double)s->now / 1e6);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

static int before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->serial < b->serial;
}

struct sim_event *sim_at(struct sim *s, uint64_t delay, int kind, int proc)
{
	struct sim_event *e = calloc(1, sizeof(*e));
	int i;

	if (s->count == s->room) {
		s->room = s->room ? 2 * s->room : 256;
		s->heap = realloc(s->heap, (size_t)s->room * sizeof(*s->heap));
	}
	if (!e || !s->heap)
		abort();
	e->at = s->now + delay;
	e->serial = ++s->serial;
	e->kind = kind;
	e->proc = proc;
	for (i = s->count++; i > 0 && before(e, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = e;
	return e;
}

struct sim_event *sim_next(struct sim *s)
{
	struct sim_event *top = s->heap[0], *last = s->heap[--s->count];
	int i = 0, c;

	while ((c = 2 * i + 1) < s->count) {
		if (c + 1 < s->count && before(s->heap[c + 1], s->heap[c]))
			c++;
		if (before(last, s->heap[c]))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	if (s->count)
		s->heap[i] = last;
	return top;
}

void sim_event_free(struct sim_event *e)
{
	sim_request_put(e->request);
	free((void *)(uintptr_t)e->msg.body);
	free(e->text);
	free(e);
}

uint64_t sim_lag(struct sim *s, uint64_t us)
{
	return US * (20 + sim_draw(s, SIM_NET, us));
}
