# SPDX-License-Identifier: Apache-2.0
# The CUDA language: device code for Hopper with its own instructions, and for everything from sm_80 on.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90a-real CACHE STRING "What device code is made for")
endif()
enable_language(CUDA)
# CMake before 3.25.2 does not know that nvcc speaks C++20 with a GNU host compiler.
if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  list(APPEND CMAKE_CUDA_KNOWN_FEATURES cuda_std_20)
endif()
