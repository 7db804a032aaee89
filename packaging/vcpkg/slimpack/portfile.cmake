# SPDX-License-Identifier: Apache-2.0
# A port of the tree that it lies in: vcpkg install slimpack --overlay-ports=packaging/vcpkg
# Never tried: it was written by vcpkg's documentation, on a machine without vcpkg.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DSLIMPACK_BUILD_TESTS=OFF -DSLIMPACK_BUILD_BENCH=OFF -DSLIMPACK_BUILD_EXAMPLES=OFF
    -DSLIMPACK_BUILD_APPS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME slimpack CONFIG_PATH share/cmake/slimpack)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
