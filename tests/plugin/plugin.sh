#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program loads the library late, behind others that have taken the room for static TLS, and unloads it while its threads
# are there. plugin.sh HOST LIBRARY EP-RUN HOG...
set -u
host=$1 library=$2 run=$3
shift 3

"$host" "$library" 0 "$@" || { echo "the library cannot be loaded behind others"; exit 1; }
if readelf -dW "$library" | grep -q STATIC_TLS; then
	echo "$library has variables of threads that must stand in static TLS"
	exit 1
fi
readelf -dW "$library" | grep -q NODELETE || { echo "$library can be unmapped under its threads"; exit 1; }
command -v redis-server >/dev/null || { echo "skipped, but for the loading: no redis-server"; exit 77; }
unset COVEY_STORE COVEY_GROUP COVEY_RANK COVEY_WORLD COVEY_MAX_RANKS COVEY_HOST COVEY_CREATE
out=$(timeout 100 "$run" -n 2 -- "$host" "$library" 5 "$@" 2>&1) || { echo "code $?: $out"; exit 1; }
[ "$(echo "$out" | grep -c '5 cycles')" = 2 ] || { echo "$out"; exit 1; }
