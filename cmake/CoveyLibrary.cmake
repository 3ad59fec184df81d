# SPDX-License-Identifier: Apache-2.0
# libcovey.so for users; libcovey-internal.a, with every symbol, for unit tests.

set(objects "")
foreach(layer IN LISTS COVEY_LAYERS)
	list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()
set(libraries PkgConfig::HIREDIS PkgConfig::SODIUM Threads::Threads rt m ${CMAKE_DL_LIBS})
set(map ${PROJECT_SOURCE_DIR}/cmake/covey.map)

add_library(covey SHARED ${objects})
set_target_properties(covey PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
	LINKER_LANGUAGE C LINK_DEPENDS ${map})
target_include_directories(covey PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(covey PRIVATE ${libraries})
target_link_options(covey PRIVATE LINKER:--version-script=${map})
if(NOT COVEY_SANITIZE)
	# A sanitizer's runtime comes with the program, so its symbols are open in the library.
	target_link_options(covey PRIVATE LINKER:-z,defs)
endif()

add_library(covey-internal STATIC ${objects})
set_target_properties(covey-internal PROPERTIES LINKER_LANGUAGE C)
target_link_libraries(covey-internal PUBLIC ${libraries})

file(RELATIVE_PATH COVEY_PC_UP ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/covey.pc.in ${PROJECT_BINARY_DIR}/covey.pc @ONLY)
install(TARGETS covey LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/covey.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/covey.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
