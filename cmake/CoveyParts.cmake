# SPDX-License-Identifier: Apache-2.0
# Notes which parts are built and which are left out, and why, for one summary at the end.

function(covey_part name state)
	set_property(GLOBAL APPEND PROPERTY COVEY_PARTS "${name}\t${state}")
endfunction()

function(covey_summary)
	message(STATUS "covey ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
	get_property(parts GLOBAL PROPERTY COVEY_PARTS)
	foreach(part IN LISTS parts)
		string(REPLACE "\t" ";" part "${part}")
		list(GET part 0 name)
		list(GET part 1 state)
		string(LENGTH "${name}" length)
		math(EXPR fill "20 - ${length}")
		string(REPEAT " " ${fill} fill)
		message(STATUS "  ${name}${fill}${state}")
	endforeach()
endfunction()
