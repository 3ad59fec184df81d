/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heartbeat between hosts. A host or a cable that fails silences all its links, so each member pings only three others.
 * Its first peer in the ring depends on its rank, so that together the members ping all. Silence is counted as in
 * detect.c: in the observer's own attention, at most a quarter of the bound a look.
 */
#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "ping.h"

#define PINGS_PER_BOUND 4
#define PING_MS_UNBOUND 1000 /* between two PINGs if silence is never suspect */

struct peer {
	uint64_t inc; /* of the link that is up, 0: none */
	uint64_t silent_ns;
	int asked;
};

struct cvy_ping {
	struct cvy_ping_args args;
	uint64_t every_ns, last_ns, next_ns;
	uint32_t epoch;
	struct peer peer[]; /* [max_ranks] */
};

int cvy_ping_new(const struct cvy_ping_args *args, struct cvy_ping **out)
{
	struct cvy_ping *ping = calloc(1, sizeof(*ping) + (size_t)args->max_ranks * sizeof(struct peer));

	if (!ping)
		return COVEY_ERR_NOMEM;
	ping->args = *args;
	ping->every_ns =
		args->link_ms < 0 ? PING_MS_UNBOUND * CVY_MS : (uint64_t)args->link_ms * CVY_MS / PINGS_PER_BOUND;
	*out = ping;
	return 0;
}

void cvy_ping_free(struct cvy_ping *ping)
{
	free(ping);
}

void cvy_ping_link(struct cvy_ping *ping, int rank, uint64_t inc, int up)
{
	struct peer *peer;

	if (rank < 0 || rank >= ping->args.max_ranks)
		return;
	peer = &ping->peer[rank];
	if (up)
		*peer = (struct peer){ .inc = inc };
	else if (peer->inc == inc)
		*peer = (struct peer){ 0 };
}

static int remote(const struct cvy_ping *ping, const struct cvy_view *view, int rank)
{
	return covey_mask_has(&view->members, rank) && ping->peer[rank].inc == view->member[rank].inc &&
	       !ping->args.seam->page(ping->args.seam->links, rank);
}

void cvy_ping_view(struct cvy_ping *ping, const struct cvy_view *view, int own_rank)
{
	static const int skip[CVY_PING_PEERS] = { 0, 1, 3 };
	int ranks[COVEY_MAX_RANKS], n = 0, max = ping->args.max_ranks;

	if (view->max_ranks < max)
		max = view->max_ranks;
	for (int rank = 0; rank < max; rank++) {
		/* asked 2: it was pinged before, so its silence is kept */
		ping->peer[rank].asked = ping->peer[rank].asked ? 2 : 0;
		if (rank != own_rank && remote(ping, view, rank))
			ranks[n++] = rank;
	}
	for (int i = 0; i < CVY_PING_PEERS && n; i++) {
		struct peer *peer = &ping->peer[ranks[(own_rank + skip[i]) % n]];

		if (!peer->asked)
			peer->silent_ns = 0;
		peer->asked = 1;
	}
	for (int rank = 0; rank < max; rank++)
		ping->peer[rank].asked = ping->peer[rank].asked == 1;
	ping->epoch = view->epoch;
}

static void send_beat(struct cvy_ping *ping, int rank)
{
	const struct cvy_seam *seam = ping->args.seam;
	int waiting;
	uint64_t done = seam->progress(seam->ctx, &waiting);

	/* If the link does not take it, its break or its silence is reported. */
	seam->send(seam->links, rank, ping->peer[rank].inc, CVY_MSG_PING, ping->epoch, &done, sizeof(done));
}

void cvy_ping_heard(struct cvy_ping *ping, int rank, uint64_t inc)
{
	if (rank >= 0 && rank < ping->args.max_ranks && ping->peer[rank].inc == inc)
		ping->peer[rank].silent_ns = 0;
}

static void look(struct cvy_ping *ping, int rank, uint64_t step_ns)
{
	struct peer *peer = &ping->peer[rank];
	const struct cvy_event event = {
		.kind = CVY_EV_SUSPECT, .rank = rank, .inc = peer->inc, .source = CVY_SOURCE_LINK
	};

	peer->silent_ns += step_ns;
	if (ping->args.link_ms < 0 || peer->silent_ns <= (uint64_t)ping->args.link_ms * CVY_MS)
		return;
	cvy_info("membership", "rank %d incarnation %llu is silent on its link for %d ms", rank,
		 (unsigned long long)peer->inc, ping->args.link_ms);
	peer->silent_ns = 0; /* posted again after another such silence */
	cvy_post(&ping->args.sink, &event);
}

void cvy_ping_tick(struct cvy_ping *ping, uint64_t now_ns)
{
	uint64_t step = ping->last_ns ? now_ns - ping->last_ns : 0;
	int beat = now_ns >= ping->next_ns;

	ping->last_ns = now_ns;
	if (step > ping->every_ns)
		step = ping->every_ns;
	if (beat)
		ping->next_ns = now_ns + ping->every_ns;
	for (int rank = 0; rank < ping->args.max_ranks; rank++) {
		if (!ping->peer[rank].asked)
			continue;
		look(ping, rank, step);
		if (beat && ping->peer[rank].inc)
			send_beat(ping, rank);
	}
}
