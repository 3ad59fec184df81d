#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job of ep-moe in every preset: a rank is killed and replaced, and every row of every step is checked. A job that
# grows says how long its longest step was, and how long steps were before.
# moe_presets.sh EP-MOE
set -u
moe=$1 failed=0
command -v redis-server >/dev/null || { echo "skipped: no redis-server"; exit 77; }
unset COVEY_STORE COVEY_GROUP COVEY_MAX_RANKS COVEY_HOST COVEY_TRANSPORT COVEY_WORLD COVEY_RANK RANK
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# job CODE PATTERN OPTIONS...: it ends with that code, and says that
job()
{
	want=$1 pattern=$2
	shift 2
	"$moe" "$@" >"$log" 2>&1
	code=$?
	if [ $code != "$want" ] || ! grep -q -e "$pattern" "$log"; then
		cat "$log"
		echo "FAILED: $*: code $code, not $want, or never \"$pattern\""
		failed=1
	fi
}

for preset in ll compact flat win ht; do
	job 0 "preset $preset," --preset $preset --ranks 3 --recover --kill 1@8 --steps 30 --seed 5
done
job 0 "longest step of the others [0-9.]* ms, in the steps before [0-9.]* ms (median)" --extend 5@20 --steps 40 --seed 5
for option in "--kill 1@8" "--extend 5@20" --recover --demo; do
	# shellcheck disable=SC2086
	RANK=0 job 64 "for ranks that ep-moe starts itself" $option
done
job 64 "ll, compact, flat, win, mesh or ht is needed" --preset deep
for preset in compact ht; do
	job 64 "preset $preset: on devices a row is of one expert" --preset $preset --devices 1
done
exit $failed
