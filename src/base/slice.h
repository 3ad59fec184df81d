/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that answer: the agent and its watcher run for microseconds at a time, but a peer waits for each.
 * The scheduler lets a thread that asks for short slices run ahead of one that is in the middle of a long one
 * (Linux 6.12 and later; before, the wish is without effect). It costs the others nothing: shares stay the same.
 */
#ifndef CVY_SLICE_H
#define CVY_SLICE_H

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CVY_SLICE_NS 100000 /* the shortest that the kernel grants */

struct cvy_sched_attr { /* of sched_setattr(2), its first version; libc names it only of late */
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* For the calling thread, or a process before exec: it is inherited. A refusal changes nothing. */
static inline void cvy_slice_short(void)
{
	struct cvy_sched_attr attr = { .size = sizeof(attr) };

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy)
		return; /* of another class: somebody has chosen already */
	attr.size = sizeof(attr);
	attr.runtime = CVY_SLICE_NS;
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

#endif
