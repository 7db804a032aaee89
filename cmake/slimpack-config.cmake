# SPDX-License-Identifier: Apache-2.0
# slimpack::slimpack needs the standard library alone; slimpack::runtime and slimpack::cpu start threads.
# Who includes slimpack/io/ adds nlohmann_json, and who includes slimpack/cost/fit.hpp or the devices of
# slimpack_cpu/ adds Eigen. Components, there if they were built and installed: `report` brings
# slimpack::report, `planners` brings slimpack::planners, `cuda` brings slimpack::cuda and needs the CUDA Toolkit.
include(CMakeFindDependencyMacro)
find_package(Threads QUIET)
include(${CMAKE_CURRENT_LIST_DIR}/slimpack-targets.cmake)
foreach(component IN LISTS slimpack_FIND_COMPONENTS)
  if(component MATCHES "^(planners|report|cuda)$" AND EXISTS ${CMAKE_CURRENT_LIST_DIR}/slimpack-${component}-targets.cmake)
    if(component STREQUAL "cuda")
      find_dependency(CUDAToolkit 12.5)
    endif()
    include(${CMAKE_CURRENT_LIST_DIR}/slimpack-${component}-targets.cmake)
    set(slimpack_${component}_FOUND TRUE)
  elseif(slimpack_FIND_REQUIRED_${component})
    set(slimpack_FOUND FALSE)
    set(slimpack_NOT_FOUND_MESSAGE "this slimpack was installed without the component ${component}")
  endif()
endforeach()
