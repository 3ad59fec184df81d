/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of an agent, for who asks it for a timer: a deed of its fiber, some time. */
#include "device.h"

struct cvy_timer {
	int cancelled;
};

extern "C" {

struct cvy_timer *cvy_loop_timer(struct cvy_loop *loop, uint64_t deadline_ns, void (*fire)(void *ctx), void *ctx)
{
	struct process *p = (struct process *)loop;
	struct cvy_timer *t = new cvy_timer();

	agent_do(&p->agent, deadline_ns > sim.now ? deadline_ns - sim.now : 0, [t, fire, ctx] {
		if (!t->cancelled)
			fire(ctx);
		delete t;
	});
	return t;
}

void cvy_loop_cancel(struct cvy_timer *t)
{
	if (t)
		t->cancelled = 1;
}

/* Queues and their doors, of which there are none. */
#define REFUSED(ERR, NAME, ...) \
	int NAME(__VA_ARGS__) \
	{ \
		return ERR; \
	}
#define NOTHING_TO_DO(NAME, ...) \
	void NAME(__VA_ARGS__) \
	{ \
	}

REFUSED(COVEY_ERR_NOMEM, cvy_loop_new, struct cvy_loop **)
REFUSED(COVEY_ERR_NOMEM, cvy_loop_watch, struct cvy_loop *, int, uint32_t, void (*)(void *, uint32_t), void *,
	struct cvy_watch **)
REFUSED(COVEY_ERR_CLOSED, cvy_loop_post, struct cvy_loop *, void (*)(void *, void *), void *, void *)
NOTHING_TO_DO(cvy_loop_free, struct cvy_loop *)
NOTHING_TO_DO(cvy_loop_run, struct cvy_loop *, void (*)(void *, uint64_t), void *, const int *)
NOTHING_TO_DO(cvy_loop_stop, struct cvy_loop *)
NOTHING_TO_DO(cvy_loop_change, struct cvy_watch *, uint32_t)
NOTHING_TO_DO(cvy_loop_unwatch, struct cvy_watch *)

} /* extern "C" */
