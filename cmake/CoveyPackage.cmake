# SPDX-License-Identifier: Apache-2.0
# `cpack -G DEB` in the build folder: Debian's packages of a library, made without root. install() names the part.
#
#   part           package            content
#   library        libcoveyX.Y        the shared libraries
#   development    libcovey-dev       headers, libcovey.a, pages, examples
#   tools          covey-tools        ep-*, their pages, plans of ep-chaos, deploy/
#   python         python3-covey      the Python package, over the shared libraries; not in `cmake --install`, but a wheel

set(CPACK_PACKAGE_NAME covey)
set(CPACK_PACKAGE_VENDOR covey)
set(CPACK_PACKAGE_CONTACT "covey <covey@localhost>")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
	WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL library development tools)
find_program(COVEY_PYTHON3 python3)
if(COVEY_PYTHON3)
	list(APPEND CPACK_COMPONENTS_ALL python)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/pages.cmake)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "elastic, fault-tolerant collective communication")
set(library libcovey${COVEY_SOVERSION})
set(same "${library} (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The shared libraries. Ranks may die in the middle of an operation:\nall survivors get the same answer, and the dead are replaced.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/triggers)
# A store, and transport verbs, which opens what is there.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "redis-server | valkey-server")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "librdmacm1, libibverbs1, ibverbs-providers")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcovey-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, static library, pages and examples.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${same}")
# For programs that link libcovey.a.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libhiredis-dev, libsodium-dev, pkg-config")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME covey-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION net)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "Launcher, administration, benchmarks and plans of faults.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${same}")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "redis-tools")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-covey)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "The Python package: numpy arrays, torch's process group, expert-parallel buffers.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3:any (>= 3.9), ${same}")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "python3-numpy, covey-tools")
if(COVEY_PYTHON3)
	set(python ${PROJECT_SOURCE_DIR}/python)
	set(made ${PROJECT_BINARY_DIR}/python)
	add_custom_command(OUTPUT ${made}/covey/_abi.py
		COMMAND ${CMAKE_COMMAND} -E make_directory ${made}/covey
		COMMAND ${COVEY_PYTHON3} ${python}/generate.py ${PROJECT_SOURCE_DIR}/include ${made}/covey/_abi.py
		COMMAND ${python}/dist-info ${PROJECT_VERSION} ${made}
		DEPENDS ${COVEY_HEADERS} ${python}/generate.py ${python}/dist-info ${python}/pyproject.toml
		VERBATIM)
	add_custom_target(covey-python ALL DEPENDS ${made}/covey/_abi.py)
	install(DIRECTORY ${python}/covey ${made}/ DESTINATION lib/python3/dist-packages COMPONENT python EXCLUDE_FROM_ALL
		PATTERN __pycache__ EXCLUDE)
endif()

# What each of Debian's packages has in its folder of documentation.
set(written ${PROJECT_BINARY_DIR}/package)
file(WRITE ${written}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: covey

Files: *
Copyright: the authors of covey
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in /usr/share/common-licenses/Apache-2.0.
")
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${written}/changelog COPYONLY)
foreach(part IN ITEMS library:${library} development:libcovey-dev tools:covey-tools python:python3-covey)
	string(REPLACE ":" ";" part ${part})
	list(GET part 0 component)
	list(GET part 1 name)
	install(FILES ${written}/copyright ${written}/changelog DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name}
		COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

find_program(COVEY_SHLIBDEPS dpkg-shlibdeps)
if(COVEY_SHLIBDEPS)
	set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
	set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
	covey_part(deb "cpack -G DEB")
else()
	covey_part(deb "cpack -G DEB, without dependencies: no dpkg-shlibdeps")
endif()
include(CPack)
