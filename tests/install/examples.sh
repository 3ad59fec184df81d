#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The programs of examples/ do what they say: examples.sh EP-RUN FOLDER [PREFIX], where they were built, as PREFIX-NAME
set -u
run=$1 folder=$2 prefix=${3-example-} failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
unset COVEY_STORE COVEY_GROUP COVEY_RANK COVEY_WORLD COVEY_MAX_RANKS COVEY_HOST COVEY_CREATE
export COVEY_HANG_MS=20000 # a machine under load is no death

# runs NAME TIMES PATTERN ARGS...: ends with 0, and so many lines match
runs()
{
	name=$1 times=$2 pattern=$3
	shift 3
	out=$(timeout 100 "$run" "$@" -- "$folder/$prefix$name" 2>&1) || { echo "$name: code $?"; failed=1; }
	seen=$(echo "$out" | grep -c -e "$pattern")
	[ "$seen" = "$times" ] || { echo "$name: $seen lines with \"$pattern\", not $times, in:"; echo "$out"; failed=1; }
}

runs hello 4 'of 4: the sum of all ranks is 6$' -n 4
runs survive 3 'the sum is 3, from 3 ranks, in view 2$' -n 4
runs replace 3 'whole again, step [0-9]*$' -n 3 --restart on-failure
runs overlap 4 '8 operations, 0 wrong elements$' -n 4
runs experts 4 '2 experts here, tokens came back as they were$' -n 4

# loop goes on when a rank is killed by hand; its own end is ten minutes away.
lines=$(mktemp)
"$run" -n 3 --restart on-failure -- "$folder/${prefix}loop" >"$lines" 2>&1 &
job=$!
shows() # within 30 s
{
	for _ in $(seq 300); do
		grep -q "$1" "$lines" && return 0
		sleep 0.1
	done
	echo "loop: no line with \"$1\" in:"
	cat "$lines"
	return 1
}
one() # the pid of one of its processes
{
	for exe in /proc/[0-9]*/exe; do
		[ "$(readlink "$exe")" != "$(realpath "$folder/${prefix}loop")" ] || basename "${exe%/exe}"
	done | head -n 1
}
shows 'the sum is 3, from 3 ranks, in view 1$' && kill -9 "$(one)" &&
	shows 'the sum is 3, from 3 ranks, in view [2-9]$' || failed=1
kill "$job"
wait "$job"
rm -f "$lines"
exit $failed
