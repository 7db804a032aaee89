# SPDX-License-Identifier: Apache-2.0
# Nothing to find: slimpack::slimpack needs the standard library alone. Who includes slimpack/io/
# adds nlohmann_json, and who includes slimpack/cost/fit.hpp adds Eigen.
include(${CMAKE_CURRENT_LIST_DIR}/slimpack-targets.cmake)
