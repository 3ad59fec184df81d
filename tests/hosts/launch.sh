#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ep-run over two hosts, `ip netns exec {host}` as its launcher: launch.sh EP_RUN JOB. Namespaces and their names live in
# a network and a /run/netns of our own, so nothing is left on the machine, however this ends.
set -eu
if [ "${1-}" != inside ]; then
	if ! unshare --net --mount true 2>/dev/null || ! command -v ip >/dev/null; then
		echo "skipped: this needs root, network namespaces and ip"
		exit 77
	fi
	exec unshare --net --mount --propagation private sh "$0" inside "$@"
fi
run=$2 job=$3
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST
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
	ip link add $host type veth peer name eth0 netns $host
	ip link set $host master hosts up
	ip -n $host link set lo up
	ip -n $host address add 10.78.0.$n/24 dev eth0
	ip -n $host link set eth0 up
	n=$((n + 1))
done

# The address of the store is found, each rank is in its namespace, and the ranks reach store and each other.
out=$("$run" -n 4 --hosts alpha,beta --launch 'ip netns exec {host}' -- sh -c \
	"echo at \$(ip -4 -o address show dev eth0 | grep -o '10\.78\.0\.1[01]') of \$COVEY_HOST; exec $job")
echo "$out"
for want in '\[0\] at 10.78.0.10 of alpha' '\[1\] at 10.78.0.10 of alpha' '\[2\] at 10.78.0.11 of beta' \
	'\[3\] at 10.78.0.11 of beta' '\[0\] sum 4 mask f host alpha' '\[3\] sum 4 mask f host beta'; do
	echo "$out" | grep -q "^$want\$" || { echo "missing: $want"; exit 1; }
done

# A rank of the far host dies: the others go on, and ep-run forgives it.
out=$(JOB_VICTIM=3 "$run" -n 4 --hosts alpha,beta --launch 'ip netns exec {host}' --address 10.78.0.1 -- "$job" 2>&1)
echo "$out"
for want in '\[0\] sum 3 mask 7 host alpha' '\[2\] sum 3 mask 7 host beta' '.*rank 3 was killed by signal 9.*'; do
	echo "$out" | grep -q "^$want\$" || { echo "missing: $want"; exit 1; }
done
