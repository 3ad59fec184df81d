#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks of ep-moe die where experts have several places: each of their own tokens is lost, and no other, all rows are
# right, and a replacement has its experts from the places that live. replicas.sh EP-MOE
set -u
moe=$1 failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

complain()
{
	cat "$log"
	echo "$*: FAILED"
	failed=1
}

line() # begin of a line of the table: its number
{
	sed -n "s/^  $1  *\([0-9]*\).*/\1/p" "$log"
}

job() # deaths, options...: all tokens that live come back whole
{
	deaths=$1
	shift
	timeout 100 "$moe" --steps 50 --experts 12 --tokens 16 "$@" >"$log" 2>&1 || complain "$*"
	[ "$(line 'tokens with some owners dead')" = 0 ] || complain "$*: tokens with some owners dead"
	[ "$(line 'tokens wrong')" = 0 ] || complain "$*: tokens wrong"
	# What survivors lost is in the last line of progress; the table adds steps that the dead did not report: two at most.
	grep '^step .* lost ' "$log" | tail -n 1 | grep -q 'lost 0 wrong 0' || complain "$*: survivors lost tokens"
	lost=$(line 'tokens lost')
	[ "${lost:-999}" -le $((deaths * 32)) ] || complain "$*: $lost tokens lost by $deaths deaths"
}

# The delay lets the others complete the dispatch, so that the death takes results along.
for transport in shm tcp; do
	job 1 --replicas 2 --kill 1@15 --transport $transport
	job 1 --replicas 2 --fault '2:kill@op:dispatch:15.put:2' --transport $transport
	job 1 --replicas 2 --fault '2:delay@op:combine:15.put:1:300ms;kill@op:combine:15.put:2' --transport $transport
	[ "$(line 'pairs done again')" = 1 ] || complain "a death that takes results along"
done
job 1 --replicas 2 --kill 0@15 --recover
[ "$(line 'experts moved . from the seed')" -gt 0 ] || complain "the replacement has its experts from the seed"
job 2 --ranks 5 --replicas 3 --kill 1@15 --kill 3@15 --recover --extend 6@40
# With one place each the same death costs tokens of all: the table can say so.
timeout 100 "$moe" --steps 50 --experts 12 --tokens 16 --kill 1@15 >"$log" 2>&1 || complain "one place each"
[ "$(line 'tokens with some owners dead')" -gt 0 ] || complain "one place each: no token lost an owner"
exit $failed
