/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of queue errors. No error tells which side is at fault: a dead peer shows as any of several. */
#include "queues.h"

const char *cvy_syndrome(uint64_t status)
{
	switch (status) {
	case 0:
		return "healthy";
	case 0x01:
		return "a local length is wrong";
	case 0x02:
		return "the adapter refused an entry";
	case 0x04:
		return "local memory is out of reach";
	case 0x05:
		return "flushed after an earlier error, or stopped";
	case 0x12:
		return "the far end refused the request";
	case 0x13:
		return "the far end's memory is out of reach";
	case 0x14:
		return "the far end failed";
	case 0x15:
		return "the far end does not answer";
	case 0x16:
		return "the far end is never ready";
	case CVY_QUEUE_STATUS_ORDER:
		return "a poster vanished in the middle of posting";
	}
	return "the adapter reported an error";
}
