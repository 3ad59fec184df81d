#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A small program of a user builds and runs against the installed tree, found by pkg-config.
# install.sh SOURCE BUILD CC LIBDIR
set -eu
build=$2 cc=$3 libdir=$4
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT INT TERM

cmake --install "$build" --prefix "$where/usr" >"$where/log" || { cat "$where/log"; exit 1; }
cat >"$where/user.c" <<'END'
#include <covey.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	struct covey_config config = COVEY_CONFIG_INIT;

	printf("%s\n", covey_strerror(COVEY_ERR_FENCED));
	return !strlen(covey_strerror(COVEY_ERR_FENCED)) || config.rank != COVEY_RANK_ANY;
}
END
export PKG_CONFIG_PATH="$where/usr/$libdir/pkgconfig"
flags=$(pkg-config --cflags --libs covey)
# shellcheck disable=SC2086
$cc -std=c17 -Wall -Wextra -Werror "$where/user.c" -o "$where/user" $flags
LD_LIBRARY_PATH="$where/usr/$libdir" "$where/user"
for tool in "$where"/usr/bin/ep-*; do
	[ -e "$tool" ] || continue
	# Found through the run path of the tool itself.
	"$tool" --help >/dev/null || { echo "$tool does not start"; exit 1; }
done
