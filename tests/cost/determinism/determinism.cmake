# SPDX-License-Identifier: Apache-2.0
# The same prices to the nanosecond, whatever the compiler may contract, reorder or vectorise.
add_executable(prices_plain cost/determinism/prices.cpp)
target_link_libraries(prices_plain PRIVATE slimpack_private)
target_compile_options(prices_plain PRIVATE -O0 -ffp-contract=off)
add_executable(prices_fast cost/determinism/prices.cpp)
target_link_libraries(prices_fast PRIVATE slimpack_private)
target_compile_options(prices_fast PRIVATE -O3 -march=native -ffp-contract=fast)
add_test(NAME cost.determinism
  COMMAND ${CMAKE_COMMAND} -DFIRST=$<TARGET_FILE:prices_plain> -DSECOND=$<TARGET_FILE:prices_fast>
          -DEXPECTED=${CMAKE_CURRENT_SOURCE_DIR}/cost/determinism/prices.txt
          -P ${CMAKE_CURRENT_SOURCE_DIR}/cost/determinism/compare.cmake)
