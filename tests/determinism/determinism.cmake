# SPDX-License-Identifier: Apache-2.0
# The same plans to the byte, whatever compiler and flags, and with any number of threads: all that
# this compiler may do to floating point against nothing of it, by another compiler where there is one.
if(SLIMPACK_SANITIZE)
  return()
endif()
set(plans ${CMAKE_CURRENT_SOURCE_DIR}/determinism/plans.cpp)
set(plain -O0 -ffp-contract=off)
add_executable(plans_fast ${plans})
target_link_libraries(plans_fast PRIVATE slimpack_private)
target_include_directories(plans_fast PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(plans_fast PRIVATE -O3 -march=native -ffp-contract=fast)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(SLIMPACK_OTHER_COMPILER NAMES clang++-14 clang++)
else()
  find_program(SLIMPACK_OTHER_COMPILER NAMES g++-12 g++)
endif()
if(SLIMPACK_OTHER_COMPILER)
  set(plans_plain ${CMAKE_CURRENT_BINARY_DIR}/plans_plain.out)
  add_custom_command(OUTPUT ${plans_plain}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${SLIMPACK_OTHER_COMPILER} -std=c++20 ${plain}
            -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR} -c ${plans} -o ${plans_plain}.o
    COMMAND ${SLIMPACK_OTHER_COMPILER} ${plans_plain}.o -pthread -o ${plans_plain}
    DEPENDS ${plans} plans_fast VERBATIM)  # compiled anew whenever a header has changed
  add_custom_target(plans_plain ALL DEPENDS ${plans_plain})
else()
  message(STATUS "slimpack: only one compiler found, planners.determinism does not compare two")
  add_executable(plans_plain ${plans})
  target_link_libraries(plans_plain PRIVATE slimpack_private)
  target_include_directories(plans_plain PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(plans_plain PRIVATE ${plain})
  set(plans_plain $<TARGET_FILE:plans_plain>)
endif()

add_test(NAME planners.determinism
  COMMAND ${CMAKE_COMMAND} -DFIRST=$<TARGET_FILE:plans_fast> "-DOTHERS=${plans_plain}"
          -DFOLDER=${PROJECT_SOURCE_DIR}/examples/data
          -P ${CMAKE_CURRENT_SOURCE_DIR}/determinism/compare.cmake)

# A refactoring changes no plan.
add_executable(pinned_plans ${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned_plans.cpp)
target_link_libraries(pinned_plans PRIVATE slimpack_planners slimpack_brief)
add_test(NAME planners.pinned
  COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:pinned_plans>
          -DEXAMPLES=${PROJECT_SOURCE_DIR}/examples/data -DEVALUATION=${PROJECT_SOURCE_DIR}/bench/evaluation/data
          -DEXPECTED=${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned_plans.txt
          -DPRINTED=${CMAKE_CURRENT_BINARY_DIR}/pinned_plans.txt
          -P ${CMAKE_CURRENT_SOURCE_DIR}/determinism/pinned.cmake)
