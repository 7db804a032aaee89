// SPDX-License-Identifier: Apache-2.0
// The three ways in which slimpack says no: bad input, no answer, and a fault of its own.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace slimpack {

/// Input that breaks a rule. `what()` is one sentence naming place, rule and value; programs end
/// with exit status 2.
class InvalidInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A plan whose units wait for each other for ever. `what()` lists what each blocked unit awaits.
class Deadlock : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Why there is no feasible plan. This is an answer, not an error; programs end with exit status 1.
struct Infeasible {
  std::string constraint;      ///< what is lacking and where, with the unit of both numbers
  std::int64_t needed = 0;     ///< how much of it a plan needs
  std::int64_t available = 0;  ///< how much of it there is
};

namespace detail {
// Out of line, so that what is required costs a comparison where it holds.
[[noreturn, gnu::cold, gnu::noinline]] inline void reject(std::string_view rule) {
  throw InvalidInput(std::string(rule));
}
[[noreturn, gnu::cold, gnu::noinline]] inline void reject(std::string_view rule,
                                                          std::int64_t value) {
  throw InvalidInput(std::string(rule) + ", got " + std::to_string(value));
}
[[noreturn, gnu::cold, gnu::noinline]] inline void reject(std::string_view rule,
                                                          std::string_view value) {
  throw InvalidInput(std::string(rule) + ", got '" + std::string(value) + "'");
}
}  // namespace detail

/// Throws InvalidInput with `rule` unless `condition` holds.
inline void require(bool condition, std::string_view rule) {
  if (!condition) detail::reject(rule);
}

/// Throws InvalidInput with `rule` and the offending value unless `condition` holds.
inline void require(bool condition, std::string_view rule, std::int64_t value) {
  if (!condition) detail::reject(rule, value);
}

/// Throws InvalidInput with `rule` and the offending text unless `condition` holds.
inline void require(bool condition, std::string_view rule, std::string_view value) {
  if (!condition) detail::reject(rule, value);
}

namespace detail {
[[noreturn]] inline void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: slimpack invariant broken: %s\n", file, line, expression);
  std::abort();
}
}  // namespace detail

}  // namespace slimpack

/// An internal invariant: its failure is a fault of slimpack, not of its user. Active where NDEBUG
/// is not defined or SLIMPACK_CHECKED is.
#if !defined(NDEBUG) || defined(SLIMPACK_CHECKED)
#define SLIMPACK_ASSERT(expression) \
  ((expression) ? void() : ::slimpack::detail::assertion_failed(#expression, __FILE__, __LINE__))
#else
#define SLIMPACK_ASSERT(expression) static_cast<void>(sizeof(!(expression)))
#endif
