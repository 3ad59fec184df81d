/* SPDX-License-Identifier: Apache-2.0 */
/* What members tell each other: a letter from one process to another is on its way for a while, and none overtakes one. */
#include "device.h"

#include <unistd.h>

#include <algorithm>

static int fenced(const struct process *p, uint64_t inc)
{
	return std::find(p->fenced.begin(), p->fenced.end(), inc) != p->fenced.end();
}

struct letter {
	struct cvy_msg head;
	std::vector<uint8_t> body;
};

static std::vector<struct letter *> letters; /* not here yet */
static std::vector<uint64_t> when;	     /* last arrival, by pair of processes */

static void drop(struct letter *l)
{
	if (l->head.fd >= 0)
		close(l->head.fd);
	delete l;
}

static void hand_over(struct process *from, struct process *to, struct letter *l)
{
	struct cvy_event ev = {};
	struct cvy_sink sink = cvy_device_sink(to->device);

	if (!fenced(to, from->inc) && to->linked[from->rank] <= from->inc) {
		to->linked[from->rank] =
			from->inc; /* a rank has one link at a time: who is heard has taken that of who was before */
		ev.kind = CVY_EV_MSG;
		ev.rank = from->rank;
		ev.inc = from->inc;
		ev.msg = l->head;
		ev.msg.body = l->body.data();
		cvy_post(&sink, &ev);
	}
	letters.erase(std::find(letters.begin(), letters.end(), l));
	drop(l);
}

int letter_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes, int fd)
{
	struct process *p = (struct process *)ctx, *q = process_by(inc);
	uint64_t *last, at = sim.now + 5 * US + sim_below(sim_odds(8) ? 2 * MS : 100 * US);
	struct letter *l;

	if (!q || q->rank != rank)
		return 0;
	l = new letter();
	letters.push_back(l);
	l->head.type = type;
	l->head.rank = p->rank;
	l->head.inc = p->inc;
	l->head.epoch = epoch;
	l->head.bytes = bytes;
	l->head.fd = fd < 0 ? -1 : dup(fd);
	l->body.assign((const uint8_t *)body, (const uint8_t *)body + bytes);
	last = &when[p->inc * INCS + q->inc];
	*last = at = at > *last ? at : *last + 1;
	agent_do(&q->agent, at - sim.now, [p, q, l] { hand_over(p, q, l); });
	return 0;
}

void link_up(struct process *p, struct process *q)
{
	agent_do(&p->agent, sim_below(200 * US), [p, q] {
		struct cvy_sink sink = cvy_device_sink(p->device);
		struct cvy_event ev = {};

		if (p->linked[q->rank] > q->inc)
			return;
		p->linked[q->rank] = q->inc;
		ev.kind = CVY_EV_LINK_UP;
		ev.rank = q->rank;
		ev.inc = q->inc;
		cvy_post(&sink, &ev);
	});
}

void letters_begin(void)
{
	when.assign(INCS * INCS, 0);
}

void letters_end(void)
{
	for (struct letter *l : letters)
		drop(l);
	letters.clear();
}
