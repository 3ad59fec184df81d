#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ep-admin top of real groups: rates, who is waited for, a rank that is gone; on a terminal, in a pipe, as JSON.
# top.sh EP-ADMIN EP-RUN WAITER
set -u
admin=$1 run=$2 waiter=$3 failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
where=$(mktemp -d)
redis-server --port 0 --unixsocket "$where/store" --save '' --appendonly no --dir "$where" >"$where/log" &
store=$!
group='' other='' quiet=''
trap 'kill -CONT $quiet $store 2>/dev/null; kill $store $group $other 2>/dev/null; wait $store $group $other 2>/dev/null; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
unset COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_TRANSPORT COVEY_WORLD COVEY_STORE_PASSWORD
export COVEY_STORE="redis+unix://$where/store" COVEY_HANG_MS=60000 COVEY_LEASE_MS=60000
export COVEY_LINK_MS=8000 # a machine under load is no death

. "$(dirname "$0")/await.sh"

until_has "$where/log" "Ready to accept\|ready to accept"

# begin NAME ARGS...: a group of three that goes on until $where/stop. Other tests may run at once: its name is our own.
begin()
{
	name=$1-$$
	shift
	rm -f "$where/stop" "$where/out"
	"$run" -g "$name" -n 3 "$@" -- "$waiter" "$where/stop" "$where/hold" >"$where/out" 2>&1 &
	group=$!
	for rank in 0 1 2; do
		until_has "$where/out" "^\[$rank\] sum 3"
	done
}

# until_shows PATTERN ARGS...: a table of top has it, within a minute
until_shows()
{
	pattern=$1 tries=0
	shift
	until "$admin" -g "$name" top --once "$@" >"$where/seen" 2>&1 && grep -q -e "$pattern" "$where/seen"; do
		tries=$((tries + 1))
		[ $tries -lt 50 ] || { wrong "top $*: never \"$pattern\":"; cat "$where/seen"; exit 1; }
	done
}

# drawn ROWS TEXT: on a terminal with so many rows of 40 columns each table has room, and a line that begins with TEXT
drawn()
{
	command -v python3 >/dev/null || return
	python3 - "$admin" "$name" "$@" >"$where/seen" 2>&1 <<'END' || wrong "top on a terminal: $(cat "$where/seen")"
import fcntl, os, pty, struct, sys, termios

rows = int(sys.argv[3])
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 40, 0, 0))
    os.execv(sys.argv[1], [sys.argv[1], "-g", sys.argv[2], "top", "--looks", "1"])
text = b""
try:
    while part := os.read(fd, 65536):
        text += part
except OSError:
    pass
os.waitpid(pid, 0)
tables = text.decode().split("\x1b[H")[1:]
assert len(tables) == 2, tables
for table in tables:
    assert table.endswith("\x1b[J"), table
    lines = table[:-3].replace("\r", "").splitlines()
    assert len(lines) < rows, lines
    assert all(line.endswith("\x1b[K") and len(line) <= 43 for line in lines), lines
    assert any(line.startswith(sys.argv[4]) for line in lines), lines
END
}

# Ranks on one host and on several are seen alike.
for hosts in '' '--local --hosts a,b,c'; do
	# shellcheck disable=SC2086
	begin "traffic${hosts:+-far}" $hosts
	until_shows '^2  *active  *1  *[1-9][0-9.]* k\? *[1-9][0-9.]* k\?B  *[0-9]*%'
	grep -q '^RANK  *STATE  *EPOCH  *OPS/S  *BYTES/S  *WAIT  *WAITS FOR  *FAILED  *BEAT  *HOST$' "$where/seen" ||
		wrong "no head: $(cat "$where/seen")"
	host=c
	[ -n "$hosts" ] || host=$(uname -n)
	grep -q "^2  *active .* $host\$" "$where/seen" || wrong "rank 2 is not on $host: $(cat "$where/seen")"
	grep -q "group $name  phase run  epoch 1  active 3  pending 0  gone 0" "$where/seen" ||
		wrong "no line about the group: $(cat "$where/seen")"
	grep -q '^all  *[1-9]' "$where/seen" || wrong "no total: $(cat "$where/seen")"

	# Rank 1 does not call: the others wait for it, and are named.
	: >"$where/hold.1"
	until_shows '^rank 1 is waited for by 2 ranks, the longest for [0-9.]* s: 0 2$'
	until_shows '^0  *active .* 1, [1-9][0-9.]* s  *0 '
	until_shows '^0  *active  *1  *0  *0 B  *100%  *1, '
	until_shows '^1  *active  *1  *0  *0 B  *0%  *-  *0 '
	until_shows '"rank":1,.*"covey_awaited_rank":-1,.*"waiters":2,"longest_wait_s":' --json
	drawn 5 '3 more ranks' # no room for the line about rank 1
	rm "$where/hold.1"
	until_shows '^1  *active  *1  *[1-9]'
	: >"$where/stop"
	wait $group || { wrong "$name ended badly:"; cat "$where/out"; }
done

# A member that stops is seen as silent, whatever the clocks say: its numbers go. (It is not removed: COVEY_HANG_MS.)
begin silent
until_shows '^2  *active  *1  *[1-9]'
"$admin" -g "$name" top --json --interval 500 >"$where/stream" 2>&1 &
other=$!
until_has "$where/stream" '"rank":2,"state":"active",[^}]*"covey_epoch":1'
quiet=$("$admin" -g "$name" events --json | tr -d ' \n' | sed -n 's/.*{"rank":2,"pid":\([0-9]*\),.*/\1/p')
kill -STOP "$quiet"
until_has "$where/stream" '"rank":2,"state":"active","inc":[0-9]*,"host":"[^"]*","beat_age_ms":[0-9]*\(}\|,"waiters"\)'
kill -CONT "$quiet"
quiet=''
kill $other
wait $other 2>/dev/null
other=''
: >"$where/stop"
wait $group || { wrong "$name ended badly:"; cat "$where/out"; }

# The tables of a stream, one a line for programs; a rank dies between two of them, and the others go on.
begin killed
"$admin" -g "$name" top --json --interval 200 >"$where/stream" 2>&1 &
other=$!
until_has "$where/stream" '"active":3,.*"gone":0,'
victim=$("$admin" -g "$name" events --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
kill -KILL "$victim"
until_has "$where/stream" '"epoch":2,"active":2,"pending":0,"gone":1,'
until_shows '^0  *hole  *-  *-  *-  *-  *-  *-  *-  *-$'
until_shows '^1  *active  *2  *[1-9]'
grep -qv '^{"group":"killed-[0-9]*",.*}$' "$where/stream" && wrong "not a line of JSON for each look: $(grep -v '^{"gr.*}$' "$where/stream")"
kill $other
wait $other 2>/dev/null
other=''

# On a terminal it draws over the last table.
drawn 7 '0     hole'
: >"$where/stop"
wait $group
"$admin" -g none top --once >"$where/seen" 2>&1
[ $? = 2 ] || wrong "top of no group: not code 2"
grep -q none "$where/seen" || wrong "top of no group does not name it: $(cat "$where/seen")"
"$admin" -g none top --once --json | grep -q '^{"group":"none","error":".*","time":".*"}$' || wrong "top --json of no group"

# A store that stops answering gives exit code 4.
kill -STOP $store
"$admin" -g "$name" top --once >"$where/seen" 2>&1
[ $? = 4 ] || wrong "top without a store: $(cat "$where/seen")"
kill -CONT $store

# said CODE TEXT ARGS...: a wrong word gets that code and a text that says what would be right
said()
{
	code=$1 text=$2
	shift 2
	"$admin" "$@" >"$where/seen" 2>&1
	[ $? = "$code" ] || wrong "ep-admin $*: not code $code"
	grep -q -e "$text" "$where/seen" || wrong "ep-admin $*: no \"$text\": $(cat "$where/seen")"
}

said 1 '1s: a number from 1 to 86400000 is needed' top --interval 1s
said 1 '0: a number from 1 to 86400000 is needed' top --interval 0
said 1 '--once belongs to watch and top' status --once
said 1 '--looks 0: top needs at least one look' top --looks 0
said 1 'top takes no rank' top 3
exit $failed
