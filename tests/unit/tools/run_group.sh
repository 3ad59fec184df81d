#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ep-run with a real group: its private store is found, a retired rank is finished, --grow starts joiners.
# run_group.sh EP-ADMIN EP-RUN WAITER
set -u
admin=$1 run=$2 waiter=$3 failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
where=$(mktemp -d)
first='' second='' lookers=''
trap 'kill $first $second $lookers 2>/dev/null; wait $first $second 2>/dev/null; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_TRANSPORT COVEY_WORLD COVEY_STORE_PASSWORD
export COVEY_HANG_MS=60000 COVEY_LEASE_MS=60000 # a machine under load is no death
group=run-group-$$ # other tests may run at once

. "$(dirname "$0")/await.sh"

# until_says PATTERN COMMAND...: it prints that, within half a minute
until_says()
{
	pattern=$1 tries=0
	shift
	until "$@" 2>&1 | grep -q -e "$pattern"; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || { wrong "never \"$pattern\" from $*:"; "$@"; exit 1; }
		sleep 0.05
	done
}

"$run" -v -g $group -n 3 --restart on-failure -- "$waiter" "$where/stop" >"$where/out" 2>&1 &
first=$!
for rank in 0 1 2; do
	until_has "$where/out" "^\[$rank\] sum 3"
done
grep -q "private store redis+unix://.*, group $group: .*--run $first" "$where/out" || wrong "-v does not say where the store is"

# Found by the group's name, by the process, and with JSON.
"$admin" -g $group status >"$where/seen" || wrong "ep-admin does not find the run of its group: code $?"
"$admin" --run $first status >"$where/seen" || wrong "ep-admin does not find the run by its process: code $?"
grep -q "^group $group " "$where/seen" || wrong "--run: not its group: $(cat "$where/seen")"
"$admin" -g no-$group status 2>"$where/seen" && wrong "ep-admin finds a run of another group"
grep -q COVEY_STORE "$where/seen" || wrong "nothing says how to name a store: $(cat "$where/seen")"

# A process of another user may call itself ep-run and show what it likes. Root, as all users, takes only its own.
if [ "$(id -u)" = 0 ] && command -v python3 >/dev/null; then
	python3 -c '
import ctypes, os, time
os.setuid(65534)
ctypes.CDLL(None).prctl(15, b"ep-run")
os.write(os.memfd_create("covey-run"), b"%d\nredis://127.0.0.1:1\nevil-'$$'\n\033[31mprogram\n" % os.getpid())
print("shown", flush=True)
time.sleep(600)' >"$where/fake" &
	second=$!
	until_has "$where/fake" shown
	for how in "-g evil-$$" "--run $second"; do
		# shellcheck disable=SC2086
		"$admin" $how status 2>"$where/seen" && wrong "ep-admin $how takes the run of another user"
		grep -q 'no ep-run of this user' "$where/seen" || wrong "ep-admin $how: $(cat "$where/seen")"
	done
	"$run" -g evil-$$ --grow 1 -- true 2>"$where/seen" && wrong "--grow takes the run of another user"
	grep -q 'no ep-run of this user' "$where/seen" || wrong "--grow: $(cat "$where/seen")"
	kill $second
	wait $second 2>/dev/null
fi

# Joiners of the ranks behind those of the group, into the store of that run.
"$run" -g $group --grow 2 -- "$waiter" "$where/stop" >"$where/grown" 2>&1 &
second=$!
until_says '^4 *\(joiner\|pending\)' "$admin" -g $group status
until_says '^3 *\(joiner\|pending\)' "$admin" -g $group status

# Who asks for the rank of a living process says what it waits for. Who looks at a run ends with it.
for form in watch events top; do
	"$admin" --run $first $form >"$where/look-$form" 2>&1 &
	lookers="$lookers $!"
done
store=$(tr '\0' '\n' <"/proc/$(pgrep -n -f "^$waiter $where/stop")/environ" | sed -n 's/^COVEY_STORE=//p')
tries=0
until
	COVEY_STORE=$store COVEY_GROUP=$group COVEY_RANK=2 COVEY_CREATE=never COVEY_JOIN_MS=3000 \
		"$waiter" "$where/stop" >"$where/held" 2>&1
	grep -q 'warn: join: waiting .*is a member' "$where/held"
do
	tries=$((tries + 1)) # it says so once, and on a busy machine the store may not have answered by then
	[ $tries -lt 10 ] || { wrong "a rank that is held: $(cat "$where/held")"; break; }
done

# The sums of a retired rank end with an error, and its program with code 1: neither a failure nor a reason to replace it.
"$admin" -g $group retire 1 --wait || wrong "retire: code $?"
until_has "$where/out" 'rank 1 was retired: it is finished'
: >"$where/stop"
wait $first
code=$?
[ $code = 0 ] || { wrong "a run of which one rank was retired ends with $code:"; cat "$where/out"; }
grep -q 'rank 1 ended with code 1 after it was retired, 0 replacements' "$where/out" || wrong "rank 1 was replaced: $(cat "$where/out")"
wait $second
for looker in $lookers; do
	wait "$looker" || wrong "a look at a run that ended: code $?"
done

# A rank that fails when the group is closed has nothing to come back to.
cat >"$where/job" <<-END
	if [ \$COVEY_RANK = 0 ]; then
		"$waiter" "$where/stop-0"
		until [ -e "$where/over" ]; do sleep 0.05; done
		exit 0
	fi
	"$waiter" "$where/never" &
	until grep -q '^\[1\] sum 2' "$where/out-2"; do sleep 0.05; done
	kill -9 \$!
	wait \$!
	echo killed
	until [ -e "$where/closed" ]; do sleep 0.05; done
	exit 3
END
"$run" -v -g $group-2 -n 2 --restart on-failure -- sh "$where/job" >"$where/out-2" 2>&1 &
first=$!
until_has "$where/out-2" '^\[1\] killed'
: >"$where/stop-0"
until_says 'closed' "$admin" -g $group-2 status
: >"$where/closed"
until_has "$where/out-2" "group $group-2 is closed: rank 1 is not started again"
: >"$where/over"
wait $first
code=$?
[ $code = 3 ] || wrong "a run whose rank failed behind the group's end ends with $code"
grep -q 'rank 1 ended with code 3, 0 replacements' "$where/out-2" || wrong "a rank is started into a closed group: $(cat "$where/out-2")"
grep -L 'has ended\|is closed' "$where"/look-* | grep . && wrong "a look at a run ended without a word"
exit $failed
