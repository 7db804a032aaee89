// SPDX-License-Identifier: Apache-2.0
// The whole of a program's main function as a rank of many.
#pragma once

#include <concepts>
#include <exception>
#include <string>
#include <utility>

#include "slimpack/core/error.hpp"

namespace slimpack::processes {

/// A process that has met the other ranks: `finish` ends well, together with all others; `end` ends
/// the process after all ranks know the cause.
template <class Candidate>
concept RankSession = requires(Candidate& session, const std::string& cause, int status) {
  session.finish();
  session.end(cause, status);
};

/// body(session) gives the exit status, the same on all ranks. What it throws is told to all ranks,
/// and every rank ends with the first cause on standard error: with 2 where it threw InvalidInput,
/// else with 1.
template <RankSession Session, std::invocable<Session&> Body>
int run(Session& session, Body body) {
  int status = 1;
  try {
    status = body(session);
  } catch (const InvalidInput& error) {
    session.end(error.what(), 2);
  } catch (const std::exception& error) {
    session.end(error.what(), 1);
  } catch (...) {
    session.end("an exception of unknown type", 1);
  }
  session.finish();
  return status;
}

}  // namespace slimpack::processes
