/* SPDX-License-Identifier: Apache-2.0 */
/* The last outcome on the device as its kernels see it: what is missing here stands apart from the contributors. */
#ifndef TEST_OUTCOME_H
#define TEST_OUTCOME_H

#include <covey_device.h>

/* @copy is of any two kinds of memory, as tool->copy. covey_device_result() must say the same. */
static inline int device_outcome(struct covey_group *group, int (*copy)(void *to, const void *from, size_t bytes),
				 struct covey_device_outcome *out)
{
	const struct covey_device_outcome *at;
	struct covey_result result;
	int err = covey_device_outcome_at(group, &at);

	if (!err)
		err = copy(out, at, sizeof(*out));
	if (!err)
		err = covey_device_result(group, &result);
	if (err || result.peer >= 0) /* a message's failure is not of the last operation */
		return err;
	return result.status == out->status && result.seq == out->seq && result.epoch == out->epoch &&
			       result.mask.word[0] == (out->mask & ~out->missing)
		       ? 0
		       : COVEY_ERR_MISMATCH;
}

#endif
