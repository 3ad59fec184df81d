#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The committed pages are what the registries print now, and BENCHMARKS.md is what docs/figures gives; every option,
# command and call has its place in the man pages and the completion, and those are well formed.
# docs.sh SOURCE MANUAL MAN-FOLDER|- TOOL...
# To renew the pages: docs.sh SOURCE MANUAL --update
set -eu
source=$1 manual=$2 man=$3
shift 3
failed=0
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT INT TERM

for page in reference/environment operate/errors reference/limits guide/losses operate/metrics; do
	mkdir -p "$where/${page%/*}"
	"$manual" "${page#*/}" >"$where/$page.md"
	if [ "$man" = --update ]; then
		cp "$where/$page.md" "$source/docs/$page.md"
	elif ! diff -u "$source/docs/$page.md" "$where/$page.md"; then
		echo "docs/$page.md is stale: sh tests/unit/tools/docs.sh SOURCE MANUAL --update"
		failed=1
	fi
done
if command -v python3 >/dev/null; then
	"$source/tests/bench/tables" --check || failed=1
else
	echo "no python3: the tables of BENCHMARKS.md are not compared with docs/figures"
fi
case $man in
- | --update) exit $failed ;;
esac

missing()
{
	echo "$1 is missing in $2"
	failed=1
}

# The registry has every variable that is read anywhere: who sets one must not be told that there is none.
# shellcheck disable=SC2013 # words without blanks
for name in $(grep -rhoE 'getenv\("COVEY_[A-Z_]+"|\$\{?COVEY_[A-Z_]+' "$source/src" "$source/tools" "$source/tests" \
	--include='*.c' --include='*.cu' --include='*.cuh' --include='*.h' --include='*.sh' --include=run --include=vm \
	--include=ci --include=hwcheck --include=demo | grep -oE 'COVEY_[A-Z_]+' | sort -u); do
	grep -q "^|.* \`$name\` |" "$where/reference/environment.md" ||
		missing "$name" "docs/reference/environment.md (src/base/config.h)"
done

for tool in "$@"; do
	name=$(basename "$tool")
	page=$man/man1/$name.1
	"$tool" --help >"$where/help"
	"$tool" --version | grep -q "^$name [0-9.]*$" || missing "--version" "$tool"
	options=$(grep -E '^ +-' "$where/help" | grep -oE -e '--[a-z][a-z-]+' | sort -u)
	[ -n "$options" ] || missing "any option of $name" "its --help"
	for option in $options; do
		grep -q -e "$(echo "$option" | sed 's/-/\\\\-/g')" "$page" || missing "$option" "$page"
		grep -q -e "[\" ]${option}[\" ]" "$man/completions/$name" || missing "$option" "$man/completions/$name"
	done
	for section in NAME SYNOPSIS OPTIONS 'EXIT STATUS' 'SEE ALSO'; do
		grep -q "^\.SH $section\$" "$page" || missing "section $section" "$page"
	done
done
for call in $(grep -h '^COVEY_API ' "$source"/include/*.h | grep -oE 'covey_[a-z_]+\(' | tr -d '('); do
	[ -e "$man/man3/$call.3" ] || missing "$call.3" "$man/man3"
	cat "$man"/man3/covey*.3 | grep -q "^\.B .*$call(" || missing "$call" "$man/man3"
done
for word in COVEY_STORE COVEY_ERR_FENCED allgather 16384; do
	grep -q "$word" "$man/man7/covey.7" || missing "$word" "$man/man7/covey.7"
done

if command -v groff >/dev/null; then
	for page in "$man"/man1/*.1 "$man"/man3/covey.3 "$man"/man3/covey_ep.3 "$man"/man3/covey_device.3 "$man"/man3/covey_admin.3 "$man"/man7/*.7; do
		groff -man -Tascii -ww -z "$page" >"$where/said" 2>&1 || failed=1
		[ ! -s "$where/said" ] || { cat "$where/said"; failed=1; }
	done
else
	echo "no groff: the form of the pages is not checked"
fi
if command -v bash >/dev/null; then
	cat >"$where/ask" <<'END'
. "$1"
COMP_WORDS=(ep-run --restart = on) COMP_CWORD=3
_ep_run
echo "${COMPREPLY[*]}"
COMP_WORDS=(ep-run --str) COMP_CWORD=1
_ep_run
echo "${COMPREPLY[*]}"
END
	said=$(bash "$where/ask" "$man/completions/ep-run" | tr '\n' ' ')
	[ "$said" = "on-failure --strict " ] || { echo "completion of ep-run gave: $said"; failed=1; }
fi
exit $failed
