#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, as C17; the public one as C++17 too. headers.sh SOURCE CC CXX|-
set -u
source=$1 cc=$2 cxx=$3 failed=0
warnings="-D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror"

for header in "$source"/include/*.h "$source"/src/*/*.h; do
	[ -e "$header" ] || continue
	layer=$(dirname "$header")
	see="-I$source/include -I$source/src/base -I$layer"
	case $layer in
	*/collectives) see="$see -I$source/src/membership -I$source/src/p2p -I$source/src/kernels" ;;
	esac
	# Included from a source: a compiler handed a header warns about #pragma once and unused functions.
	# shellcheck disable=SC2086
	printf '#include "%s"\nextern int not_empty;\n' "$header" |
		$cc -std=c17 $warnings -Wstrict-prototypes $see -x c -fsyntax-only - ||
		{ echo "not alone as C17: $header"; failed=1; }
done

printf '#include "covey.h"\nint main(void) { struct covey_view view; return (int)sizeof(view) == 0; }\n' |
	$cc -std=c17 -Wall -Wextra -Wpedantic -Werror -I"$source/include" -x c -fsyntax-only - ||
	{ echo "covey.h needs more than C17"; failed=1; }
if [ "$cxx" = - ]; then
	echo "no C++ compiler: C++17 not checked"
else
	printf '#include "covey.h"\nint main() { covey_result result = {}; return result.status; }\n' |
		$cxx -std=c++17 -Wall -Wextra -Wpedantic -Werror -I"$source/include" -x c++ -fsyntax-only - ||
		{ echo "covey.h is not C++17"; failed=1; }
fi
exit $failed
