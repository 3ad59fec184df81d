/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations ended that a member may lack: those of each view are one *era* with its epoch and contributors, and an
 * ADMIT that lets a rank in begins another. The member that completed most sends all eras (HAVE), so all members have
 * one history. Operations that others have completed are completed here by their era, however many views ago. Agent's
 * thread.
 */
#include "device_state.h"

/* @era replaces eras of operations from its own on, and the oldest if there is no room. */
static void begin_era(struct cvy_gpu_era *all, uint32_t *n, struct cvy_gpu_era era)
{
	while (*n && all[*n - 1].op >= era.op)
		--*n;
	if (*n == CVY_GPU_ERAS)
		memmove(all, all + 1, --*n * sizeof(*all));
	all[(*n)++] = era;
}

void cvy_device_tell_eras(const struct cvy_device *d, struct cvy_device_have *have)
{
	const struct cvy_gpu_admitted *here = &d->counters.admitted;

	have->eras = d->roll.eras;
	memcpy(have->era, d->roll.era, sizeof(have->era));
	have->admitted = d->admitted;
	/* An admission of an earlier view is in the history; before any view there is none. */
	if (!have->eras || have->era[have->eras - 1].epoch != here->era.epoch)
		return;
	have->admitted = *here;
	begin_era(have->era, &have->eras, here->era);
}

void cvy_device_take_eras(struct cvy_device *d, int holder, uint64_t base, cvy_ranks mask, uint32_t fails)
{
	struct cvy_gpu_roll *roll = &d->roll;

	if (holder < 0) {
		roll->eras = 0;
		memset(&d->admitted, 0, sizeof(d->admitted));
	} else {
		const struct cvy_device_have *h = &d->peer[holder].have;

		roll->eras = h->eras;
		memcpy(roll->era, h->era, sizeof(roll->era));
		d->admitted = h->admitted;
	}
	begin_era(roll->era, &roll->eras, (struct cvy_gpu_era){ base, d->view->epoch, mask, fails, 0 });
}

/* The others complete no ADMIT without the admitted ranks: so the last one let this rank in, or none did. */
uint64_t cvy_device_first_operation(const struct cvy_device *d, int holder)
{
	const struct cvy_gpu_era *era = holder < 0 ? NULL : &d->peer[holder].have.admitted.era;

	return era && era->epoch ? era->op + 1 : 0;
}

cvy_ranks cvy_device_named_since(const struct cvy_device *d, uint64_t op)
{
	cvy_ranks mask = cvy_ranks_none();

	for (uint32_t i = d->roll.eras; i--;) {
		mask = cvy_ranks_or(mask, d->roll.era[i].mask);
		if (d->roll.era[i].op <= op)
			break;
	}
	return mask;
}
