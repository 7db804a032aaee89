# SPDX-License-Identifier: Apache-2.0
# test_cuda_emulated runs kernels, and what is plain C++ of the backend, on the CPU, test_cuda_ranks
# whole steps of plans on emulated devices; they need no CUDA Toolkit. test_cuda_gemm runs the matrix
# products on a stand-in for cuBLASLt in the memory of the host, by the tests that a device runs too.
# test_cuda runs launchers on a device and says what is missing where there is none.
if(TARGET slimpack_cuda_emulated)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/*.cpp)
  add_executable(test_cuda_emulated ${sources} $<TARGET_OBJECTS:doctest_main>)
  target_link_libraries(test_cuda_emulated PRIVATE slimpack_cuda_emulated slimpack_private doctest::doctest slimpack_o1)
  target_include_directories(test_cuda_emulated PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/backends/cuda ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  slimpack_test_entries(cuda_emulated test_cuda_emulated LABELS emulated)
  # The tests of a device's launchers once more, on the emulated library.
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu/*_test.cpp)
  add_executable(test_cuda_launchers ${sources} cuda/launchers_main.cpp)
  target_compile_definitions(test_cuda_launchers PRIVATE SLIMPACK_EMULATED)
  target_link_libraries(test_cuda_launchers PRIVATE slimpack_cuda_emulated slimpack_private doctest::doctest slimpack_o1)
  target_include_directories(test_cuda_launchers PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  slimpack_test_entries(cuda_launchers test_cuda_launchers ARGUMENTS --test-suite-exclude=large* LABELS emulated)
  if(NOT SLIMPACK_CUDA_ALONE)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/ranks/*.cpp)
    add_executable(test_cuda_ranks ${sources} $<TARGET_OBJECTS:doctest_main>)
    target_link_libraries(test_cuda_ranks PRIVATE slimpack_cuda_emulated slimpack_planners slimpack_private doctest::doctest slimpack_o1)
    target_include_directories(test_cuda_ranks PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    slimpack_test_entries(cuda_ranks test_cuda_ranks LABELS emulated)
  endif()
endif()
if(SLIMPACK_CUDA)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu/*.cpp)
  add_executable(test_cuda ${sources})
  target_link_libraries(test_cuda PRIVATE slimpack_cuda slimpack_private doctest::doctest)
  target_include_directories(test_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  add_test(NAME cuda COMMAND test_cuda --test-suite-exclude=*needs-hopper)
  add_test(NAME cuda.needs_hopper COMMAND test_cuda --test-suite=*needs-hopper)
  set_tests_properties(cuda cuda.needs_hopper PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)
  add_executable(test_cuda_gemm cuda/host/host_blas.cpp cuda/host/choices_file_test.cpp cuda/host/timed_choices_test.cpp cuda/gpu/gemm_test.cpp
    ${PROJECT_SOURCE_DIR}/backends/cuda/src/host/gemm.cpp ${PROJECT_SOURCE_DIR}/backends/cuda/src/ops/cublas_products.cpp $<TARGET_OBJECTS:doctest_main>)
  set_target_properties(test_cuda_gemm PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(test_cuda_gemm PRIVATE slimpack_private doctest::doctest)
  target_include_directories(test_cuda_gemm PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/backends/cuda/include ${PROJECT_SOURCE_DIR}/backends/cuda/src)
  target_include_directories(test_cuda_gemm SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  slimpack_test_entries(cuda_gemm test_cuda_gemm ARGUMENTS --test-suite-exclude=large*)
  set_tests_properties(cuda_gemm PROPERTIES LABELS cuda)
  if(SLIMPACK_INSTALL)
    add_test(NAME consumer.cuda
      COMMAND ${CMAKE_COMMAND} -DCONSUMER=cuda -DSLIMPACK=${PROJECT_SOURCE_DIR} -DBUILT=${PROJECT_BINARY_DIR}
              -DWORK=${CMAKE_CURRENT_BINARY_DIR}/consumer/cuda -DGENERATOR=${CMAKE_GENERATOR}
              -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/check.cmake)
    set_tests_properties(consumer.cuda PROPERTIES LABELS cuda)
  endif()
endif()
