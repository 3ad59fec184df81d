# SPDX-License-Identifier: Apache-2.0
# `cpack -G DEB` in the build folder: one package with library, header, tools and pages, made without root.

set(CPACK_PACKAGE_NAME covey)
set(CPACK_PACKAGE_VENDOR covey)
set(CPACK_PACKAGE_CONTACT "covey <covey@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION
	"Ranks may die in the middle of an operation: all survivors get the same answer, and the dead are replaced.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "redis-tools | redis-server | valkey-server")
# For programs that link libcovey.a; and for transport verbs, which opens what is there.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "librdmacm1, libibverbs1, ibverbs-providers, libhiredis-dev, libsodium-dev, pkg-config")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
find_program(COVEY_SHLIBDEPS dpkg-shlibdeps)
if(COVEY_SHLIBDEPS)
	set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
	covey_part(deb "cpack -G DEB")
else()
	covey_part(deb "cpack -G DEB, without dependencies: no dpkg-shlibdeps")
endif()
include(CPack)
