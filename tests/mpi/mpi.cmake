# SPDX-License-Identifier: Apache-2.0
# The transport between processes, under mpirun. Where there is no MPI the tests are listed as not run.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(ranks_of_tests 1 2 3 4)
if(NOT TARGET slimpack_mpi)
  add_test(NAME mpi COMMAND ${CMAKE_COMMAND} -E false)
  set_tests_properties(mpi PROPERTIES DISABLED TRUE)
  return()
endif()

add_executable(test_mpi mpi/main.cpp mpi/transport_test.cpp)
add_executable(mpi_faults mpi/faults.cpp)
foreach(program test_mpi mpi_faults)
  target_link_libraries(${program} PRIVATE slimpack_mpi doctest::doctest slimpack_o0)
  target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  set_target_properties(${program} PROPERTIES UNITY_BUILD OFF)  # one main each
endforeach()
foreach(ranks IN LISTS ranks_of_tests)
  add_test(NAME mpi.transport_${ranks}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:test_mpi> --no-colors=true)
  set_tests_properties(mpi.transport_${ranks} PROPERTIES PROCESSORS ${ranks} COST 60)
  list(APPEND names mpi.transport_${ranks})
endforeach()
add_test(NAME mpi.faults COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/faults.py
  --trials 1 --at-once 4 ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:mpi_faults>)
set_tests_properties(mpi.faults PROPERTIES COST 25)  # most of it is waiting
# Tests run as root in containers, with more ranks than cores; MPI itself leaks, and it is built without sanitizers.
set_tests_properties(${names} mpi.faults PROPERTIES TIMEOUT 900 ENVIRONMENT
  "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;ASAN_OPTIONS=detect_leaks=0;TSAN_OPTIONS=ignore_noninstrumented_modules=1")
