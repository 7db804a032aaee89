// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of a step as bytes: results of devices and of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::processes {

/// Numbers as bytes, one after the other. Reading trusts that a rank of the same program wrote
/// them.
class Packed {
 public:
  Packed() = default;
  explicit Packed(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  template <class Value>
    requires std::is_trivially_copyable_v<Value>
  void put(const Value& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void put(const std::vector<double>& values) {
    put(std::uint64_t{values.size()});
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <class Value>
    requires std::is_trivially_copyable_v<Value>
  void get(Value& value) {
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
  }
  void get(std::vector<double>& values) {
    std::uint64_t size = 0;
    get(size);
    values.resize(size);
    if (size > 0) std::memcpy(values.data(), bytes_.data() + at_, size * sizeof(double));
    at_ += size * sizeof(double);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

[[nodiscard]] inline std::vector<std::byte> pack(const runtime::DeviceResult& result) {
  Packed packed;
  packed.put(result.held);
  packed.put(result.peak);
  packed.put(std::uint64_t{result.losses.size()});
  for (const runtime::TokenLosses& part : result.losses) {
    packed.put(part.sample);
    packed.put(part.begin);
    packed.put(part.values);
  }
  return packed.take();
}

[[nodiscard]] inline runtime::DeviceResult unpack_device(std::vector<std::byte> bytes) {
  Packed packed(std::move(bytes));
  runtime::DeviceResult result;
  std::uint64_t parts = 0;
  packed.get(result.held);
  packed.get(result.peak);
  packed.get(parts);
  result.losses.resize(parts);
  for (runtime::TokenLosses& part : result.losses) {
    packed.get(part.sample);
    packed.get(part.begin);
    packed.get(part.values);
  }
  return result;
}

[[nodiscard]] inline std::vector<std::byte> pack(const runtime::StepResult& result) {
  Packed packed;
  packed.put(result.loss);
  packed.put(result.sample_loss);
  packed.put(std::uint64_t{result.peak.size()});
  for (const Bytes peak : result.peak) packed.put(peak);
  return packed.take();
}

[[nodiscard]] inline runtime::StepResult unpack_step(std::vector<std::byte> bytes) {
  Packed packed(std::move(bytes));
  runtime::StepResult result;
  std::uint64_t devices = 0;
  packed.get(result.loss);
  packed.get(result.sample_loss);
  packed.get(devices);
  result.peak.resize(devices);
  for (Bytes& peak : result.peak) packed.get(peak);
  return result;
}

}  // namespace slimpack::processes
