# SPDX-License-Identifier: Apache-2.0
# What the library needs, and what the parts that may be left out would need.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HIREDIS REQUIRED IMPORTED_TARGET hiredis)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(JANSSON IMPORTED_TARGET jansson)
pkg_check_modules(CHECK IMPORTED_TARGET check)
pkg_search_module(LUA IMPORTED_TARGET lua5.1 lua-5.1)
covey_part(hiredis "${HIREDIS_VERSION}")
covey_part(libsodium "${SODIUM_VERSION}")

# nvcc is often installed off PATH.
find_program(COVEY_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
if(COVEY_NVCC)
	covey_part(kernels "left out: no sources yet (nvcc: ${COVEY_NVCC})")
else()
	covey_part(kernels "left out: no sources yet, no nvcc")
endif()
pkg_check_modules(VERBS QUIET libibverbs)
if(VERBS_FOUND)
	covey_part(verbs "left out: no sources yet (libibverbs ${VERBS_VERSION})")
else()
	covey_part(verbs "left out: no sources yet, no libibverbs")
endif()
