/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The distance between the cores of two neighbours, by a short ping-pong.
 *
 * The ranks of a host leave an operation that all wait for together. Then each pair of them counts up in turns, each in
 * its own window. A rank that meets nobody tries again after the next such operation, CVY_DISTANCE_TRIES times. A rank
 * that shares its core, or has no neighbour, is unsure. No try waits for an answer longer than LATE_NS, or in all
 * longer than MOST_NS. Cores of virtual machines move, so this is a single measurement: it is shown, and changes no
 * result.
 */
#include "distance.h"

#include "clock.h"
#include "flight.h"

#define MOST_NS CVY_MS
#define LATE_NS (CVY_MS / 4)
#define BATCH 16    /* turns between two looks at the clock */
#define BATCHES 48  /* of one measurement */
#define ENOUGH 4    /* with fewer batches there is no result */
#define NEAR_NS 250 /* round trip: about 100 if the cores share a cache, 500 if they do not */

/* The other rank of this one's pair: pairs are ranks of this host that share memory with this one, in order. */
static int partner_of(const struct cvy_engine *e, struct cvy_page **page)
{
	int nth = 0, before = -1, wanted = -1;

	for (int k = 0; k < e->set.n; k++) {
		int r = e->set.rank[k];
		struct cvy_link *link = cvy_mesh_link(e->mesh, r);

		if (k != e->set.self && (!link || link->ops->put || e->set.gone[k]))
			continue;
		if (k == e->set.self)
			wanted = nth % 2 ? before : -2; /* -2: the next one */
		else if (wanted == -2)
			wanted = k;
		before = k;
		nth++;
	}
	*page = wanted >= 0 ? e->set.page[wanted] : NULL;
	return *page ? e->set.rank[wanted] : -1;
}

/* Round trip in ns, 0: it did not answer often enough. @first: this side begins. */
static uint64_t play(uint64_t *own, const uint64_t *other, int first)
{
	uint64_t start = cvy_now_ns(), heard = start, since = 0, best = 0,
		 mine = __atomic_load_n(own, __ATOMIC_RELAXED);
	uint64_t there = __atomic_load_n(other, __ATOMIC_ACQUIRE);
	int turns = 0, batches = 0, looks = 0;

	if (first) {
		mine = (there > mine ? there : mine) + 1;
		__atomic_store_n(own, mine, __ATOMIC_RELEASE);
	}
	while (batches < BATCHES) {
		uint64_t now;

		there = __atomic_load_n(other, __ATOMIC_ACQUIRE);
		if (there > mine) {
			mine = there + 1;
			__atomic_store_n(own, mine, __ATOMIC_RELEASE);
			looks = 0;
			if (++turns % BATCH)
				continue;
			now = heard = cvy_now_ns();
			if (since && (!best || now - since < best))
				best = now - since;
			batches += since != 0;
			since = now;
		} else if (++looks % 64) {
			continue;
		} else {
			now = cvy_now_ns();
		}
		if (now - start > MOST_NS || now - heard > LATE_NS)
			break;
	}
	return batches >= ENOUGH ? best / BATCH + 1 : 0;
}

void cvy_distance_measure(struct cvy_engine *e)
{
	struct cvy_page *page;

	pthread_mutex_lock(&e->lock); /* keeps the other's window mapped */
	if (!e->distance.ns && !__atomic_load_n(&e->gate, __ATOMIC_RELAXED)) {
		int rank = e->spin ? partner_of(e, &page) : -1;

		if (rank >= 0)
			e->distance.ns = play(&e->own->ping, &page->ping, e->rank < rank);
		e->distance.rank = rank;
		if (e->flight)
			__atomic_store_n(&e->flight->ping_ns, e->distance.ns, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&e->distance.asked, e->distance.ns || !e->spin ? CVY_DISTANCE_TRIES : e->distance.asked + 1,
			 __ATOMIC_RELAXED);
	pthread_mutex_unlock(&e->lock);
}

const char *cvy_distance_text(const struct cvy_engine *e)
{
	if (!e->distance.asked)
		return "not asked yet";
	return !e->distance.ns ? "unsure" : e->distance.ns < NEAR_NS ? "near" : "far";
}
