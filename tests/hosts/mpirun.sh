#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that Open MPI's mpirun starts find each other with COVEY_STORE alone: mpirun.sh JOB
# mpirun -x hands on the address of the store; rank and number of ranks are those of OMPI_COMM_WORLD_*.
set -u
job=$1
run=$(command -v mpirun.openmpi || command -v mpirun)
if [ -z "$run" ] || ! "$run" --version 2>/dev/null | grep -q -e 'Open MPI' -e OpenRTE; then
	echo "skipped: no mpirun of Open MPI"
	exit 77
fi
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
where=$(mktemp -d)
redis-server --port 0 --unixsocket "$where/store" --save '' --appendonly no --dir "$where" >"$where/log" &
store=$!
trap 'kill $store; wait $store; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
tries=0
while [ ! -S "$where/store" ]; do
	tries=$((tries + 1))
	[ $tries -lt 1200 ] || { echo "the store does not start"; cat "$where/log"; exit 1; }
	sleep 0.05
done

unset COVEY_GROUP COVEY_RANK COVEY_WORLD COVEY_MAX_RANKS RANK WORLD_SIZE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 COVEY_HOST=here
export COVEY_HANG_MS=20000 # a machine under load is no death
out=$(timeout 200 "$run" --oversubscribe -x "COVEY_STORE=redis+unix://$where/store" -x COVEY_HOST -n 3 "$job" 2>&1)
code=$?
echo "$out"
[ $code = 0 ] || { echo "mpirun ended with $code"; exit 1; }
[ "$(echo "$out" | grep -c '^sum 3 mask 7 host here$')" = 3 ] || { echo "not three ranks had the sum"; exit 1; }
