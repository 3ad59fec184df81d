# SPDX-License-Identifier: Apache-2.0
# covey_layer(NAME DIRECTORY dir [INSIDE dir] SEES layer...): declares a layer and the headers it may include. Those of
# INSIDE are for itself alone.
# covey_layer_build(NAME [MORE source...] [EXCEPT regex] [LIBRARIES target...]): its object library of the
# sources in its directory, but for those that EXCEPT matches.
# covey_layer_includes(OUT NAME): the include path, for its unit tests.

set(COVEY_LAYERS "" CACHE INTERNAL "layers that are built")

function(covey_layer name)
	cmake_parse_arguments(L "" "DIRECTORY;INSIDE" "SEES" ${ARGN})
	set_property(GLOBAL PROPERTY COVEY_DIRECTORY_${name} ${PROJECT_SOURCE_DIR}/${L_DIRECTORY})
	set_property(GLOBAL APPEND PROPERTY COVEY_DECLARED ${name})
	set_property(GLOBAL PROPERTY COVEY_INSIDE_${name} ${L_INSIDE})
	set_property(GLOBAL PROPERTY COVEY_SEES_${name} ${L_SEES})
endfunction()

function(covey_layer_includes out name)
	get_property(sees GLOBAL PROPERTY COVEY_SEES_${name})
	get_property(inside GLOBAL PROPERTY COVEY_INSIDE_${name})
	set(path ${PROJECT_SOURCE_DIR}/include)
	if(inside)
		list(APPEND path ${PROJECT_SOURCE_DIR}/${inside})
	endif()
	foreach(layer IN ITEMS ${name} ${sees})
		get_property(directory GLOBAL PROPERTY COVEY_DIRECTORY_${layer})
		list(APPEND path ${directory})
	endforeach()
	set(${out} ${path} PARENT_SCOPE)
endfunction()

function(covey_layer_build name)
	cmake_parse_arguments(L "" "EXCEPT" "MORE;LIBRARIES" ${ARGN})
	get_property(directory GLOBAL PROPERTY COVEY_DIRECTORY_${name})
	file(GLOB sources CONFIGURE_DEPENDS ${directory}/*.c)
	if(L_EXCEPT)
		list(FILTER sources EXCLUDE REGEX ${L_EXCEPT})
	endif()
	if(NOT sources)
		message(FATAL_ERROR "layer ${name}: no sources in ${directory}")
	endif()
	covey_layer_includes(path ${name})
	add_library(${name} OBJECT ${sources} ${L_MORE})
	target_include_directories(${name} PRIVATE ${path})
	target_link_libraries(${name} PRIVATE ${L_LIBRARIES} Threads::Threads)
	list(LENGTH sources count)
	covey_part(${name} "built: ${count} sources")
	set(COVEY_LAYERS ${COVEY_LAYERS} ${name} CACHE INTERNAL "layers that are built")
endfunction()
