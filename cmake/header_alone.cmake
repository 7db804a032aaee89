# SPDX-License-Identifier: Apache-2.0
# Target `all_verify_interface_header_sets` reads each header as a file of its own, with our warning flags, and compiles
# nothing. The optional dependencies are linked here and nowhere near the exported targets.
add_library(slimpack_headers INTERFACE EXCLUDE_FROM_ALL)
file(GLOB_RECURSE backend_headers CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/backends/cuda/include/slimpack_cuda/*.hpp)
target_sources(slimpack_headers INTERFACE
  FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/runtime/include
                             ${PROJECT_SOURCE_DIR}/report/include ${PROJECT_SOURCE_DIR}/backends/cpu/include
                             ${PROJECT_SOURCE_DIR}/backends/cuda/include ${PROJECT_SOURCE_DIR}/backends/processes/include
  FILES ${SLIMPACK_HEADERS} ${SLIMPACK_RUNTIME_HEADERS} ${SLIMPACK_REPORT_HEADERS} ${SLIMPACK_CPU_HEADERS} ${backend_headers})
target_link_libraries(slimpack_headers INTERFACE slimpack_private)
target_compile_options(slimpack_headers INTERFACE -fsyntax-only)
set_target_properties(slimpack_headers PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
