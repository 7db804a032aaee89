# SPDX-License-Identifier: Apache-2.0
# Runs FIRST and SECOND and compares what they print with each other and with the file EXPECTED.
file(READ ${EXPECTED} expected)
foreach(program ${FIRST} ${SECOND})
  execute_process(COMMAND ${program} OUTPUT_VARIABLE printed RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT printed STREQUAL expected)
    message(FATAL_ERROR "${program} printed '${printed}', expected '${expected}': prices differ "
                        "between builds, or a formula has changed and prices.txt has not")
  endif()
endforeach()
