# SPDX-License-Identifier: Apache-2.0
# Nothing to find: slimpack::slimpack needs the standard library alone. Who includes slimpack/io/
# adds nlohmann_json, and who includes slimpack/cost/fit.hpp adds Eigen. The component `cuda`, there if
# it was built, brings slimpack::cuda and needs the CUDA Toolkit.
include(${CMAKE_CURRENT_LIST_DIR}/slimpack-targets.cmake)
foreach(component IN LISTS slimpack_FIND_COMPONENTS)
  if(component STREQUAL "cuda" AND EXISTS ${CMAKE_CURRENT_LIST_DIR}/slimpack-cuda-targets.cmake)
    include(CMakeFindDependencyMacro)
    find_dependency(CUDAToolkit 12.4)
    include(${CMAKE_CURRENT_LIST_DIR}/slimpack-cuda-targets.cmake)
    set(slimpack_cuda_FOUND TRUE)
  elseif(slimpack_FIND_REQUIRED_${component})
    set(slimpack_FOUND FALSE)
    set(slimpack_NOT_FOUND_MESSAGE "this slimpack was installed without the component ${component}")
  endif()
endforeach()
