/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of queue errors. No error tells which side is at fault: a dead peer shows as any of several. */
#include "queues.h"

const char *cvy_syndrome(uint64_t status)
{
	static const char *const words[] = {
		[0] = "healthy",
		[0x01] = "a local length is wrong",
		[0x02] = "the adapter refused an entry",
		[0x04] = "local memory is out of reach",
		[0x05] = "flushed after an earlier error, or stopped",
		[0x12] = "the far end refused the request",
		[0x13] = "the far end's memory is out of reach",
		[0x14] = "the far end failed",
		[0x15] = "the far end does not answer",
		[0x16] = "the far end is never ready",
	};

	if (status == CVY_QUEUE_STATUS_ORDER)
		return "a poster vanished in the middle of posting";
	return status < sizeof(words) / sizeof(words[0]) && words[status] ? words[status]
									  : "the adapter reported an error";
}
