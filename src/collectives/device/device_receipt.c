/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes of single operations on the device, for callers that do not wait for the stream (gpu.h). */
#include "device_message.h"
#include "device_state.h"

int cvy_device_receipt(struct cvy_device *d, const char *what, struct CUstream_st *stream, struct cvy_gpu_receipt **out)
{
	int err;

	if (cvy_device_capturing(d, stream))
		return cvy_fail(d->box, COVEY_ERR_INVAL, d->rank, d->epoch,
				"%s: the stream is being captured: a graph takes the form without _start", what);
	CVY_DEVICE_DO(d, err, d->ops->receipt(d->gpu, out));
	return err ? cvy_fail(d->box, err, d->rank, d->epoch, "%s: %s", what, d->ops->why(d->gpu)) : 0;
}

int cvy_device_receipt_post(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream)
{
	int err;

	CVY_DEVICE_DO(d, err, d->ops->receipt_post(d->gpu, receipt, stream));
	return cvy_device_tells(d, err);
}

int cvy_device_receipt_look(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct covey_result *result)
{
	struct cvy_gpu_status last;
	int err;

	CVY_DEVICE_DO(d, err, d->ops->receipt_look(d->gpu, receipt, &last));
	if (err == COVEY_ERR_AGAIN)
		return err;
	if (err) { /* the device has failed: nothing more will come */
		result->status = cvy_device_tells(d, err);
		return 0;
	}
	result->status = last.status;
	result->epoch = last.epoch;
	result->seq = last.op;
	cvy_device_tell_contributors(&result->mask, &last);
	return 0;
}

int cvy_device_message_look(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct covey_result *result)
{
	struct cvy_gpu_answer answer;
	int err;

	CVY_DEVICE_DO(d, err, d->message->answer(d->gpu, receipt, &answer));
	if (err == COVEY_ERR_AGAIN)
		return err;
	if (err) {
		result->status = cvy_device_tells(d, err);
		return 0;
	}
	result->status = answer.status;
	if (!answer.status && answer.came) {
		result->bytes = answer.bytes;
		result->tag = answer.tag;
	}
	return 0;
}

void cvy_device_receipt_free(struct cvy_device *d, struct cvy_gpu_receipt *receipt)
{
	d->ops->receipt_free(d->gpu, receipt);
}
