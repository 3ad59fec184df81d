/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the sources of a suspicion, for causes and logs. */
#include "event.h"

const char *cvy_source_name(int source)
{
	switch (source) {
	case CVY_SOURCE_ROBUST:
		return "robust";
	case CVY_SOURCE_PIDFD:
		return "pidfd";
	case CVY_SOURCE_STOPPED:
		return "stopped";
	case CVY_SOURCE_EXITING:
		return "exiting";
	case CVY_SOURCE_HEARTBEAT:
		return "heartbeat";
	case CVY_SOURCE_LINK:
		return "link";
	case CVY_SOURCE_LEASE:
		return "lease";
	case CVY_SOURCE_ACK:
		return "ack";
	case CVY_SOURCE_ADMIT:
		return "admit";
	case CVY_SOURCE_OPERATOR:
		return "operator";
	}
	return "unknown";
}
