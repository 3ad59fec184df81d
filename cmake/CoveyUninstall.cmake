# SPDX-License-Identifier: Apache-2.0
# The target `uninstall` takes away what was installed from this build folder: its files, and those of its folders that
# were not there before and are empty. What anybody else put there stays.
#
# install_manifest.txt is not enough for that: cpack writes it too, with the paths of a package, and it has no folders.
# So there is a record of our own. Staged installations (DESTDIR, cpack) are not in it: who stages removes the stage.

set(covey_record ${PROJECT_BINARY_DIR}/installed.txt)

# Before anything is installed, so that the folders are looked at as they were.
file(GLOB pages LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/docs/*)
list(FILTER pages EXCLUDE REGEX "[.]")
list(TRANSFORM pages PREPEND "${CMAKE_INSTALL_DOCDIR}/")
set(folders
	${pages}
	${CMAKE_INSTALL_BINDIR}
	${CMAKE_INSTALL_INCLUDEDIR}
	${CMAKE_INSTALL_LIBDIR}/pkgconfig
	${CMAKE_INSTALL_LIBDIR}/cmake/covey
	${CMAKE_INSTALL_LIBDIR}/covey/nccl
	${CMAKE_INSTALL_LIBDIR}/covey
	${CMAKE_INSTALL_DOCDIR}/deploy/grafana
	${CMAKE_INSTALL_DOCDIR}/deploy/kubernetes
	${CMAKE_INSTALL_DOCDIR}/deploy/prometheus
	${CMAKE_INSTALL_DOCDIR}/deploy/slurm
	${CMAKE_INSTALL_DOCDIR}/examples/python
	${CMAKE_INSTALL_DOCDIR}/examples/torch
	${CMAKE_INSTALL_MANDIR}/man1
	${CMAKE_INSTALL_MANDIR}/man3
	${CMAKE_INSTALL_MANDIR}/man7
	${CMAKE_INSTALL_DATADIR}/bash-completion/completions
	${CMAKE_INSTALL_DATADIR}/covey/chaos)
install(CODE "
	set(covey_made \"\")
	foreach(folder IN ITEMS ${folders})
		cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\" NORMALIZE)
		while(NOT EXISTS \"\${folder}\")
			list(APPEND covey_made \"\${folder}\")
			cmake_path(GET folder PARENT_PATH folder)
		endwhile()
	endforeach()
")

# After all else was installed. An installation on top of another, or in a second place, adds to the record.
function(covey_uninstall)
	install(CODE "
		set(lines \"\")
		foreach(file IN LISTS CMAKE_INSTALL_MANIFEST_FILES)
			list(APPEND lines \"file \${file}\")
		endforeach()
		foreach(folder IN LISTS covey_made)
			list(APPEND lines \"folder \${folder}\")
		endforeach()
		list(JOIN lines \"\\n\" lines)
		if(\"\$ENV{DESTDIR}\" STREQUAL \"\" AND NOT CMAKE_INSTALL_PREFIX MATCHES \"/_CPack_Packages/\")
			file(APPEND \"${covey_record}\" \"\${lines}\\n\")
		endif()
	")
	add_custom_target(uninstall
		COMMAND ${CMAKE_COMMAND} -DRECORD=${covey_record} -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake
		VERBATIM COMMENT "Removing what was installed")
endfunction()
