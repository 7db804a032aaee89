# SPDX-License-Identifier: Apache-2.0
# test_cuda_emulated runs kernels, and what is plain C++ of the backend, on the CPU; it needs no CUDA
# Toolkit. test_cuda runs launchers on a device and says which it lacks where there is none.
if(NOT SLIMPACK_SANITIZE)  # sanitizers do not follow the emulator's fibers
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/*.cpp)
  add_executable(test_cuda_emulated ${sources} $<TARGET_OBJECTS:doctest_main>)
  target_link_libraries(test_cuda_emulated PRIVATE slimpack_private doctest::doctest)
  target_include_directories(test_cuda_emulated PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/backends/cuda/include ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  target_compile_definitions(test_cuda_emulated PRIVATE SLIMPACK_CHECKED)
  add_test(NAME cuda_emulated COMMAND test_cuda_emulated)
endif()
if(SLIMPACK_CUDA)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu/*.cpp)
  add_executable(test_cuda ${sources})
  target_link_libraries(test_cuda PRIVATE slimpack_cuda slimpack_private doctest::doctest)
  target_include_directories(test_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  add_test(NAME cuda COMMAND test_cuda)
  set_tests_properties(cuda PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)
endif()
