// SPDX-License-Identifier: Apache-2.0
// One number for what a plan makes its devices do, for ranks to compare before they run it.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The hash of a plan: 128 bits, as `plan_hash` makes it.
struct PlanHash {
  std::uint64_t high = 0;  ///< upper 64 bits
  std::uint64_t low = 0;   ///< lower 64 bits
  friend bool operator==(const PlanHash&, const PlanHash&) = default;
};

/// 32 lower-case hexadecimal digits.
[[nodiscard]] inline std::string to_string(const PlanHash& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {hash.high, hash.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15U];
  }
  return text;
}

namespace detail {

/// FNV-1a with 128 bits (Fowler, Noll, Vo; offset basis 6c62272e07bb014262b821756295c58d, prime
/// 2^88 + 2^8 + 0x3b). Numbers go in as eight bytes, lowest first; texts and lists as their size
/// and what they hold; so two plans that differ give two different strings of bytes.
class PlanHasher {
 public:
  void byte(std::uint64_t value) noexcept {
    low_ ^= value;
    // (high 2^64 + low)(2^88 + 0x13b) modulo 2^128.
    constexpr std::uint64_t kSmall = 0x13b;
    const std::uint64_t bottom = (low_ & 0xffffffffU) * kSmall;
    const std::uint64_t middle = (low_ >> 32U) * kSmall + (bottom >> 32U);
    high_ = high_ * kSmall + (middle >> 32U) + (low_ << 24U);
    low_ = (middle << 32U) | (bottom & 0xffffffffU);
  }
  void add(std::uint64_t value) noexcept {
    for (unsigned shift = 0; shift < 64; shift += 8) byte((value >> shift) & 0xffU);
  }
  void add(std::int64_t value) noexcept { add(static_cast<std::uint64_t>(value)); }
  void add(std::int32_t value) noexcept { add(std::int64_t{value}); }
  void add(bool value) noexcept { add(std::uint64_t{value ? 1U : 0U}); }
  void add(double value) noexcept { add(std::bit_cast<std::uint64_t>(value)); }
  template <class Unit>
  void add(Quantity<Unit> value) noexcept {
    add(value.value);
  }
  template <class Enumerator>
    requires std::is_enum_v<Enumerator>
  void add(Enumerator value) noexcept {
    add(static_cast<std::uint64_t>(value));
  }
  void add(std::string_view text) noexcept {
    add(std::uint64_t{text.size()});
    for (const char character : text) byte(static_cast<unsigned char>(character));
  }
  template <class Value>
  void add(const std::vector<Value>& values) noexcept {
    add(std::uint64_t{values.size()});
    for (const Value& value : values) add(value);
  }

  void add(const Origin& origin) noexcept {
    add(origin.source), add(origin.document), add(origin.first);
  }
  void add(const Source& source) noexcept { add(source.documents), add(source.sha256); }
  void add(const Slice& slice) noexcept { add(slice.sample), add(slice.begin), add(slice.end); }
  void add(const MicroPack& pack) noexcept {
    add(pack.pass), add(pack.group), add(pack.slices), add(pack.exchange);
    // One number for both: packs without `apart` keep the hash that they had before there was one.
    add(std::uint64_t{static_cast<std::uint64_t>(pack.recompute) +
                      (pack.weights == WeightGradients::apart ? kRecomputeModes : 0U)});
  }
  void add(const Unit& unit) noexcept { add(unit.kind), add(unit.pack), add(unit.chunk); }
  void add(const DeviceSchedule& device) noexcept {
    add(device.dp), add(device.pp), add(device.order);
  }
  void add(const Stage& stage) noexcept {
    add(stage.pp), add(stage.chunk), add(stage.first_layer), add(stage.end_layer);
    add(stage.embedding);
  }
  void add(const Placement& place) noexcept {
    add(place.dp), add(place.pp), add(place.tp), add(place.device);
  }
  void add(const ModelShape& model) noexcept {
    add(model.layers), add(model.hidden), add(model.heads), add(model.kv_heads);
    add(model.head_dim), add(model.ffn), add(model.vocab), add(model.tied);
    add(model.rope_theta), add(model.norm_eps), add(model.bytes_per_element);
  }
  void add(const Parallel& parallel) noexcept {
    add(parallel.dp), add(parallel.pp), add(parallel.tp), add(parallel.chunks);
    add(parallel.head), add(parallel.granularity), add(parallel.max_cp);
  }
  void add(const MemorySpec& memory) noexcept {
    add(memory.capacity), add(memory.reserved), add(memory.optimizer), add(memory.gradient_bytes);
    add(memory.page_tokens), add(memory.cp_block_tokens), add(memory.head_tile);
    // Plans without it keep the hash that they had before there was any.
    if (memory.weights == WeightState::sharded) add(memory.weights);
  }

  [[nodiscard]] PlanHash value() const noexcept { return {high_, low_}; }

 private:
  std::uint64_t high_ = 0x6c62272e07bb0142U, low_ = 0x62b821756295c58dU;
};

}  // namespace detail

/// The hash of everything that decides what devices do: version, step and targets, where samples
/// come from (documents and digest of each source, not its path), samples, shape of the model,
/// degrees, memory rules, placement, stages, groups, MicroPacks, schedules and `max_in_flight`. Not
/// of names (planner, model, paths), of cluster and cost, which only say how long it takes, nor of
/// the prediction. The same on every platform and compiler with IEEE 754 doubles; equal plans have
/// equal hashes, a plan and another that executes differently have different ones but by a chance
/// of 2^-128. It is no defence against somebody who looks for two plans with one hash. O(plan).
[[nodiscard]] inline PlanHash plan_hash(const Plan& plan) noexcept {
  detail::PlanHasher hash;
  hash.add(plan.version);
  hash.add(plan.step_index);
  hash.add(plan.target_tokens);
  hash.add(plan.sources);
  hash.add(plan.origin);
  hash.add(plan.samples);
  hash.add(plan.model);
  hash.add(plan.memory);
  hash.add(plan.parallel);
  hash.add(plan.placement);
  hash.add(plan.stages);
  hash.add(plan.groups);
  hash.add(plan.sample_group);
  // Plans without it keep the hash that they had before there was any.
  if (!plan.sample_first.empty()) hash.add(plan.sample_first);
  hash.add(plan.micropacks);
  hash.add(plan.schedule);
  hash.add(plan.max_in_flight);
  return hash.value();
}

}  // namespace slimpack
