# SPDX-License-Identifier: Apache-2.0
# Before a package is packed: pages of manual and changelogs as Debian wants them.

file(GLOB_RECURSE pages ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/*.[137]
	${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog)
foreach(page IN LISTS pages)
	execute_process(COMMAND gzip -9nf ${page} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
