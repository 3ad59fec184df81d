/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives on device memory, as calls have them: a call alone is a launch, those between covey_group_start() and
 * covey_group_end() are one launch for each device, so that each serves all of them at once.
 */
#ifndef CVY_DEVICE_MESSAGE_H
#define CVY_DEVICE_MESSAGE_H

#include "device.h"

struct cvy_device_message {
	int sending;
	void *at; /* of a send it is only read */
	size_t bytes;
	int peer, tag;
	struct CUstream_st *stream;
	struct covey_result *result; /* filled in when it is launched; may be NULL */
};

/* Launches it, or keeps it for the end of the group that is open on this thread. The handle's caller. */
int cvy_device_message(struct cvy_device *d, const struct cvy_device_message *m);
int cvy_device_messages_end(void); /* of the group: launches what was kept. 0, or the first error */
/* The first message that failed since this was called before; status 0: none. */
int cvy_device_message_outcome(struct cvy_device *d, struct covey_device_message_outcome *out);

#endif
