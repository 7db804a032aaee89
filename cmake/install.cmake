# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the headers, the package that find_package(slimpack) reads, and the compiled libraries,
# each a component of its own where it is built: report, planners, cuda; and the command line, component programs.
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
if(TARGET slimpack_program)
  install(TARGETS slimpack_program RUNTIME COMPONENT programs OPTIONAL)
endif()

# `cpack` in the build folder makes an archive and a Debian package of all that is built and installed.
if(PROJECT_IS_TOP_LEVEL AND NOT SLIMPACK_BUILD_PYTHON)
  set(CPACK_GENERATOR "TGZ;DEB")
  set(CPACK_PACKAGE_VENDOR "slimpack")
  set(CPACK_PACKAGE_CONTACT "slimpack contributors")
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_PACKAGE_FILE_NAME slimpack-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  # Who includes slimpack/io/ or slimpack/cost/fit.hpp needs them, and no one else.
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "nlohmann-json3-dev, libeigen3-dev")
  include(CPack)
endif()
