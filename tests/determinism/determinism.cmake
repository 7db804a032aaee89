# SPDX-License-Identifier: Apache-2.0
# The same plans to the byte, whatever compiler and flags, and with any number of threads.
if(SLIMPACK_SANITIZE)
  return()
endif()
set(plans ${CMAKE_CURRENT_SOURCE_DIR}/determinism/plans.cpp)
foreach(way plain fast)
  add_executable(plans_${way} ${plans})
  target_link_libraries(plans_${way} PRIVATE slimpack_private)
  target_include_directories(plans_${way} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endforeach()
target_compile_options(plans_plain PRIVATE -O0 -ffp-contract=off)
target_compile_options(plans_fast PRIVATE -O3 -march=native -ffp-contract=fast)
set(plan_programs $<TARGET_FILE:plans_plain>)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(SLIMPACK_OTHER_COMPILER NAMES clang++-14 clang++)
else()
  find_program(SLIMPACK_OTHER_COMPILER NAMES g++-12 g++)
endif()
if(SLIMPACK_OTHER_COMPILER)
  set(other ${CMAKE_CURRENT_BINARY_DIR}/plans_other.out)
  add_custom_command(OUTPUT ${other}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${SLIMPACK_OTHER_COMPILER} -std=c++20 -O0 -march=native
            -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR} -c ${plans} -o ${other}.o
    COMMAND ${SLIMPACK_OTHER_COMPILER} ${other}.o -pthread -o ${other}
    DEPENDS ${plans} plans_fast VERBATIM)  # compiled anew whenever a header has changed
  add_custom_target(plans_other ALL DEPENDS ${other})
  list(APPEND plan_programs ${other})
else()
  message(STATUS "slimpack: only one compiler found, planners.determinism does not compare two")
endif()

add_test(NAME planners.determinism
  COMMAND ${CMAKE_COMMAND} -DFIRST=$<TARGET_FILE:plans_fast> "-DOTHERS=${plan_programs}"
          -DFOLDER=${PROJECT_SOURCE_DIR}/examples/data
          -P ${CMAKE_CURRENT_SOURCE_DIR}/determinism/compare.cmake)
