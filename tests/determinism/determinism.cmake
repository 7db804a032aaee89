# SPDX-License-Identifier: Apache-2.0
# The same plans to the byte, whatever compiler and flags, and with any number of threads: the compiled
# planners against the headers, by another compiler where there is one, with the instructions of the
# machine at hand and products fused with sums. scripts/release_check.sh compares more flags.
if(SLIMPACK_SANITIZE)
  return()
endif()
set(plans ${CMAKE_CURRENT_SOURCE_DIR}/determinism/plans.cpp)
set(fused -O0 -march=native -ffp-contract=on)
add_executable(plans_compiled ${plans})
target_link_libraries(plans_compiled PRIVATE slimpack_planners slimpack_private slimpack_brief slimpack_o1)
target_include_directories(plans_compiled PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(SLIMPACK_OTHER_COMPILER NAMES clang++-14 clang++)
else()
  find_program(SLIMPACK_OTHER_COMPILER NAMES g++-12 g++)
endif()
if(SLIMPACK_OTHER_COMPILER)
  set(plans_fused ${CMAKE_CURRENT_BINARY_DIR}/plans_fused.out)
  add_custom_command(OUTPUT ${plans_fused}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${SLIMPACK_OTHER_COMPILER} -std=c++20 ${fused}
            -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR} -MD -MF ${plans_fused}.d -MT ${plans_fused}
            -c ${plans} -o ${plans_fused}.o
    COMMAND ${SLIMPACK_OTHER_COMPILER} ${plans_fused}.o -pthread -o ${plans_fused}
    DEPENDS ${plans} DEPFILE ${plans_fused}.d VERBATIM)
  add_custom_target(plans_fused ALL DEPENDS ${plans_fused})
else()
  message(STATUS "slimpack: only one compiler found, planners.determinism does not compare two")
  add_executable(plans_fused ${plans})
  target_link_libraries(plans_fused PRIVATE slimpack_private)
  target_include_directories(plans_fused PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(plans_fused PRIVATE ${fused})
  set(plans_fused $<TARGET_FILE:plans_fused>)
endif()

add_test(NAME planners.determinism
  COMMAND ${CMAKE_COMMAND} -DFIRST=$<TARGET_FILE:plans_compiled> "-DOTHERS=${plans_fused}"
          -DFOLDER=${PROJECT_SOURCE_DIR}/examples/data -DDRAWS=6
          -P ${CMAKE_CURRENT_SOURCE_DIR}/determinism/compare.cmake)

# A refactoring changes no plan.
add_executable(pinned_plans ${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned_plans.cpp)
target_link_libraries(pinned_plans PRIVATE slimpack_planners slimpack_flags slimpack_brief slimpack_o0)
add_test(NAME planners.pinned
  COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:pinned_plans>
          -DEXAMPLES=${PROJECT_SOURCE_DIR}/examples/data -DEVALUATION=${PROJECT_SOURCE_DIR}/bench/evaluation/data
          -DEXPECTED=${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned_plans.txt
          -DPRINTED=${CMAKE_CURRENT_BINARY_DIR}/pinned_plans.txt
          -P ${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned.cmake)
