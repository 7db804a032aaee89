# SPDX-License-Identifier: Apache-2.0
# Target doctest::doctest: from its CMake package, or from the header alone, which is all of it. A copy
# of doctest/doctest.h in FOLDER/include is found with -DCMAKE_PREFIX_PATH=FOLDER.
find_package(doctest QUIET)
if(NOT TARGET doctest::doctest)
  find_path(SLIMPACK_DOCTEST_INCLUDE doctest/doctest.h REQUIRED)
  add_library(doctest::doctest INTERFACE IMPORTED)
  set_target_properties(doctest::doctest PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${SLIMPACK_DOCTEST_INCLUDE})
endif()
# Without a try block in each assertion tests compile in four fifths of the time; what an expression throws
# still fails its test case.
get_target_property(slimpack_doctest doctest::doctest ALIASED_TARGET)
if(NOT slimpack_doctest)
  set(slimpack_doctest doctest::doctest)
endif()
set_property(TARGET ${slimpack_doctest} APPEND PROPERTY
  INTERFACE_COMPILE_DEFINITIONS DOCTEST_CONFIG_SUPER_FAST_ASSERTS)
