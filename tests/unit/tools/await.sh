# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# For the tests of tools in shell, which read it with `.`: what was found wrong, and waits with a bound.

wrong()
{
	echo "$*"
	failed=1
}

# until_has FILE PATTERN: the file has it, within a minute
until_has()
{
	tries=0
	until grep -q -e "$2" "$1" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || { wrong "never \"$2\" in $1:"; cat "$1"; exit 1; }
		sleep 0.05
	done
}
