# SPDX-License-Identifier: Apache-2.0
# How ranks that are processes find each other, and how they end.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_executable(test_processes processes/launch_test.cpp processes/bootstrap_test.cpp $<TARGET_OBJECTS:doctest_main>)
add_executable(process_faults processes/faults.cpp)
foreach(program test_processes process_faults)
  target_link_libraries(${program} PRIVATE slimpack_processes slimpack_brief slimpack_o0)
endforeach()
target_link_libraries(test_processes PRIVATE doctest::doctest)
slimpack_test_entries(processes test_processes)
add_test(NAME processes.faults COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/processes/faults.py
  $<TARGET_FILE:process_faults>)
set_tests_properties(processes.faults PROPERTIES COST 20)
