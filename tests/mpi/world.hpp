// SPDX-License-Identifier: Apache-2.0
// The rank that a test program is, for its test cases.
#pragma once

#include "slimpack_mpi/mpi_transport.hpp"

namespace slimpack::test {

/// Set by main before the first test case. All ranks run the same cases in the same order.
inline mpi::MpiTransport*& link_of_rank() {
  static mpi::MpiTransport* link = nullptr;
  return link;
}
inline mpi::MpiTransport& mpi_link() {
  return *link_of_rank();
}
inline std::size_t mpi_rank() {
  return mpi_link().session().rank();
}
inline std::size_t mpi_ranks() {
  return mpi_link().session().size();
}

}  // namespace slimpack::test
