#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh PROGRAM [ARGS...] - start a rank whose number a launcher has given, as a founder or as a replacement
#
# The rank is COVEY_RANK, which the pod takes from its index. A process that is started again cannot know from its
# environment what it is, so the store is asked: where a group of that name lives, this is a replacement or a joiner
# (COVEY_CREATE=never); else it forms the group with the others.
#
# START_AGAIN=N: a program that fails is started again, at most N times (for launchers that do not): as a replacement
# if the group has been formed.
set -u
admin=${EP_ADMIN:-ep-admin} again=${START_AGAIN:-0}

# The age of the youngest beat in each of two looks: in a group that lives it does not grow by the time between them.
# Ages are compared with each other only, since the clocks of store and host may differ.
youngest()
{
	printf '%s\n' "$1" | grep -o '"beat_age_ms":[0-9]*' | cut -d: -f2 | sort -n | head -n 1
}

alive()
{
	looks=$($admin --json --looks 2 --interval 3000 watch 2>/dev/null) || return 1
	first=$(printf '%s\n' "$looks" | sed -n 1p)
	second=$(printf '%s\n' "$looks" | sed -n 2p)
	case $second in
	*'"phase":"closed"'* | *'"phase":"form"'*) return 1 ;;
	esac
	was=$(youngest "$first") is=$(youngest "$second")
	[ -n "$is" ] && { [ -z "$was" ] || [ "$is" -lt $((was + 2500)) ]; }
}

# Is there a group, and has it been formed? Then it is worth the time of two looks.
formed()
{
	state=$($admin --json status 2>/dev/null) || return 1
	case $(printf '%s' "$state" | tr -d ' \n') in
	*'"phase":"closed"'* | *'"phase":"form"'*) return 1 ;;
	esac
}

replace()
{
	export COVEY_CREATE=never
	unset COVEY_WORLD # the founders' number; joiners need none
}

role()
{
	[ "${COVEY_CREATE:-first}" = first ] && echo founder || echo "replacement or joiner"
}

[ $# -gt 0 ] || { echo "start.sh: which program? start.sh PROGRAM [ARGS...]" >&2; exit 64; }
[ -n "${COVEY_STORE:-}" ] || { echo "start.sh: COVEY_STORE is not set: the URL of the store is needed" >&2; exit 64; }
if [ "${COVEY_CREATE:-first}" = first ] && formed && alive; then
	replace
fi
echo "start.sh: rank ${COVEY_RANK:-of the launcher} starts as a $(role)" >&2
[ "$again" -gt 0 ] || exec "$@"
while :; do
	"$@"
	code=$?
	[ $code != 0 ] && [ "$again" -gt 0 ] || exit $code
	again=$((again - 1))
	if formed; then # else the group still needs it as a founder
		export COVEY_RANK="${COVEY_RANK:-${SLURM_PROCID:-}}"
		replace
	fi
	echo "start.sh: $1 ended with code $code and is started again as a $(role)" >&2
done
