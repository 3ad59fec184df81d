#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# probe.sh live|ready|leave - what a kubelet asks of a rank
#
# live: the agent of the group beats; it does in a member that waits, too. Where no group is joined yet nothing is wrong.
# ready: the rank is an active member. While the store does not answer, nothing is known against it.
# leave: before the pod ends. The rank leaves when nobody needs its data, so that nobody has to find out that it is dead.
set -u
admin=${EP_ADMIN:-ep-admin} max_ms=30000

case ${1:-} in
live)
	for age in $($admin --json events 2>/dev/null | grep -o '"beat_age_ms": [0-9]*' | cut -d' ' -f2); do
		[ "$age" -lt $max_ms ] || { echo "no beat for $age ms"; exit 1; }
	done
	;;
ready)
	state=$($admin --json status 2>/dev/null)
	code=$?
	case $code in
	3 | 4) exit 0 ;;
	0) ;;
	*) echo "there is no group yet"; exit 1 ;;
	esac
	printf '%s' "$state" | tr -d ' \n' | grep -q "\"rank\":$COVEY_RANK,\"state\":\"active\"" ||
		{ echo "rank $COVEY_RANK is not an active member"; exit 1; }
	;;
leave)
	$admin --wait=20000 retire "$COVEY_RANK"
	;;
*)
	echo "probe.sh: live, ready or leave?" >&2
	exit 64
	;;
esac
