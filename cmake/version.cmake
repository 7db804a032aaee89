# SPDX-License-Identifier: Apache-2.0
# slimpack_read_version(VARIABLE) reads include/slimpack/core/version.hpp, so that a bare include path has the
# version too.
# slimpack_read_commit(VARIABLE) gives the commit of the sources: where they are no git repository of their own,
# what slimpack_write_commit() wrote for an sdist, else `unknown`. CMake configures again when it changes.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_LIST_DIR}/../include/slimpack/core/version.hpp)

function(slimpack_read_version variable)
  file(STRINGS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/slimpack/core/version.hpp lines
       REGEX "^#define SLIMPACK_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
  list(TRANSFORM lines REPLACE "^.* " "")
  list(JOIN lines "." version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

set(slimpack_written_commit ${CMAKE_CURRENT_LIST_DIR}/../apps/commit/written.txt)

function(slimpack_write_commit)
  slimpack_read_commit(commit)
  file(WRITE ${slimpack_written_commit} "${commit}\n")
endfunction()

function(slimpack_read_commit variable)
  set(written unknown)
  if(EXISTS ${slimpack_written_commit} AND NOT EXISTS ${PROJECT_SOURCE_DIR}/.git)
    file(STRINGS ${slimpack_written_commit} written LIMIT_COUNT 1)
  endif()
  set(${variable} ${written} PARENT_SCOPE)
  find_program(SLIMPACK_GIT git)
  mark_as_advanced(SLIMPACK_GIT)
  if(NOT SLIMPACK_GIT)
    return()
  endif()
  function(git output)
    execute_process(COMMAND ${SLIMPACK_GIT} ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} RESULT_VARIABLE status
                    OUTPUT_VARIABLE text ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(${output} "${text}" PARENT_SCOPE)
    set(status ${status} PARENT_SCOPE)
  endfunction()
  git(folder rev-parse --show-prefix)
  # In a folder of somebody else's repository the commit would be theirs.
  if(NOT status EQUAL 0 OR NOT folder STREQUAL "")
    return()
  endif()
  git(commit describe --always --dirty --abbrev=12 --exclude=*)
  if(NOT status EQUAL 0)
    return()
  endif()
  set(${variable} ${commit} PARENT_SCOPE)
  git(log rev-parse --git-path logs/HEAD)
  get_filename_component(log ${log} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  if(EXISTS ${log})
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
  endif()
endfunction()
