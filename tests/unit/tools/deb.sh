#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Debian package has everything that was installed, names what it needs, and its programs run from where it was
# unpacked. deb.sh BUILD CPACK
set -eu
build=$1 cpack=$2
command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb"; exit 77; }
command -v dpkg-shlibdeps >/dev/null || { echo "skipped: no dpkg-shlibdeps (dpkg-dev), so the package lacks its Depends"; exit 77; }
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT INT TERM

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$where" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }
package=$(echo "$where"/covey_*.deb)
failed=0
depends=$(dpkg-deb -f "$package" Depends)
for library in libc6 libhiredis libsodium; do
	case $depends in
	*$library*) ;;
	*) echo "Depends lacks $library: $depends"; failed=1 ;;
	esac
done
dpkg-deb -c "$package" >"$where/list"
for file in /bin/ep-run /bin/ep-admin /libcovey.so.0.2 /libcovey.a /include/covey.h /pkgconfig/covey.pc \
	/cmake/covey/coveyConfig.cmake /man1/ep-run.1 /man3/covey_join.3 /man7/covey.7 /completions/ep-run /LICENSE \
	/doc/covey/porting-from-nccl.md /doc/covey/examples/hello.c /share/covey/chaos/kill-one; do
	grep -q "$file" "$where/list" || { echo "the package lacks $file"; failed=1; }
done
if grep -E -q '^[^ ]+ +(root/root|0/0)' "$where/list"; then :; else echo "files do not belong to root"; failed=1; fi
dpkg-deb -x "$package" "$where/root"
"$where/root/usr/bin/ep-run" --version >/dev/null || { echo "ep-run does not start"; failed=1; }
exit $failed
