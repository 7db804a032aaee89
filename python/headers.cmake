# SPDX-License-Identifier: Apache-2.0
# Says in one sentence which headers of other projects are missing, before CMake says so of the first.
set(missing)
foreach(package nlohmann_json Eigen3 fmt CLI11)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND missing ${package})
  endif()
endforeach()
if(missing)
  list(JOIN missing ", " missing)
  message(FATAL_ERROR "slimpack: headers that the wheel is compiled from are missing: ${missing}; docs/python.md names "
    "their packages (Debian: nlohmann-json3-dev libeigen3-dev libfmt-dev libcli11-dev)")
endif()
