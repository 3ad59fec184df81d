/* SPDX-License-Identifier: Apache-2.0 */
/* Private to api*.c: works of operations and messages on device memory. */
#ifndef CVY_DEVICE_WORK_H
#define CVY_DEVICE_WORK_H

#include "handle.h"

/* A call that launches one operation on @stream, and says what is known of it then. */
struct cvy_device_launch {
	const char *what;
	struct CUstream_st *stream;
	int (*launch)(struct covey_group *group, const void *call, struct covey_result *known);
	const void *call;
};

/* Launches it; the work is decided when the stream has come past it. */
int cvy_device_work_start(struct covey_group *group, const struct cvy_device_launch *l, struct covey_work **out);
/* A work that has a receipt, for a launch on @stream that is to come. */
int cvy_device_work_new(struct covey_group *group, const char *what, struct CUstream_st *stream,
			struct covey_work **out);
/* As covey_work_test() and the others, of such a work. */
int cvy_device_work_test(struct covey_work *work, struct covey_result *result);
int cvy_device_work_wait(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result);
void cvy_device_work_progress(struct covey_work *work, char *text, size_t bytes);

#endif
