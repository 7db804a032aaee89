# SPDX-License-Identifier: Apache-2.0
# The example prints what docs/slimpack_planner.md says that it prints.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ ${EXPECTED} expected)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed\n${printed}instead of ${EXPECTED}")
endif()
