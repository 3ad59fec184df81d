/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives on device memory, as calls make them: a single call is one launch. Calls between
 * covey_group_start() and covey_group_end() are one launch for each device, which serves all of them at once.
 */
#ifndef CVY_DEVICE_MESSAGE_H
#define CVY_DEVICE_MESSAGE_H

#include "device.h"

struct cvy_device_message {
	int sending;
	void *at; /* a send only reads it */
	size_t bytes;
	int peer, tag;
	int grouped; /* a call between covey_group_start() and covey_group_end() of this thread */
	struct CUstream_st *stream;
	struct covey_result *result;	 /* filled in when it is launched; may be NULL */
	struct cvy_gpu_receipt *receipt; /* of its work; NULL: it has none */
};

/* Launches it, or keeps it for cvy_device_messages_end() if it is grouped. Called by the handle's caller. */
int cvy_device_message(struct cvy_device *d, const struct cvy_device_message *m);
int cvy_device_messages_end(void); /* of the group: launches the kept messages. 0, or the first error */
int cvy_device_messages_drop(
	const struct cvy_device *d);   /* it closes: its kept messages are not launched. 1: it had some */
void cvy_device_messages_forget(void); /* in the child of a fork: the kept messages are the parent's */

/* What is known of a message at its call. */
void cvy_device_message_known(const struct cvy_device *d, const struct cvy_device_message *m,
			      struct covey_result *result);
/* Is this message of the thread's group of calls not launched yet? */
int cvy_device_message_is_kept(const struct cvy_gpu_receipt *receipt);
/* As cvy_device_receipt_look(). device_receipt.c */
int cvy_device_message_look(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct covey_result *result);

#endif
