#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A group whose store is one slot of a Redis Cluster: two masters and a replica. The URL names the master that does not
# serve the slot. Join, a death, a replacement, a planned failover, a killed master, a slot that moves; no epoch falls.
# cluster.sh EP-RUN EP-ADMIN STEADY
set -u
run=$1 admin=$2 steady=$3 failed=0 nodes=''
for program in redis-server redis-cli; do
	command -v $program >/dev/null || { echo "skipped: no $program"; exit 77; }
done
where=$(mktemp -d)
group=''
# shellcheck disable=SC2086
trap 'kill -KILL $group $nodes 2>/dev/null; wait $group $nodes 2>/dev/null; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_TRANSPORT COVEY_WORLD COVEY_STORE_PASSWORD
export COVEY_HANG_MS=10000 # a machine under load is no death

. "$(dirname "$0")/../unit/tools/await.sh"

# until_true WHAT COMMAND...: it succeeds within half a minute
until_true()
{
	what=$1 tries=0
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || { wrong "never: $what"; cat "$where"/out "$where"/*.log; exit 1; }
		sleep 0.05
	done
}

# ours PORT PID: the server at that port is that process
ours() { redis-cli -p "$1" info server 2>/dev/null | tr -d '\r' | grep -qx "process_id:$2"; }

# Starts a node at a port that is free, as the bus of the cluster 10000 above it is; the port into $port.
start()
{
	for port in $(seq $next 7 20999); do
		redis-server --port "$port" --bind 127.0.0.1 --cluster-enabled yes --cluster-config-file "$port.conf" --save '' \
			--appendonly no --dir "$where" --cluster-node-timeout 3000 --cluster-require-full-coverage no \
			>"$where/$port.log" 2>&1 &
		pid=$!
		until ours "$port" $pid || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
		kill -0 $pid 2>/dev/null && break
	done
	next=$((port + 7))
	eval "pid_$port=$pid"
	nodes="$nodes $pid"
}

on() { port=$1; shift; redis-cli -p "$port" "$@"; }

says() { port=$1 text=$2; shift 2; on "$port" "$@" | grep -q -e "$text"; }

next=$((11000 + $$ % 8000))
start && a=$port
start && b=$port
start && c=$port
slot=$(on $a cluster keyslot 'covey:{clustered}:g' | tr -dc 0-9)
[ "$slot" = "$(on $a cluster keyslot 'covey:{clustered}:n' | tr -dc 0-9)" ] || wrong "key and channel are in two slots"

# Until slots have a node, the error says what is wrong.
"$admin" -s "redis://127.0.0.1:$a" -g clustered status >"$where/seen" 2>&1
[ $? = 4 ] || wrong "a cluster without slots: not code 4"
grep -q "the store's cluster does not serve the group's slot: CLUSTERDOWN" "$where/seen" ||
	wrong "a cluster without slots: $(cat "$where/seen")"

on $b cluster addslots "$slot" >/dev/null
[ "$slot" = 0 ] || on $a cluster addslotsrange 0 $((slot - 1)) >/dev/null
[ "$slot" = 16383 ] || on $a cluster addslotsrange $((slot + 1)) 16383 >/dev/null
for port in $b $c; do on $a cluster meet 127.0.0.1 "$port" >/dev/null; done
for port in $a $b $c; do until_true "node $port knows all" says "$port" cluster_known_nodes:3 cluster info; done
for port in $a $b $c; do until_true "node $port is fine" says "$port" cluster_state:ok cluster info; done
until_true "a replica" says $c OK cluster replicate "$(on $b cluster myid)"
until_true "a replica in step" says $c master_link_status:up info replication
until_true "node a knows who serves the slot" says $a "MOVED $slot 127.0.0.1:$b" type 'covey:{clustered}:g'

export COVEY_STORE="redis://127.0.0.1:$a"
"$admin" -g clustered status >"$where/seen" 2>&1
grep -q 'no group clustered' "$where/seen" || wrong "a group that is not there: $(cat "$where/seen")"
"$admin" doctor >"$where/seen" 2>&1
grep -q '^good  store use' "$where/seen" || wrong "doctor: $(cat "$where/seen")"

"$run" -g clustered -n 3 --restart on-failure -- "$steady" "$where/stop" >"$where/out" 2>&1 &
group=$!
for rank in 0 1 2; do until_has "$where/out" "rank $rank epoch [0-9]* ranks 3"; done

# The epoch of the group, from the store.
epoch() { "$admin" -g clustered status 2>/dev/null | sed -n 's/.*phase run  epoch \([0-9]*\) .*/\1/p'; }

# die RANK: it is killed, and its replacement comes in
die()
{
	before=$(epoch)
	victim=$("$admin" -g clustered events --json | tr -d ' \n' | sed -n "s/.*{\"rank\":$1,\"pid\":\([0-9]*\),\"alive\":true.*/\1/p")
	backs=$(grep -c "rank $1 is back" "$where/out")
	kill -KILL "$victim"
	tries=0
	until [ "$(grep -c "rank $1 is back" "$where/out")" -gt "$backs" ]; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || { wrong "rank $1 never came back $2"; cat "$where"/out; exit 1; }
		sleep 0.05
	done
	after=$(epoch)
	[ "${after:-0}" -gt "${before:-0}" ] || wrong "epoch $after after $before $2"
}

die 1 "in the beginning"
keys=$(for port in $a $b; do on "$port" keys '*'; done | grep .)
[ "$keys" = 'covey:{clustered}:g' ] || wrong "not one key in the cluster: $keys"

on $c cluster failover >/dev/null
until_true "a planned failover" says $c role:master info replication
die 2 "after a planned failover"

until_true "a replica in step again" says $b master_link_status:up info replication
eval "kill -KILL \$pid_$c"
until_true "the replica takes over" says $b OK cluster failover takeover
until_true "a takeover" says $b role:master info replication
until_true "node a heard of it" says $a "MOVED $slot 127.0.0.1:$b" type 'covey:{clustered}:g'
die 1 "after the death of a master"

# The slot moves to the node that the URL names, with the key in it, as `redis-cli --cluster reshard` does it.
to=$(on $a cluster myid) from=$(on $b cluster myid)
on $a cluster setslot "$slot" importing "$from" >/dev/null
on $b cluster setslot "$slot" migrating "$to" >/dev/null
on $b migrate 127.0.0.1 $a 'covey:{clustered}:g' 0 5000 >/dev/null
for port in $a $b; do on "$port" cluster setslot "$slot" node "$to" >/dev/null; done
die 2 "after the slot has moved"
[ "$(on $a exists 'covey:{clustered}:g')" = 1 ] || wrong "the group is not where its slot is"

: >"$where/stop"
wait $group || { wrong "the run ended with code $?"; cat "$where/out"; }
group=''
grep 'sum [0-9]*, epoch' "$where/out" && wrong "a wrong sum, or an epoch that fell"
grep -i 'fenced' "$where/out" && wrong "somebody was fenced"
[ $failed = 0 ] || cat "$where/out"
exit $failed
