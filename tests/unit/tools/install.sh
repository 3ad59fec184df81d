#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A project of a user (tests/install/example) builds against the installed tree, which was moved after the
# installation, by pkg-config and by find_package, with the shared library and with the static one; each of the four
# programs runs, as a group where there is a store. install.sh SOURCE BUILD CC LIBDIR CMAKE
set -eu
source=$1 build=$2 cc=$3 libdir=$4 cmake=$5
where=$(mktemp -d)
# What this installs is no installation that `uninstall` should know of.
[ ! -e "$build/installed.txt" ] || cp "$build/installed.txt" "$where/installed.txt"
# shellcheck disable=SC2317 # the trap calls it
put_back()
{
	rm -f "$build/installed.txt"
	[ ! -e "$where/installed.txt" ] || mv "$where/installed.txt" "$build/installed.txt"
	rm -rf "$where"
}
trap put_back EXIT INT TERM

"$cmake" --install "$build" --prefix "$where/first" >"$where/log" || { cat "$where/log"; exit 1; }
mv "$where/first" "$where/usr"
export PKG_CONFIG_PATH="$where/usr/$libdir/pkgconfig" LD_LIBRARY_PATH="$where/usr/$libdir"

cp -r "$source/tests/install/example" "$where/by-pkg-config"
make -s -C "$where/by-pkg-config" CC="$cc"
"$cmake" -S "$source/tests/install/example" -B "$where/by-cmake" -DCMAKE_PREFIX_PATH="$where/usr" \
	-DCMAKE_C_COMPILER="$cc" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }
"$cmake" --build "$where/by-cmake" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }

[ "$("$source/tools/wheel" --help | grep -c -e --no-cuda)" != 0 ] || { echo "tools/wheel --help does not say --no-cuda"; exit 1; }
code=0
"$source/tools/wheel" --nonsense 2>/dev/null || code=$?
[ $code = 64 ] || { echo "tools/wheel --nonsense: code $code"; exit 1; }

# The shared library needs no package of what it is linked with, and gives none of their flags.
flags=$(env -u PKG_CONFIG_PATH PKG_CONFIG_LIBDIR="$PKG_CONFIG_PATH" pkg-config --cflags --libs covey)
for flag in $flags; do
	case $flag in
	-I"$where"/* | -L"$where"/* | -lcovey) ;;
	*) echo "pkg-config gives $flag"; exit 1 ;;
	esac
done

version="covey $(pkg-config --modversion covey)"
for program in "$where"/by-*/example-shared "$where"/by-*/example-static; do
	case $program in
	*static) want=0 ;;
	*) want=1 ;;
	esac
	needs=$(readelf -d "$program" | grep -c 'NEEDED.*libcovey\.so\.0\.2' || true)
	[ "$needs" = $want ] || { echo "$program names libcovey.so.0.2 $needs times"; exit 1; }
	[ "$("$program")" = "$version" ] || { echo "$program does not say $version"; exit 1; }
	if command -v redis-server >/dev/null; then
		sums=$("$where/usr/bin/ep-run" -n 2 -- "$program" | grep -c 'sum 2$' || true)
		[ "$sums" = 2 ] || { echo "$program: $sums of 2 ranks had the sum 2"; exit 1; }
	else
		echo "no redis-server: $program was only started"
	fi
done

# NCCL's functions, where they were built: out of the loader's way, and with the libcovey of that tree.
nccl=$where/usr/$libdir/covey/nccl/libnccl.so.2
if [ -e "$build/covey/nccl/libnccl.so.2" ]; then
	[ -e "$nccl" ] || { echo "libnccl.so.2 is not installed in $libdir/covey/nccl"; exit 1; }
	LD_LIBRARY_PATH='' ldd "$nccl" | grep -q "libcovey.so.0.2 => $where" || { echo "libnccl.so.2 finds no libcovey"; exit 1; }
fi

# The static library too shows covey_* alone.
foreign=$(nm --defined-only --extern-only "$where/usr/$libdir/libcovey.a" | awk 'NF == 3 && $3 !~ /^covey_/ { print $3 }')
[ -z "$foreign" ] || { echo "libcovey.a shows: $foreign"; exit 1; }

unset LD_LIBRARY_PATH
for tool in "$where"/usr/bin/ep-*; do
	# Found through the run path of the tool itself.
	"$tool" --help >/dev/null || { echo "$tool does not start"; exit 1; }
done
