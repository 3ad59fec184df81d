#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Debian's packages have what was installed, each its part, name what they need, pass lintian where it is, and their
# programs run from where they were unpacked. deb.sh BUILD CPACK
set -eu
build=$1 cpack=$2
command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb"; exit 77; }
command -v dpkg-shlibdeps >/dev/null || { echo "skipped: no dpkg-shlibdeps (dpkg-dev), so the packages lack their Depends"; exit 77; }
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT INT TERM
failed=0

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$where" >"$where/log" 2>&1 || { cat "$where/log"; exit 1; }

check() # package, what it depends on, files
{
	name=$1 needs=$2
	package=$(echo "$where/${name}"_*.deb)
	shift 2
	depends=$(dpkg-deb -f "$package" Depends)
	for library in $needs; do
		case $depends in
		*$library*) ;;
		*) echo "Depends of $name lacks $library: $depends"; failed=1 ;;
		esac
	done
	dpkg-deb -c "$package" >"$where/list"
	for file in "$@" "/share/doc/$name/copyright" "/share/doc/$name/changelog.gz"; do
		grep -q "$file" "$where/list" || { echo "$name lacks $file"; failed=1; }
	done
	if grep -E -q '^[^ ]+ +(root/root|0/0)' "$where/list"; then :; else echo "files do not belong to root"; failed=1; fi
	grep -v '/$' "$where/list" | awk '{ print $6 }' >>"$where/all"
	dpkg-deb -x "$package" "$where/root"
}

version=$(basename "$where"/libcovey[0-9]*.deb)
version=${version%%_*}
check "$version" "libc6 libhiredis libsodium" "/lib.*/${version%covey*}covey.so.${version#libcovey}"
check libcovey-dev "$version" /include/covey.h /include/covey_ep.h /include/covey_device.h /include/covey_admin.h /libcovey.a \
	'/libcovey.so ' /pkgconfig/covey.pc /cmake/covey/coveyConfig.cmake /man3/covey_join.3.gz /LICENSE \
	/doc/covey/start/from-nccl.md /doc/covey/examples/hello.c
check covey-tools "$version libjansson" /bin/ep-run /bin/ep-admin /man1/ep-run.1.gz /man7/covey.7.gz /completions/ep-run \
	/share/covey/chaos/kill-one /doc/covey/deploy/kubernetes
packages=/lib/python3/dist-packages
if command -v python3 >/dev/null; then
	check python3-covey "$version python3" $packages/covey/__init__.py $packages/covey/_abi.py $packages/covey/torch/__init__.py \
		"$packages/covey-.*.dist-info/entry_points.txt"
	lib=$(find "$where/root" -name 'libcovey.so.*' -exec dirname {} + | head -n 1)
	PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$where/root/usr$packages LD_LIBRARY_PATH=$lib python3 -c '
import importlib.metadata as metadata
import covey
assert metadata.version("covey") == covey.__version__, covey.__version__
assert [e.value for e in metadata.entry_points(group="torch.distributed.backends") if e.name == "covey"]
' || { echo "python3-covey does not work where it was unpacked"; failed=1; }
fi
sort "$where/all" | uniq -d >"$where/twice"
[ ! -s "$where/twice" ] || { echo "in two packages:"; cat "$where/twice"; failed=1; }
"$where/root/usr/bin/ep-run" --version >/dev/null || { echo "ep-run does not start"; failed=1; }

if command -v lintian >/dev/null; then
	# Who publishes sets CPACK_PACKAGE_CONTACT.
	lintian --allow-root --suppress-tags bogus-mail-host --fail-on error "$where"/*.deb >"$where/said" 2>&1 ||
		{ grep '^E' "$where/said"; failed=1; }
else
	echo "no lintian: the packages' form is not checked"
fi
exit $failed
