#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts that both have docker0 with one address, first in the list and without carrier; a bridge of containers with
# carrier and one address on both, before the interface that they share: interfaces.sh JOB EP-RUN EP-ADMIN. Without a
# setting, and with each kind of it, the two find each other; ep-run takes the right address for its store, and doctor
# says which and why. All in a network of our own.
set -eu
if [ "${1-}" != inside ]; then
	if ! unshare --net --mount true 2>/dev/null || ! command -v ip >/dev/null || ! command -v redis-server >/dev/null; then
		echo "skipped: this needs root, network namespaces, ip and redis-server"
		exit 77
	fi
	exec unshare --net --mount --propagation private sh "$0" inside "$@"
fi
job=$2 run=$3 admin=$4
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_INTERFACE
export COVEY_HANG_MS=20000 COVEY_LINK_MS=5000 # a machine under load is no death
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip link set lo up
ip link add hosts type bridge
ip address add 10.78.0.1/24 dev hosts
ip link set hosts up
n=10
for host in alpha beta; do
	ip netns add $host
	ip -n $host link set lo up
	for bridge in docker0/172.17.0.1 br-0af1/172.17.1.1; do
		ip -n $host link add ${bridge%/*} type bridge
		ip -n $host address add ${bridge#*/}/24 dev ${bridge%/*}
		ip -n $host link set ${bridge%/*} up
	done
	ip -n $host link add inner type veth peer name outer
	ip -n $host link set outer master br-0af1 up
	ip -n $host link set inner up
	ip -n $host link add gone type veth peer name other
	ip -n $host link set gone master docker0 up
	ip -n $host link del gone
	until ip -n $host link show docker0 | grep -q NO-CARRIER; do :; done # the kernel says so later
	ip link add $host type veth peer name eth0 netns $host
	ip link set $host master hosts up
	ip -n $host address add 10.78.0.$n/24 dev eth0
	ip -n $host link set eth0 up
	n=$((n + 1))
done
dir=$(mktemp -d)
server=
finish() {
	[ -z "$server" ] || kill "$server"
	rm -rf "$dir"
}
trap finish EXIT
redis-server --port 6399 --bind 10.78.0.1 --protected-mode no --save '' --dir "$dir" >/dev/null &
server=$!
until redis-cli -h 10.78.0.1 -p 6399 ping >/dev/null 2>&1; do kill -0 "$server"; done

# both NAME SETTING: a rank on each host; both must see the sum of two.
both() {
	export COVEY_STORE=redis://10.78.0.1:6399 COVEY_GROUP="$1" WORLD_SIZE=2 COVEY_JOIN_MS=90000 COVEY_INTERFACE="$2"
	RANK=0 COVEY_HOST=alpha ip netns exec alpha "$job" >"$dir/0" 2>&1 &
	first=$!
	RANK=1 COVEY_HOST=beta ip netns exec beta "$job" >"$dir/1" 2>&1 || true
	wait $first || true
	unset COVEY_STORE COVEY_GROUP WORLD_SIZE COVEY_JOIN_MS COVEY_INTERFACE
	for rank in 0 1; do
		grep -q '^sum 2 mask 3 ' "$dir/$rank" || { echo "COVEY_INTERFACE=$2:"; cat "$dir/0" "$dir/1"; exit 1; }
	done
}
both plain ''
both name eth0
both begin eth
both exact =eth0
both net 10.0.0.0/8
both except '^docker,br-,lo'
# The first address that is named leads nowhere on either host: the next one is tried.
both order docker0,br-0af1,eth0

said=$(ip netns exec alpha "$admin" doctor || true)
echo "$said" | grep interfaces
echo "$said" | grep -q 'interfaces *eth0 10.78.0.10 is told first.*docker0 172.17.0.1 (no carrier)' || exit 1
said=$(ip netns exec alpha env COVEY_INTERFACE=ens "$admin" doctor || true)
echo "$said" | grep -q '^bad *interface.*COVEY_INTERFACE=ens' || { echo "$said"; exit 1; }

# ep-run on alpha, with a rank on each host: the store is where beta reaches it.
cat >"$dir/launch" <<'END'
#!/bin/sh
host=$1
shift
exec nsenter --net="/run/netns/$host" "$@"
END
chmod +x "$dir/launch"
ip netns exec alpha "$run" -n 2 --hosts alpha,beta --launch "$dir/launch {host}" -- "$job" >"$dir/run" 2>&1 || { cat "$dir/run"; exit 1; }
grep -q '\[1\] sum 2 mask 3 host beta' "$dir/run" || { cat "$dir/run"; exit 1; }
