# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILER=.. -DFILE=.. -DINCLUDE=.. -P check.cmake
# FILE must compile as it stands. With SLIMPACK_MUST_NOT_COMPILE defined it must not, and the
# compiler must say what FILE's line "// expect: REGEX" holds.
file(STRINGS ${FILE} expectation REGEX "^// expect: ")
string(REGEX REPLACE "^// expect: " "" expectation "${expectation}")
if(NOT expectation)
  message(FATAL_ERROR "${FILE} has no line '// expect: REGEX'")
endif()
set(ENV{LC_ALL} C)  # plain quotes in the messages
set(compile ${COMPILER} -std=c++20 -fsyntax-only -I${INCLUDE} ${FILE})
execute_process(COMMAND ${compile} RESULT_VARIABLE status ERROR_VARIABLE output OUTPUT_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${FILE} does not compile even as it should:\n${output}")
endif()
execute_process(COMMAND ${compile} -DSLIMPACK_MUST_NOT_COMPILE RESULT_VARIABLE status
                ERROR_VARIABLE output OUTPUT_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "${FILE} compiles, and must not")
endif()
if(NOT output MATCHES "${expectation}")
  message(FATAL_ERROR "${FILE} is refused without saying '${expectation}':\n${output}")
endif()
