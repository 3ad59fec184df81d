# SPDX-License-Identifier: Apache-2.0
# libcovey.so and libcovey.a for users; libcovey-internal.a, with every symbol, for unit tests.

set(objects "")
foreach(layer IN LISTS COVEY_LAYERS)
	list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()
set(libraries ${COVEY_TLS_LIBRARIES} PkgConfig::HIREDIS PkgConfig::SODIUM Threads::Threads rt m ${CMAKE_DL_LIBS})
set(map ${PROJECT_SOURCE_DIR}/cmake/covey.map)

add_library(covey SHARED ${objects})
set_target_properties(covey PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${COVEY_SOVERSION}
	LINKER_LANGUAGE C LINK_DEPENDS ${map})
target_include_directories(covey PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
	$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(covey PRIVATE ${libraries})
# nodelete: threads of the library run in it after its last group is closed, so dlclose() must not unmap it.
target_link_options(covey PRIVATE LINKER:--version-script=${map} LINKER:-z,nodelete)
if(NOT COVEY_SANITIZE)
	# A sanitizer's runtime comes with the program, so its symbols are open in the library.
	target_link_options(covey PRIVATE LINKER:-z,defs)
endif()

add_library(covey-internal STATIC ${objects})
set_target_properties(covey-internal PROPERTIES LINKER_LANGUAGE C)
target_link_libraries(covey-internal PUBLIC ${libraries})

# The static library is one object whose hidden symbols were made local: as in the shared one, only covey_* is left.
# A sanitizer keeps tables of its globals that do not survive this.
if(NOT COVEY_SANITIZE)
	set(archive ${PROJECT_BINARY_DIR}/libcovey.a)
	add_custom_command(OUTPUT ${archive}
		COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o covey-all.o ${objects}
		COMMAND ${CMAKE_OBJCOPY} --localize-hidden covey-all.o covey.o
		COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
		COMMAND ${CMAKE_AR} crs ${archive} covey.o
		DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM
		COMMENT "Joining libcovey.a")
	add_custom_target(covey-static ALL DEPENDS ${archive})
	add_dependencies(covey-static ${COVEY_LAYERS}) # make has no rule for the objects of another target
	install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endif()

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development) # the parts: CoveyPackage.cmake
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/covey)
file(RELATIVE_PATH COVEY_PC_UP ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
list(FILTER COVEY_STATIC_FLAGS EXCLUDE REGEX "^-L/usr/lib(/|$)") # the linker's own folders, which differ between machines
list(JOIN COVEY_STATIC_FLAGS " " COVEY_STATIC_FLAGS)
configure_file(${PROJECT_SOURCE_DIR}/covey.pc.in ${PROJECT_BINARY_DIR}/covey.pc @ONLY)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/coveyConfig.cmake.in ${PROJECT_BINARY_DIR}/coveyConfig.cmake
	INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
# Before 1.0 a new minor version may change what was there.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/coveyConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS covey EXPORT covey LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
	COMPONENT library NAMELINK_COMPONENT development)
install(EXPORT covey FILE coveyTargets.cmake NAMESPACE covey:: DESTINATION ${package})
install(FILES ${PROJECT_BINARY_DIR}/coveyConfig.cmake ${PROJECT_BINARY_DIR}/coveyConfigVersion.cmake DESTINATION ${package})
install(FILES ${COVEY_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/covey.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tools)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
	FILES_MATCHING PATTERN "*.c" PATTERN Makefile PATTERN CMakeLists.txt PATTERN build* EXCLUDE)
