/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do large operations go in two levels (levels.cuh)? Kernels decide by their lane's words, so it is the same on all
 * ranks, also where some have launched before a view change and some after it. But only kernels that are made for it can.
 * A captured graph holds its kernels for good, and groups within one host have the shorter ones. So a process decides once
 * which kernels it launches, and tells the others. Words say two levels if all members have told that they can.
 */
#include "device_state.h"

static int several_hosts(const struct cvy_device *d)
{
	int several = 0;

	CVY_MASK_EACH(r, &d->view->members)
	several |= cvy_device_host_of(d, r) != cvy_device_host_of(d, d->rank);
	return several;
}

/* Are members of one host if, and only if, their ranks divided by @width are the same? */
static int fits(const struct cvy_device *d, int width)
{
	int name[CVY_GPU_RANKS], hosts = 0; /* a rank of each host */

	CVY_MASK_EACH(r, &d->view->members)
	{
		int known = 0;

		for (int i = 0; i < hosts; i++) {
			int same = r / width == name[i] / width;

			if ((cvy_device_host_of(d, r) == cvy_device_host_of(d, name[i])) != same)
				return 0;
			known |= same;
		}
		if (!known)
			name[hosts++] = r;
	}
	return 1;
}

/* The least width that fits, 0: none does. */
static uint32_t find_width(const struct cvy_device *d)
{
	int width = CVY_GPU_IS_WIDE ? CVY_GPU_RANKS : 2;

	while (width <= CVY_GPU_RANKS / 2 && !fits(d, width))
		width++;
	return width <= CVY_GPU_RANKS / 2 ? (uint32_t)width : 0;
}

uint32_t cvy_device_own_width(struct cvy_device *d)
{
	const int several = several_hosts(d);
	int can;

	pthread_mutex_lock(&d->lock);
	if (several && d->levels == CVY_LEVELS_OPEN)
		d->levels = CVY_LEVELS_CAN;
	can = d->levels == CVY_LEVELS_CAN;
	pthread_mutex_unlock(&d->lock);
	return several && can ? find_width(d) : 0;
}

uint32_t cvy_device_settle_width(struct cvy_device *d)
{
	uint32_t width = d->peer[d->rank].have.width;

	CVY_MASK_EACH(r, &d->view->members)
	if (d->peer[r].have.width != width)
		width = 0;
	pthread_mutex_lock(&d->lock);
	d->width = (int)width;
	d->several = several_hosts(d);
	pthread_mutex_unlock(&d->lock);
	return width;
}

int cvy_device_takes_levels(struct cvy_device *d)
{
	int can;

	pthread_mutex_lock(&d->lock);
	if (d->levels == CVY_LEVELS_OPEN)
		d->levels = CVY_LEVELS_CANNOT;
	can = d->levels == CVY_LEVELS_CAN;
	pthread_mutex_unlock(&d->lock);
	return can;
}
