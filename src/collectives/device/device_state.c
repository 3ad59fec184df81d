/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows what in a device's view change. Pure functions: device_change.c and device_packets.c act.
 *
 *         FREEZE         STOOD          SETTLE           FETCHED         THAW
 *   RUNS --------> STOPS -----> STANDS --------> FETCHES --------> READY -----> RUNS
 *                                  ^                |                |
 *                                  `----------------+----------------'
 *                                         FREEZE, LEARN
 *
 * A turn that the picture does not show leaves the phase as it is, but for two. STOOD_NOT goes back to RUNS: the rank
 * gives up. THAW goes to RUNS from anywhere: a rank that waits for its ADMIT acknowledges without REPAIRED.
 */
#include "device_state.h"

/* A decision for one view does not hold for the next. */
static enum cvy_device_phase unsettled(enum cvy_device_phase phase)
{
	return phase > CVY_DEVICE_STANDS ? CVY_DEVICE_STANDS : phase;
}

enum cvy_device_phase cvy_device_next(enum cvy_device_phase phase, enum cvy_device_turn turn)
{
	switch (turn) {
	case CVY_DEVICE_FREEZE:
		return phase == CVY_DEVICE_RUNS ? CVY_DEVICE_STOPS : unsettled(phase);
	case CVY_DEVICE_STOOD:
		return phase == CVY_DEVICE_STOPS ? CVY_DEVICE_STANDS : phase;
	case CVY_DEVICE_STOOD_NOT:
		return phase == CVY_DEVICE_STOPS ? CVY_DEVICE_RUNS : phase;
	case CVY_DEVICE_LEARN:
		return unsettled(phase);
	case CVY_DEVICE_SETTLE:
		return phase == CVY_DEVICE_STANDS ? CVY_DEVICE_FETCHES : phase;
	case CVY_DEVICE_FETCHED:
		return phase == CVY_DEVICE_FETCHES ? CVY_DEVICE_READY : phase;
	default:
		return CVY_DEVICE_RUNS;
	}
}

int cvy_device_holds_back(enum cvy_device_phase phase, int kind)
{
	return (kind == CVY_EV_FROZEN && phase < CVY_DEVICE_STANDS) ||
	       (kind == CVY_EV_REPAIRED && phase != CVY_DEVICE_READY);
}

/*
 *       REMOVE         ASK           COME
 *   NOT ------> LEFT <-----> ASKED -------> WHOLE,   and USED goes to NOT from anywhere
 *                     UNASK
 */
enum cvy_device_gone cvy_device_gone_next(enum cvy_device_gone gone, enum cvy_device_gone_turn turn)
{
	switch (turn) {
	case CVY_GONE_REMOVE:
		return gone == CVY_GONE_NOT ? CVY_GONE_LEFT : gone;
	case CVY_GONE_UNASK:
		return gone == CVY_GONE_ASKED ? CVY_GONE_LEFT : gone;
	case CVY_GONE_ASK:
		return gone == CVY_GONE_LEFT ? CVY_GONE_ASKED : gone;
	case CVY_GONE_COME:
		return gone == CVY_GONE_ASKED ? CVY_GONE_WHOLE : gone;
	default:
		return CVY_GONE_NOT;
	}
}
