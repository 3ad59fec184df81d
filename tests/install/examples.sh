#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The programs of examples/ do what they say: examples.sh EP-RUN FOLDER [PREFIX], where they were built, as PREFIX-NAME
set -u
run=$1 folder=$2 prefix=${3-example-} failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
unset COVEY_STORE COVEY_GROUP COVEY_RANK COVEY_WORLD COVEY_MAX_RANKS COVEY_HOST COVEY_CREATE

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
exit $failed
