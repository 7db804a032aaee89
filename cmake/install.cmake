# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the headers, the package that find_package(slimpack) reads, and the compiled libraries,
# each a component of its own where it is built: report, planners, cuda.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/slimpack)
install(TARGETS slimpack slimpack_runtime slimpack_cpu EXPORT slimpack-targets FILE_SET HEADERS COMPONENT headers)
install(EXPORT slimpack-targets NAMESPACE slimpack:: DESTINATION ${package_dir} COMPONENT headers)
install(TARGETS slimpack_report EXPORT slimpack-report-targets
        ARCHIVE COMPONENT report OPTIONAL FILE_SET HEADERS COMPONENT report)
install(EXPORT slimpack-report-targets NAMESPACE slimpack:: DESTINATION ${package_dir} COMPONENT report)
install(TARGETS slimpack_planners EXPORT slimpack-planners-targets ARCHIVE COMPONENT planners OPTIONAL)
install(EXPORT slimpack-planners-targets NAMESPACE slimpack:: DESTINATION ${package_dir} COMPONENT planners)
if(SLIMPACK_CUDA)
  install(TARGETS slimpack_cuda EXPORT slimpack-cuda-targets ARCHIVE COMPONENT cuda FILE_SET HEADERS COMPONENT cuda)
  install(EXPORT slimpack-cuda-targets NAMESPACE slimpack:: DESTINATION ${package_dir} COMPONENT cuda)
endif()
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/slimpack-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES cmake/slimpack-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/slimpack-config-version.cmake
        DESTINATION ${package_dir} COMPONENT headers)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT headers)
