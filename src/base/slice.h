/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short time slices for the agent and its watcher: they run for microseconds at a time, but a peer waits for each run.
 * The scheduler lets a thread with short slices preempt one that is in the middle of a long slice (Linux 6.12 and
 * later; before, this has no effect). It costs other threads nothing: shares stay the same.
 */
#ifndef CVY_SLICE_H
#define CVY_SLICE_H

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CVY_SLICE_NS 100000 /* the shortest that the kernel grants */

struct cvy_sched_attr { /* of sched_setattr(2), its first version; only recent libc has it */
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* For the calling thread, or a process before exec: threads and programs inherit it. A refusal changes nothing. */
static inline void cvy_slice_short(void)
{
	struct cvy_sched_attr attr = { .size = sizeof(attr) };

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy)
		return; /* another class: the user has chosen */
	attr.size = sizeof(attr);
	attr.runtime = CVY_SLICE_NS;
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

#endif
