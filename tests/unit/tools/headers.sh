#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, as C17; the public one as C++17 too. headers.sh SOURCE CC CXX|- INCLUDES
# INCLUDES: lines of a folder and the options with which its headers are compiled.
set -u
source=$1 cc=$2 cxx=$3 includes=$4 failed=0
warnings="-D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror"

while read -r folder see; do
	for header in "$folder"/*.h; do
		[ -e "$header" ] || continue
		# Included from a source: a compiler handed a header warns about #pragma once and unused functions.
		# shellcheck disable=SC2086
		printf '#include "%s"\nextern int not_empty;\n' "$header" |
			$cc -std=c17 $warnings -Wstrict-prototypes $see -x c -fsyntax-only - ||
			{ echo "not alone as C17: $header"; failed=1; }
	done
done <"$includes"

printf '%s\n' '#include "covey_device.h"' '#include "covey_admin.h"' 'int main(void) { struct covey_view view; struct covey_config config = COVEY_CONFIG_INIT;' \
	'struct covey_ep_config pair = COVEY_EP_CONFIG_INIT; return (int)sizeof(view) + config.rank + pair.dtype == 0; }' |
	$cc -std=c17 -Wall -Wextra -Wpedantic -Werror -I"$source/include" -x c -fsyntax-only - ||
	{ echo "the public headers need more than C17"; failed=1; }
if [ "$cxx" = - ]; then
	echo "no C++ compiler: C++17 not checked"
else
	# The initialisers too, as a variable, an assignment and a member.
	for std in c++11 c++17 c++20; do
		$cxx -std=$std -Wall -Wextra -Wpedantic -Wshadow -Wmissing-field-initializers -Werror -I"$source/include" \
			-x c++ -fsyntax-only - <<'END' || { echo "the public headers are not $std"; failed=1; }
#include "covey_admin.h"
#include "covey_device.h"
struct job {
	covey_config config = COVEY_CONFIG_INIT;
};
static const covey_ep_config pair = COVEY_EP_CONFIG_INIT;
int main()
{
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_dispatch_args dispatch = COVEY_DISPATCH_INIT;
	struct covey_combine_args combine = COVEY_COMBINE_INIT;
	covey_result result = {};
	job j;
	config = COVEY_CONFIG_INIT;
	return result.status + config.rank + j.config.rank + pair.dtype + (dispatch.size > combine.size);
}
END
	done
fi
exit $failed
