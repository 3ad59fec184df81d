#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a user finds once covey is installed: the examples build there, by pkg-config and by find_package, and do what
# they say; ep-chaos finds its plans; pages are there; and `uninstall` leaves the place as it was.
# installed.sh SOURCE BUILD CC CXX|- LIBDIR CMAKE
set -eu
source=$1 build=$2 cc=$3 cxx=$4 libdir=$5 cmake=$6 failed=0
where=$(mktemp -d)
# What was installed from this build folder before stays removable.
[ ! -e "$build/installed.txt" ] || mv "$build/installed.txt" "$where/installed.txt"
# shellcheck disable=SC2317 # the trap calls it
put_back()
{
	rm -f "$build/installed.txt"
	[ ! -e "$where/installed.txt" ] || mv "$where/installed.txt" "$build/installed.txt"
	rm -rf "$where"
}
trap put_back EXIT INT TERM

wrong()
{
	echo "$*"
	failed=1
}

# A place where others have put things.
prefix=$where/usr
mkdir -p "$prefix/bin" "$prefix/share/covey" "$prefix/share/empty"
echo theirs >"$prefix/bin/ep-theirs"
echo theirs >"$prefix/share/covey/theirs"
before=$(cd "$prefix" && find . | sort)
"$cmake" --install "$build" --prefix "$prefix" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }

doc=$(find "$prefix" -type d -path '*/doc/covey')
for page in LICENSE CHANGELOG.md start/from-nccl.md reference/limits.md guide/tuning.md design/PROTOCOL.md \
	examples/hello.c examples/Makefile deploy/grafana/covey.json deploy/prometheus/alerts.yml deploy/kubernetes/serve.yaml deploy/slurm/job.sbatch; do
	[ -s "$doc/$page" ] || wrong "$page is not installed"
done
for plan in "$source"/tests/chaos/plans/*; do
	cmp -s "$plan" "$prefix/share/covey/chaos/$(basename "$plan")" || wrong "$plan is not installed"
done
[ -s "$prefix/$libdir/covey/libchaos-clock.so" ] || wrong "the clock of plan store-clock is not installed"

if command -v redis-server >/dev/null; then
	(cd "$where" && "$prefix/bin/ep-chaos" --plan kill-one --seconds 1 >"$where/log" 2>&1) || { wrong "ep-chaos:"; cat "$where/log"; }
fi

export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
cp -r "$doc/examples" "$where/by-make"
CFLAGS=-Werror LDLIBS="-Wl,-rpath,$prefix/$libdir" make -s -C "$where/by-make" CC="$cc" >"$where/log" 2>&1 ||
	{ wrong "the examples do not build by pkg-config:"; cat "$where/log"; }
if ! "$cmake" -S "$doc/examples" -B "$where/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
	-DCMAKE_C_FLAGS=-Werror >"$where/log" 2>&1 || ! "$cmake" --build "$where/by-cmake" >>"$where/log" 2>&1; then
	wrong "the examples do not build by find_package:"
	cat "$where/log"
fi
for made in by-make by-cmake; do
	code=0
	sh "$source/tests/install/examples.sh" "$prefix/bin/ep-run" "$where/$made" '' || code=$?
	[ $code = 0 ] || [ $code = 77 ] || wrong "the examples that were built $made fail"
done
if [ "$cxx" != - ]; then
	# shellcheck disable=SC2046
	printf '#include <covey.h>\nint main() { covey_config c = COVEY_CONFIG_INIT; c.store = "x"; return covey_join(&c, nullptr) == 0; }\n' |
		$cxx -std=c++17 -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags covey) -x c++ - -x none -o "$where/cxx" \
			$(pkg-config --libs covey) || wrong "a program in C++17 does not build"
fi

# Installed once more over itself, and staged for a package; then taken away: what is left is what was there.
DESTDIR="$where/stage" "$cmake" --install "$build" --prefix "$prefix" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }
"$cmake" --install "$build" --prefix "$prefix" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }
"$cmake" --build "$build" --target uninstall >"$where/log" 2>&1 || { wrong "uninstall:"; cat "$where/log"; }
[ -e "$where/stage$prefix/bin/ep-run" ] || wrong "uninstall takes what was staged for a package"
after=$(cd "$prefix" && find . | sort)
[ "$before" = "$after" ] || { wrong "uninstall leaves, or took what it should have left:"; echo "$after"; }
"$cmake" --build "$build" --target uninstall >"$where/log" 2>&1 && wrong "a second uninstall has nothing to do, and does not say so"
grep -q 'Nothing was installed' "$where/log" || { wrong "a second uninstall:"; cat "$where/log"; }
exit $failed
