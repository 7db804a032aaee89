// SPDX-License-Identifier: Apache-2.0
// The words of enumerations: in plan.json, on the command line and in messages, each written once.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The words of an enumeration whose values count from 0, in the order of its values. Specialise it
/// for an enumeration of your own, in namespace slimpack.
template <class Enumeration>
inline constexpr std::array<std::string_view, 0> kWords{};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Pass>{"forward", "backward", "weight"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<RingMode>{"kv", "q", "heads"};
template <>
inline constexpr std::array<std::string_view, 4> kWords<Recompute>{"none", "light", "layer",
                                                                   "full"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<WeightGradients>{"with", "apart"};
template <>
inline constexpr std::array<std::string_view, 6> kWords<UnitKind>{"F", "B", "H", "R", "O", "W"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<LmHead>{"last", "shard"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<OptimizerState>{"sharded", "replicated"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<WeightState>{"replicated", "sharded"};

/// An enumeration that has words.
template <class Type>
concept NamedEnumeration = std::is_enum_v<Type> && !kWords<Type>.empty();
static_assert(NamedEnumeration<Recompute> && !NamedEnumeration<int>);

/// The word of a value; "?" for a value that the enumeration does not name.
template <NamedEnumeration Enumeration>
[[nodiscard]] constexpr std::string_view to_string(Enumeration value) noexcept {
  const auto i = static_cast<std::size_t>(value);
  return i < kWords<Enumeration>.size() ? kWords<Enumeration>[i] : "?";
}

/// The value of a word; absent where the enumeration has no such word. O(words).
template <NamedEnumeration Enumeration>
[[nodiscard]] constexpr std::optional<Enumeration> from_string(std::string_view word) noexcept {
  for (std::size_t i = 0; i < kWords<Enumeration>.size(); ++i) {
    if (kWords<Enumeration>[i] == word) return static_cast<Enumeration>(i);
  }
  return std::nullopt;
}

/// "F of MicroPack 3, chunk 1", "H of MicroPack 3", "R of chunk 1" or "O", for messages.
[[nodiscard]] inline std::string to_string(const Unit& unit) {
  const std::string pack = " of MicroPack " + std::to_string(index(unit.pack));
  const std::string chunk = "chunk " + std::to_string(unit.chunk);
  switch (unit.kind) {
    case UnitKind::forward:
    case UnitKind::backward:
    case UnitKind::weight:
      return std::string(to_string(unit.kind)) + pack + ", " + chunk;
    case UnitKind::head:
      return "H" + pack;
    case UnitKind::reduce:
      return "R of " + chunk;
    case UnitKind::optimizer:
      return "O";
  }
  return "?";
}

}  // namespace slimpack
