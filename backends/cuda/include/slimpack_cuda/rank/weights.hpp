// SPDX-License-Identifier: Apache-2.0
// What a rank always holds on its device: weights, gradients and its part of the optimizer state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack/exec/parameters.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"

namespace slimpack::cuda {

/// Elements [first, first + weights.size()) of a named tensor, counted over the whole tensor: fp32
/// weights and both moments, on the host.
struct MasterPart {
  exec::TensorShape tensor;  ///< whole
  std::size_t first = 0;
  std::vector<float> weights, first_moment, second_moment;
};

/// The tensors of a layer as matrix products take them: those that read the same input lie one
/// behind the other and are one matrix.
template <class Element>
struct LayerMatrices {
  DeviceSpan<Element> input_norm, query_key_value, query, output, mid_norm, gate_up, down;
};

/// Weights in bf16, gradients in fp32, both whole; fp32 weights and moments of the elements
/// [range_first, range_last), which are the rank's to update.
class RankWeights {
 public:
  /// Vectors of this many elements are never divided between ranks.
  static constexpr std::size_t kWhole = 8;

  RankWeights(const Plan& plan, std::int32_t dp, std::int32_t pp)
      : layout_(exec::layout_of(plan, pp)) {
    const std::size_t size = layout_.size();
    const auto ranks = static_cast<std::size_t>(plan.parallel.dp);
    part_ = size;
    if (plan.memory.optimizer == OptimizerState::sharded) {
      part_ = ((size + ranks - 1) / ranks + kWhole - 1) / kWhole * kWhole;
      first_ = std::min(size, part_ * static_cast<std::size_t>(dp));
    }
    last_ = std::min(size, first_ + part_);
    const auto count = [](std::size_t elements) { return static_cast<std::int64_t>(elements); };
    weights_ = DeviceBuffer<Bf16>(count(size));
    // The gradient of a vocabulary that is no multiple of kWhole rows ends in rows of zeros.
    gradients_ =
        DeviceBuffer<float>(count(size + kWhole * static_cast<std::size_t>(plan.model.hidden)));
    master_ = DeviceBuffer<float>(count(part_));
    first_moment_ = DeviceBuffer<float>(count(part_));
    second_moment_ = DeviceBuffer<float>(count(part_));
  }

  [[nodiscard]] const exec::ParameterLayout& layout() const noexcept { return layout_; }
  /// Where there is one.
  [[nodiscard]] const exec::HeldTensor& embedding() const {
    return layout_.tensors[layout_.embedding.front()];
  }
  [[nodiscard]] const exec::HeldTensor& final_norm() const {
    return layout_.tensors[layout_.final_norm.front()];
  }
  [[nodiscard]] const exec::HeldTensor& head() const {
    return layout_.tensors[layout_.head.front()];
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> range() const noexcept {
    return {first_, last_};
  }
  [[nodiscard]] exec::StaticBytes bytes() const noexcept {
    const auto size = [](std::size_t elements, std::size_t each) {
      return Bytes{static_cast<std::int64_t>(elements * each)};
    };
    return {size(layout_.size(), sizeof(Bf16)), size(layout_.size(), sizeof(float)),
            size(part_, 3 * sizeof(float))};
  }

  /// Draws weights from `seed`, as every backend does, and clears the moments.
  void initialise(std::uint64_t seed, StreamView stream) {
    for (const exec::HeldTensor& tensor : layout_.tensors) {
      exec::TensorShape whole = tensor.shape;
      whole.rows = tensor.whole_rows;
      const std::int64_t at_once = std::max<std::int64_t>(1, kDrawn / tensor.shape.cols);
      for (std::int64_t row = 0; row < tensor.shape.rows; row += at_once) {
        const std::int64_t rows = std::min(at_once, tensor.shape.rows - row);
        std::vector<double> drawn(static_cast<std::size_t>(rows * tensor.shape.cols));
        exec::initialise(drawn, whole, tensor.first_row + row, seed);
        std::vector<float> values(drawn.size());
        std::ranges::transform(drawn, values.begin(),
                               [](double value) { return static_cast<float>(value); });
        set(tensor.offset + static_cast<std::size_t>(row * tensor.shape.cols), values, stream);
      }
    }
    fill_zeros(first_moment_.span(), stream);
    fill_zeros(second_moment_.span(), stream);
    fill_zeros(gradients_.span(), stream);
    stream.synchronize();
  }

  /// Sets elements [offset, offset + values.size()), and their fp32 weights where they are here.
  void set(std::size_t offset, std::span<const float> values, StreamView stream) {
    std::vector<Bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    upload(
        all().subspan(static_cast<std::int64_t>(offset), static_cast<std::int64_t>(values.size())),
        std::span<const Bf16>(rounded), stream);
    const std::size_t begin = std::max(first_, offset);
    const std::size_t end = std::min(last_, offset + values.size());
    if (begin < end) {
      upload(of_range(master_, begin, end), values.subspan(begin - offset, end - begin), stream);
    }
    stream.synchronize();  // the values are the caller's
  }

  /// The rank's part of the optimizer, in the order of memory.
  [[nodiscard]] std::vector<MasterPart> master_parts(StreamView stream) const {
    std::vector<MasterPart> parts;
    for_each_part(
        [&](const exec::HeldTensor& tensor, std::size_t first, std::size_t begin, std::size_t end) {
          exec::TensorShape whole = tensor.shape;
          whole.rows = tensor.whole_rows;
          parts.push_back({std::move(whole), first, download(of_range(master_, begin, end), stream),
                           download(of_range(first_moment_, begin, end), stream),
                           download(of_range(second_moment_, begin, end), stream)});
        });
    return parts;
  }
  /// Sets moments and fp32 weights, with their bf16 copies, as master_parts gave them. Throws
  /// InvalidInput unless these are the parts that are here.
  void set_master_parts(std::span<const MasterPart> parts, StreamView stream) {
    std::size_t at = 0;
    for_each_part([&](const exec::HeldTensor& tensor, std::size_t first, std::size_t begin,
                      std::size_t end) {
      const std::size_t size = end - begin;
      require(at < parts.size() && parts[at].tensor.name == tensor.shape.name &&
                  parts[at].first == first && parts[at].weights.size() == size &&
                  parts[at].first_moment.size() == size && parts[at].second_moment.size() == size,
              "RankDevice: parts of the optimizer must be those of the device",
              static_cast<std::int64_t>(at));
      const MasterPart& part = parts[at++];
      set(begin, part.weights, stream);
      upload(of_range(first_moment_, begin, end), std::span<const float>(part.first_moment),
             stream);
      upload(of_range(second_moment_, begin, end), std::span<const float>(part.second_moment),
             stream);
    });
    require(at == parts.size(), "RankDevice: parts of the optimizer must be those of the device",
            static_cast<std::int64_t>(parts.size()));
    stream.synchronize();
  }

  // --- views ---

  [[nodiscard]] DeviceSpan<Bf16> all() const noexcept { return weights_.span(); }
  [[nodiscard]] DeviceSpan<float> all_gradients() const noexcept {
    return gradients_.span().subspan(0, static_cast<std::int64_t>(layout_.size()));
  }
  /// What follows an element, rows of zeros behind the last tensor included.
  [[nodiscard]] DeviceSpan<float> gradients_from(std::size_t offset, std::int64_t size) const {
    return gradients_.span().subspan(static_cast<std::int64_t>(offset), size);
  }
  [[nodiscard]] DeviceSpan<const Bf16> weights(const exec::HeldTensor& tensor) const noexcept {
    return part<const Bf16>(weights_, tensor);
  }
  [[nodiscard]] DeviceSpan<float> gradients(const exec::HeldTensor& tensor) const noexcept {
    return part<float>(gradients_, tensor);
  }
  [[nodiscard]] DeviceSpan<float> master() const noexcept { return here(master_); }
  [[nodiscard]] DeviceSpan<float> first_moment() const noexcept { return here(first_moment_); }
  [[nodiscard]] DeviceSpan<float> second_moment() const noexcept { return here(second_moment_); }

  [[nodiscard]] LayerMatrices<const Bf16> layer_weights(std::int64_t layer) const {
    return matrices<const Bf16>(weights_, layer);
  }
  [[nodiscard]] LayerMatrices<float> layer_gradients(std::int64_t layer) const {
    return matrices<float>(gradients_, layer);
  }

 private:
  static constexpr std::int64_t kDrawn = 1 << 20;  ///< numbers drawn at a time

  template <class View, class Element>
  static DeviceSpan<View> part(const DeviceBuffer<Element>& buffer,
                               const exec::HeldTensor& tensor) noexcept {
    return buffer.span().subspan(static_cast<std::int64_t>(tensor.offset),
                                 static_cast<std::int64_t>(tensor.size()));
  }
  template <class View, class Element>
  [[nodiscard]] LayerMatrices<View> matrices(const DeviceBuffer<Element>& buffer,
                                             std::int64_t layer) const {
    const std::size_t first = layout_.layer[static_cast<std::size_t>(layer)];
    const auto tensor = [&](exec::LayerTensor which) -> const exec::HeldTensor& {
      return layout_.tensors[first + static_cast<std::size_t>(which)];
    };
    const auto from_to = [&](exec::LayerTensor begin, exec::LayerTensor end) {
      const std::size_t size = tensor(end).offset + tensor(end).size() - tensor(begin).offset;
      return DeviceSpan<View>(buffer.span().subspan(static_cast<std::int64_t>(tensor(begin).offset),
                                                    static_cast<std::int64_t>(size)));
    };
    using enum exec::LayerTensor;
    return {from_to(input_norm, input_norm),
            from_to(query, value),
            from_to(query, query),
            from_to(output, output),
            from_to(mid_norm, mid_norm),
            from_to(gate, up),
            from_to(down, down)};
  }

  /// Calls visit(tensor, first element of the whole tensor, begin, end) for the elements of each
  /// tensor whose optimizer state is here.
  template <class Visit>
  void for_each_part(Visit visit) const {
    for (const exec::HeldTensor& tensor : layout_.tensors) {
      const std::size_t begin = std::max(first_, tensor.offset);
      const std::size_t end = std::min(last_, tensor.offset + tensor.size());
      if (begin >= end) continue;
      const auto skipped = static_cast<std::size_t>(tensor.first_row * tensor.shape.cols);
      visit(tensor, skipped + begin - tensor.offset, begin, end);
    }
  }
  [[nodiscard]] DeviceSpan<float> of_range(const DeviceBuffer<float>& buffer, std::size_t begin,
                                           std::size_t end) const noexcept {
    return buffer.span().subspan(static_cast<std::int64_t>(begin - first_),
                                 static_cast<std::int64_t>(end - begin));
  }
  [[nodiscard]] DeviceSpan<float> here(const DeviceBuffer<float>& buffer) const noexcept {
    return of_range(buffer, first_, last_);
  }

  exec::ParameterLayout layout_;
  std::size_t part_ = 0, first_ = 0, last_ = 0;
  DeviceBuffer<Bf16> weights_;
  DeviceBuffer<float> gradients_, master_, first_moment_, second_moment_;
};

}  // namespace slimpack::cuda
