#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# watch, events, plan, doctor and forget, with real groups: admin_views.sh EP-ADMIN EP-RUN WAITER
set -u
admin=$1 run=$2 waiter=$3 failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
where=$(mktemp -d)
redis-server --port 0 --unixsocket "$where/store" --save '' --appendonly no --dir "$where" >"$where/log" &
store=$!
group=
trap 'kill $store $group 2>/dev/null; wait $store $group 2>/dev/null; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
unset COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_TRANSPORT COVEY_WORLD COVEY_STORE_PASSWORD
export COVEY_STORE="redis+unix://$where/store"
export COVEY_HANG_MS=60000 COVEY_LINK_MS=8000 COVEY_LEASE_MS=60000 # a machine under load is no death

. "$(dirname "$0")/await.sh"

until_has "$where/log" "Ready to accept\|ready to accept"

# begin NAME ARGS...: a group of three that goes on until end
begin()
{
	name=$1
	shift
	rm -f "$where/stop" "$where/out"
	"$run" -g "$name" -n 3 "$@" -- "$waiter" "$where/stop" >"$where/out" 2>&1 &
	group=$!
	for rank in 0 1 2; do
		until_has "$where/out" "^\[$rank\] sum 3"
	done
}

end()
{
	: >"$where/stop"
	wait $group || { wrong "$name ended badly:"; cat "$where/out"; }
}

# What plan says of descriptors is what a member has. $1: the key, $2: of which rank
compare()
{
	said=$("$admin" plan 3 --json | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p")
	has=$(sed -n "s/^\[0\] sum 3 descriptors \([0-9]*\)$/\1/p" "$where/out")
	[ "${said:-none}" = "$has" ] || wrong "plan: $1 is $said, a member has $has"
}

begin far --local --hosts a,b,c
compare descriptors_per_rank_far
end
export COVEY_TRANSPORT=tcp
begin tcp
compare descriptors_per_rank_tcp
end
unset COVEY_TRANSPORT
begin one
compare descriptors_per_rank

# The last operations of all, side by side; another group has none here.
"$admin" -g one events --looks 0 >"$where/seen" || wrong "events: code $?"
grep -q '^rank  *0  *1  *2 *$' "$where/seen" || wrong "events: not three ranks: $(cat "$where/seen")"
grep -q '^[0-9]*  *allreduce  *4  *ok  *ok  *ok$' "$where/seen" || wrong "events: no sum of all: $(cat "$where/seen")"
"$admin" -g one events --json >"$where/seen" || wrong "events --json: code $?"
[ "$(grep -c '"rank":' "$where/seen")" = 3 ] || wrong "events --json has not three ranks"
grep -q '"kind": "allreduce"' "$where/seen" || wrong "events --json has no operation"
"$admin" -g other events --looks 0 >/dev/null
[ $? = 2 ] || wrong "events of no group: not code 2"

"$admin" -g one watch --looks 2 --interval 10 >"$where/seen" || wrong "watch: code $?"
[ "$(grep -c '^RANK' "$where/seen")" = 2 ] || wrong "watch: not two looks: $(cat "$where/seen")"
"$admin" -g one forget 2>"$where/seen"
[ $? = 2 ] || wrong "forget of the living: not code 2"
grep -q alive "$where/seen" || wrong "forget does not say why: $(cat "$where/seen")"

# A rank dies under the eyes of events.
"$admin" -g one events --interval 20 >"$where/stream" 2>&1 &
watcher=$!
until_has "$where/stream" 'view 1: active'
victim=$("$admin" -g one events --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
kill -KILL "$victim"
until_has "$where/stream" 'rank 0 left: inc'
until_has "$where/stream" 'view 2: active'
: >"$where/stop"
wait $group
# Once the group is closed, nothing more can come: all that look again and again end.
wait $watcher || wrong "events of a group that ended: code $?"
until_has "$where/stream" 'group one is closed'
for form in watch 'watch --json' top events; do
	# shellcheck disable=SC2086
	timeout 100 "$admin" -g one $form >"$where/seen" 2>&1 || wrong "$form of a closed group: code $?"
	grep -q 'group one is closed' "$where/seen" || wrong "$form of a closed group: $(cat "$where/seen")"
done
"$admin" -g one forget || wrong "forget of the dead: code $?"
"$admin" -g one status 2>/dev/null
[ $? = 2 ] || wrong "status of the forgotten: not code 2"

# What was asked for and cannot come true is said; who left is not dead; a closed group has nobody active.
export COVEY_LOG=info
begin states
unset COVEY_LOG
"$admin" -g states extend 5 2>"$where/seen" || wrong "extend: code $?"
grep -q 'ranks 3, 4 have no joiner' "$where/seen" || wrong "extend without joiners is silent: $(cat "$where/seen")"
"$admin" -g states extend 5 --wait=1 2>"$where/seen"
[ $? = 3 ] || wrong "extend --wait without joiners: not code 3"
grep -q 'extend is not done after 1 ms: ranks 3, 4 have no joiner' "$where/seen" || wrong "extend --wait: $(cat "$where/seen")"
"$admin" -g states events --interval 20 >"$where/stream" 2>&1 &
watcher=$!
until_has "$where/stream" 'view 1: active'
"$admin" -g states retire 1 --wait 2>"$where/seen" || wrong "retire: code $?: $(cat "$where/seen")"
until_has "$where/stream" 'rank 1 left: inc [0-9]*, retired'
until_has "$where/stream" 'view 2: active'
kill $watcher
wait $watcher 2>/dev/null
grep -q dead "$where/stream" && wrong "who was retired is called dead: $(cat "$where/stream")"
"$admin" -g states recover 2 2>"$where/seen"
[ $? = 2 ] || wrong "recover of the living: not code 2"
grep -q 'rank 2 is alive' "$where/seen" || wrong "recover of the living: $(cat "$where/seen")"
"$admin" -g states recover 1 2>"$where/seen" || wrong "recover: code $?"
grep -q 'rank 1 has no joiner' "$where/seen" || wrong "recover without a joiner is silent: $(cat "$where/seen")"
"$admin" -g states status >"$where/seen"
grep -q '^1  *retired ' "$where/seen" || wrong "status of the retired: $(cat "$where/seen")"
"$admin" -g states --json watch --looks 2 --interval 10 >"$where/seen" || wrong "watch --json: code $?"
[ "$(grep -c '^{"group":"states".*"ranks":\[.*}$' "$where/seen")" = 2 ] || wrong "watch --json: $(cat "$where/seen")"
end
"$admin" -g states status >"$where/seen" || wrong "status of the closed: code $?"
grep -q 'phase closed' "$where/seen" || wrong "not closed: $(cat "$where/seen")"
grep -q 'active\|dead' "$where/seen" && wrong "a closed group has active ranks: $(cat "$where/seen")"
grep 'is dead' "$where/out" && wrong "who left is called dead"

# A member whose first beat is still to come has done what its view begins behind; of a pending one nothing is known.
beat=$(date +%s)000
redis-cli -s "$where/store" hset 'covey:{young}:g' proto 2 gid 0123 secret 00 max 8 policy auto world 2 incs 3 ph run epoch 2 \
	vid 45 act 2 base 100 fail 0 stamp 5 size 2 m:0 '1 0 - h' m:1 '2 50 - h' m:2 '3 - - h' t:0 "$beat run;120;1:shm" \
	t:1 "$beat joining" t:2 "$beat -" >"$where/log"
"$admin" -g young status >"$where/seen" || wrong "status of a hand-made group: code $?: $(cat "$where/seen")"
for line in '0 *active *1 *[0-9.]* s *120 ' '1 *active *2 *[0-9.]* s *99 ' '2 *pending *3 *[0-9.]* s *- '; do
	grep -q "^$line" "$where/seen" || wrong "no line \"$line\": $(cat "$where/seen")"
done

# What a store says is shown without what a terminal obeys.
escape=$(printf '\033')
redis-cli -s "$where/store" hset 'covey:{young}:g' m:1 "2 50 - ${escape}[31mhost" x:1 "2 2 ${escape}]0;reason" >"$where/log"
for form in status 'status --json' 'top --once' 'top --once --json' 'events --looks 1'; do
	# shellcheck disable=SC2086
	"$admin" -g young $form >"$where/seen" 2>&1
	grep -q '?\[31mhost' "$where/seen" || wrong "$form: no clean host: $(cat "$where/seen")"
	grep -q "$escape" "$where/seen" && wrong "$form prints what a terminal obeys"
done

# A group that is not there is the same to all commands.
for command in status links 'watch --looks 1' 'watch --looks 1 --json' 'events --looks 1' 'retire 1' 'extend 2' forget; do
	# shellcheck disable=SC2086
	"$admin" -g none $command >"$where/seen" 2>&1
	code=$?
	[ $code = 2 ] || wrong "$command of no group: code $code, not 2"
	grep -q none "$where/seen" || wrong "$command of no group: $(cat "$where/seen")"
done

# What a member leaves in a directory when it is killed.
mkdir "$where/flight"
export COVEY_FLIGHT="$where/flight"
begin left
victim=$("$admin" -g left events --json --flight "$where/flight" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
kill -KILL "$victim"
: >"$where/stop"
wait $group
"$admin" -g left events --looks 0 --flight "$where/flight" >"$where/seen" || wrong "events of the dead: code $?"
grep -q '^rank  *0x *$' "$where/seen" || wrong "events of the dead: $(cat "$where/seen")"
[ "$(find "$where/flight" -name '*.flight' | wc -l)" = 1 ] || wrong "not one record is left of one dead"
unset COVEY_FLIGHT
# A link is not followed. A record may lie: a name that a terminal obeys (of all 16 kinds), and a number of operations that has no next.
record=$(find "$where/flight" -name '*.flight')
mkdir "$where/linked"
ln -s "$record" "$where/linked/link.flight"
"$admin" -g left events --looks 0 --flight "$where/linked" >"$where/seen" && wrong "events follows a link: $(cat "$where/seen")"
at=224
while [ $at -lt 480 ]; do
	printf '\033[31mred\000' | dd of="$record" bs=1 seek=$at conv=notrunc 2>/dev/null
	at=$((at + 16))
done
for form in --looks=0 --json; do
	"$admin" -g left events $form --flight "$where/flight" >"$where/seen" || wrong "events of a record that lies: code $?"
	grep -q '?\[31mred' "$where/seen" || wrong "events $form: no clean name: $(cat "$where/seen")"
	grep -q "$(printf '\033')" "$where/seen" && wrong "events $form prints what a terminal obeys"
done
printf '\377\377\377\377\377\377\377\377' | dd of="$record" bs=1 seek=640 conv=notrunc 2>/dev/null
timeout 100 "$admin" -g left events --looks 0 --flight "$where/flight" >"$where/seen" || wrong "events of a record without a last operation: code $?"

"$admin" doctor >"$where/seen" || wrong "doctor: code $?: $(cat "$where/seen")"
grep -q '^good  store  *answers' "$where/seen" || wrong "doctor does not speak of the store: $(cat "$where/seen")"
# shellcheck disable=SC3045
grep -q '^good  store use' "$where/seen" || wrong "doctor does not use the store: $(cat "$where/seen")"
redis-cli -s "$where/store" keys 'covey:{doctor*' | grep -q doctor && wrong "doctor left something in the store"
# A user without a permission that only a part of a group's calls needs; the socket of another user.
redis-cli -s "$where/store" acl setuser default -pexpire >/dev/null
"$admin" doctor >"$where/seen"
[ $? = 2 ] || wrong "doctor without PEXPIRE: not code 2"
grep -q '^bad   store use .*may not run the command PEXPIRE: grant +pexpire' "$where/seen" || wrong "doctor does not name PEXPIRE: $(cat "$where/seen")"
redis-cli -s "$where/store" acl setuser default +pexpire >/dev/null
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	chmod 755 "$where"
	chmod 700 "$where/store"
	said=$(setpriv --reuid 65534 --clear-groups "$admin" status 2>&1)
	case $said in
	*"belongs to uid 0 and has mode 0700, this process runs as uid 65534"*) ;;
	*) wrong "another user's socket: $said" ;;
	esac
	chmod 777 "$where/store"
fi
# shellcheck disable=SC3045 # every sh of Linux has -n
(ulimit -n 60 && "$admin" doctor >"$where/seen")
[ $? = 2 ] || wrong "doctor with few descriptors: not code 2"
grep -q '^bad   descriptors' "$where/seen" || wrong "doctor does not see few descriptors"
grep -q -e '-> ulimit -n' "$where/seen" || wrong "doctor does not say what to change"
# limit NAME VALUE VERDICT CHECK TEXT: what doctor says under `prlimit --NAME=VALUE`
limit()
{
	prlimit "--$1=$2" "$admin" doctor >"$where/seen"
	code=$?
	[ "$3" != bad ] || [ $code = 2 ] || wrong "doctor under $1 $2: code $code"
	grep -q "^$3  *$4  *.*$5" "$where/seen" || wrong "$1 $2: no $4 in: $(cat "$where/seen")"
}

limit fsize 2097152 bad 'file size' '2097152 bytes, and a window has 4294967296'
if prlimit --as=4096000000 "$admin" --version >/dev/null 2>&1; then
	limit as 4096000000 bad addresses 'ulimit -v is 4000000 KiB'
	limit data 1024000000 look 'private memory' '1000000 KiB'
else
	echo "limits of addresses and of private memory are not looked at: a sanitizer takes more addresses than that"
fi
limit nproc 20 bad threads '20 may run'
limit stack 524288 good stack '512 KiB'
TMPDIR=/nowhere "$admin" doctor >"$where/seen"
grep -q '^look  directory  */nowhere: No such' "$where/seen" || wrong "doctor does not see TMPDIR"
COVEY_WORLD=2 taskset -c "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')" "$admin" doctor >"$where/seen"
grep -q '^look  cores  *1 of' "$where/seen" || wrong "doctor counts the cores of the machine: $(cat "$where/seen")"
COVEY_STORE="redis+unix://$where/none" "$admin" doctor --json >"$where/seen"
[ $? = 2 ] || wrong "doctor without a store: not code 2"
grep -q '"verdict": "bad"' "$where/seen" || wrong "doctor --json: $(cat "$where/seen")"
exit $failed
