// SPDX-License-Identifier: Apache-2.0
// Runs the test cases on every rank; only rank 0 talks, unless another one fails.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>

#include "mpi/world.hpp"

int main(int argc, char** argv) {
  return slimpack::mpi::run(argc, argv, {}, [&](slimpack::mpi::Session& session) {
    // Even numbers of ranks have the thread that keeps MPI going, odd ones do without.
    slimpack::mpi::TransportOptions options;
    options.progress = std::chrono::microseconds(session.size() % 2 == 0 ? 100 : 0);
    slimpack::mpi::MpiTransport link(session, options);
    slimpack::test::link_of_rank() = &link;
    doctest::Context context(argc, argv);
    std::ostringstream quiet;
    if (session.rank() != 0) context.setCout(&quiet);
    const int status = context.run();
    if (status == 0) return 0;
    if (session.rank() != 0) std::fputs(quiet.str().c_str(), stderr);
    throw std::runtime_error("test cases have failed");
  });
}
