/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the sources of a suspicion for the store and for causes, and what they mean to an operator. */
#include "event.h"

static const struct {
	const char *name, *text;
} sources[CVY_SOURCES] = {
	[CVY_SOURCE_ROBUST] = { "robust", "is dead (its process ended)" },
	[CVY_SOURCE_PIDFD] = { "pidfd", "is dead (its process ended)" },
	[CVY_SOURCE_STOPPED] = { "stopped", "was left out (its process was stopped)" },
	[CVY_SOURCE_EXITING] = { "exiting", "is dead (its process ended)" },
	[CVY_SOURCE_HEARTBEAT] = { "heartbeat", "was left out (its process was silent)" },
	[CVY_SOURCE_LINK] = { "link", "was left out (its connection broke or was silent)" },
	[CVY_SOURCE_LEASE] = { "lease", "was left out (it did not reach the store)" },
	[CVY_SOURCE_ACK] = { "ack", "was left out (it did not acknowledge a view)" },
	[CVY_SOURCE_ADMIT] = { "admit", "was left out (it did not come to covey_admit)" },
	[CVY_SOURCE_OPERATOR] = { "operator", "is out" },
};

const char *cvy_source_name(int source)
{
	return source > 0 && source < CVY_SOURCES ? sources[source].name : "unknown";
}

const char *cvy_source_text(int source)
{
	return source > 0 && source < CVY_SOURCES ? sources[source].text : "is out";
}
