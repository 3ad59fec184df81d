#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A tool that cannot write what it prints says so, and does not end with 0. output.sh EP-RUN TOOL...
set -u
run=$1 failed=0
shift
[ -c /dev/full ] || { echo "skipped: no /dev/full"; exit 77; }
unset COVEY_STORE COVEY_GROUP

# loses CODE ARGS...: ends with the code, and names what was lost
loses()
{
	wanted=$1
	shift
	said=$("$@" 2>&1 >/dev/full)
	code=$?
	[ $code = "$wanted" ] || { echo "$* >/dev/full: code $code, not $wanted; it said: $said"; failed=1; }
	case $said in
	*"the output is lost: standard output: "*) ;;
	*) echo "$* >/dev/full: it only said: $said"; failed=1 ;;
	esac
}

for tool in "$run" "$@"; do
	case $tool in
	*ep-run) code=125 ;;
	*ep-admin) code=5 ;;
	*ep-moe) code=1 ;;
	*) code=2 ;;
	esac
	loses $code "$tool" --help
	loses $code "$tool" --version
	case $tool in
	*ep-admin) loses 5 "$tool" plan 4 && loses 5 "$tool" plan 4 --json ;;
	esac
done

# Of ep-chaos nothing is left either when it is ended: its reader is gone, or somebody stops it.
TMPDIR=$(mktemp -d) && export TMPDIR
is_empty()
{
	looks=0
	until [ -z "$(ls -A "$TMPDIR")" ]; do
		looks=$((looks + 1))
		if [ $looks = 200 ]; then
			echo "$* leaves $(ls -A "$TMPDIR")"
			failed=1
			return
		fi
		sleep 0.5
	done
}
for tool in "$@"; do
	case $tool in
	*ep-chaos)
		"$tool" -v --kills 3 2>&1 | head -n 1 >/dev/null
		is_empty "ep-chaos | head"
		"$tool" --idle 60 >/dev/null 2>&1 &
		while kill -0 $! && [ -z "$(ls -A "$TMPDIR")" ]; do sleep 0.1; done
		kill $! && wait $!
		is_empty "a stopped ep-chaos"
		;;
	esac
done
rm -r "$TMPDIR"
exit $failed
