/* SPDX-License-Identifier: Apache-2.0 */
/* What follows what in a device's view change: every state with every turn (device_state.c). */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "device_state.h"

/* One letter a state, in the order of the enum; a row has what follows one state, a column one turn. */
static const char phase_letters[CVY_DEVICE_PHASES + 1] = "ROSFY";
static const char *const phase_rows[CVY_DEVICE_PHASES] = {
	/* FREEZE, STOOD, STOOD_NOT, LEARN, SETTLE, FETCHED, THAW */
	[CVY_DEVICE_RUNS] = "ORRRRRR",	  /* nothing but a freeze begins a change */
	[CVY_DEVICE_STOPS] = "OSROOOR",	  /* a view may be learned while kernels still run */
	[CVY_DEVICE_STANDS] = "SSSSFSR",  /* the next change finds the device frozen */
	[CVY_DEVICE_FETCHES] = "SFFSFYR", /* another view: nothing is settled */
	[CVY_DEVICE_READY] = "SYYSYYR",
};

static const char gone_letters[CVY_GONE_STATES + 1] = "NLAW";
static const char *const gone_rows[CVY_GONE_STATES] = {
	/* REMOVE, UNASK, ASK, COME, USED */
	[CVY_GONE_NOT] = "LNNNN", /* nobody asks for packets of a member, or takes them */
	[CVY_GONE_LEFT] = "LLALN",
	[CVY_GONE_ASKED] = "ALAWN",
	[CVY_GONE_WHOLE] = "WWWWN", /* whatever views come before they are used */
};

TEST(device_phase_follows_its_table)
{
	for (int at = 0; at < CVY_DEVICE_PHASES; at++)
		for (int turn = 0; turn < CVY_DEVICE_TURNS; turn++) {
			enum cvy_device_phase to =
				cvy_device_next((enum cvy_device_phase)at, (enum cvy_device_turn)turn);

			ck_assert_msg(phase_letters[to] == phase_rows[at][turn], "phase %d, turn %d: %d", at, turn, to);
		}
}

TEST(device_packets_of_the_removed_follow_their_table)
{
	for (int at = 0; at < CVY_GONE_STATES; at++)
		for (int turn = 0; turn < CVY_GONE_TURNS; turn++) {
			enum cvy_device_gone to =
				cvy_device_gone_next((enum cvy_device_gone)at, (enum cvy_device_gone_turn)turn);

			ck_assert_msg(gone_letters[to] == gone_rows[at][turn], "state %d, turn %d: %d", at, turn, to);
		}
}

/* No turn skips the freeze: words are settled only while the device is frozen. */
TEST(device_is_ready_by_one_way_alone)
{
	for (int at = 0; at < CVY_DEVICE_PHASES; at++)
		for (int turn = 0; turn < CVY_DEVICE_TURNS; turn++) {
			int to = (int)cvy_device_next((enum cvy_device_phase)at, (enum cvy_device_turn)turn);

			ck_assert_int_le(to, at + 1);
			if (to > at && to == CVY_DEVICE_STANDS)
				ck_assert_int_eq(turn, CVY_DEVICE_STOOD);
		}
}

TEST(device_holds_back_the_engine_until_it_is_as_far)
{
	for (int at = 0; at < CVY_DEVICE_PHASES; at++) {
		enum cvy_device_phase phase = (enum cvy_device_phase)at;

		ck_assert_int_eq(cvy_device_holds_back(phase, CVY_EV_FROZEN), at < CVY_DEVICE_STANDS);
		ck_assert_int_eq(cvy_device_holds_back(phase, CVY_EV_REPAIRED), at != CVY_DEVICE_READY);
		ck_assert_int_eq(cvy_device_holds_back(phase, CVY_EV_FENCED), 0);
		ck_assert_int_eq(cvy_device_holds_back(phase, CVY_EV_FROZE_NOT), 0);
	}
}

SUITE_MAIN(.name = "collectives/device_state")
