# SPDX-License-Identifier: Apache-2.0
# Language, warnings and sanitizers of everything that is compiled here.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# An assertion is for our own bugs: it stays on in release builds.
foreach(type IN ITEMS RELEASE RELWITHDEBINFO)
	string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_${type} "${CMAKE_C_FLAGS_${type}}")
endforeach()

# -std=c17 hides POSIX and Linux calls without it.
add_compile_definitions(_GNU_SOURCE)
set(COVEY_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes)
add_compile_options("$<$<COMPILE_LANGUAGE:C>:${COVEY_WARNINGS};-fno-common>") # kernels bring their own (src/kernels)
if(COVEY_WERROR)
	add_compile_options($<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()

if(COVEY_BARE)
	add_compile_definitions(CVY_BARE)
	covey_part(guards "left out: a build to measure against, not to use")
endif()

if(COVEY_TRACE)
	add_compile_definitions(CVY_TRACE)
	covey_part(trace "of dispatch and combine on devices")
endif()

# A compiler cache, for whoever builds often; a launcher that was named goes first.
option(COVEY_CCACHE "Compile through ccache, where it is there" ON)
find_program(COVEY_CCACHE_PROGRAM ccache)
if(COVEY_CCACHE AND COVEY_CCACHE_PROGRAM)
	foreach(language IN ITEMS C CXX CUDA)
		if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
			set(CMAKE_${language}_COMPILER_LAUNCHER ${COVEY_CCACHE_PROGRAM})
		endif()
	endforeach()
	covey_part(ccache "${COVEY_CCACHE_PROGRAM}")
endif()

set(COVEY_TEST_SLOWER 1)
if(COVEY_FUZZ) # all code counts its edges for libFuzzer; each target brings its main() (tests/fuzz)
	set(COVEY_SANITIZE "fuzzer-no-link,address,undefined")
endif()
if(COVEY_SANITIZE)
	add_compile_options(-fsanitize=${COVEY_SANITIZE} -fno-omit-frame-pointer)
	add_link_options(-fsanitize=${COVEY_SANITIZE})
	if(COVEY_SANITIZE MATCHES "undefined")
		add_compile_options(-fno-sanitize-recover=undefined)
		add_link_options(-fno-sanitize-recover=undefined)
	endif()
	set(COVEY_TEST_SLOWER 4)
	covey_part(sanitizers "${COVEY_SANITIZE}")
endif()
