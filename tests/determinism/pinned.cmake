# SPDX-License-Identifier: Apache-2.0
# Runs PROGRAM on the folders EXAMPLES and EVALUATION into the file PRINTED: it prints what EXPECTED holds.
execute_process(COMMAND ${PROGRAM} ${EXAMPLES} ${EVALUATION} OUTPUT_FILE ${PRINTED} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${status}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${PRINTED} ${EXPECTED} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "plans have changed: compare ${PRINTED} with ${EXPECTED}")
endif()
