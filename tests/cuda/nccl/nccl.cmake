# SPDX-License-Identifier: Apache-2.0
# The transport over NCCL without NCCL and without a device: what ranks ask of it, and what becomes of
# their numbers, on the emulated library. test_nccl has one rank and a device, and says what is missing
# where there is none.
if(TARGET slimpack_nccl_emulated AND NOT SLIMPACK_CUDA_ALONE)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/nccl/*.cpp)
  add_executable(test_cuda_nccl ${sources} $<TARGET_OBJECTS:doctest_main>)
  target_link_libraries(test_cuda_nccl PRIVATE slimpack_nccl_emulated slimpack_planners doctest::doctest slimpack_o1)
  target_include_directories(test_cuda_nccl PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/nccl
    ${PROJECT_SOURCE_DIR}/backends/cuda/emulated ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  slimpack_test_entries(cuda_nccl test_cuda_nccl LABELS emulated)
endif()
if(TARGET slimpack_nccl)
  add_executable(test_nccl ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_nccl/nccl_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu/main.cpp)
  target_link_libraries(test_nccl PRIVATE slimpack_nccl slimpack_private doctest::doctest)
  target_include_directories(test_nccl PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  set_target_properties(test_nccl PROPERTIES UNITY_BUILD OFF)  # one main
  add_test(NAME nccl COMMAND test_nccl)
  set_tests_properties(nccl PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)
endif()
