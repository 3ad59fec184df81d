/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the sources of a suspicion for the store and for causes, and what they mean to an operator. */
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

const char *cvy_source_text(int source)
{
	switch (source) {
	case CVY_SOURCE_ROBUST:
	case CVY_SOURCE_PIDFD:
	case CVY_SOURCE_EXITING:
		return "is dead (its process ended)";
	case CVY_SOURCE_STOPPED:
		return "was left out (its process was stopped)";
	case CVY_SOURCE_HEARTBEAT:
		return "was left out (its process was silent)";
	case CVY_SOURCE_LINK:
		return "was left out (its connection broke or was silent)";
	case CVY_SOURCE_LEASE:
		return "was left out (it did not reach the store)";
	case CVY_SOURCE_ACK:
		return "was left out (it did not acknowledge a view)";
	case CVY_SOURCE_ADMIT:
		return "was left out (it did not come to covey_admit)";
	}
	return "is out";
}
