// SPDX-License-Identifier: Apache-2.0
// A rank on a GPU that notes when each unit ran there, and that can evaluate without learning.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/element_type.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank_device.hpp"
#include "unit_time.hpp"

namespace slimpack::trainer {

/// What planners are told of GPUs like the current one, each with `ranks_a_gpu` equal ranks on it,
/// for `devices` ranks of this model in all: the preset of its kind, divided. Throws CudaError.
[[nodiscard]] Cluster gpu_as_cluster(const Options& options, const ModelShape& model,
                                     std::size_t devices, std::size_t ranks_a_gpu);

/// What a profile of `devices` ranks on GPUs like the current one is measured on: the GPU, or an
/// equal part of it where several ranks share one. A whole GPU of a preset's kind is known by the
/// preset's name, anything else by its own. Throws CudaError.
[[nodiscard]] MeasuredDevice gpu_as_device(std::size_t devices, std::size_t ranks_a_gpu);

/// The text of the file of --gemm-choices where that is to be read; empty where it is to be
/// written, which must be possible, or is not given. Throws where the file cannot be read or
/// written.
[[nodiscard]] std::string gemm_choices_text_of(const Options& options);
/// What ranks of a process choose algorithms of products with, from such a text; null where the
/// first that is proposed is taken. Throws InvalidInput where the text is none for the current GPU.
[[nodiscard]] std::unique_ptr<cuda::GemmChoices> gemm_choices(const Options& options,
                                                              std::string_view text);
/// What ranks of a process have chosen, as the text of a file; empty where they have not.
[[nodiscard]] std::string chosen_text(const cuda::GemmChoices* choices);
/// Writes to the file of --gemm-choices, where it is to be written, what processes have chosen: of
/// a product what the first of them took that had it.
void save_gemm_choices(const Options& options, std::span<const std::string> texts);

/// One thread makes, uses and destroys it; that thread's current device, or part of one, is the
/// rank's. Members that do not touch memory on the device may be called by other threads too.
class CudaDevice {
 public:
  using Buffer = cuda::RankDevice::Buffer;
  using Settings = cuda::AdamW;

  /// What weights and moments are in files: those that the optimizer keeps.
  using Stored = float;
  static constexpr runtime::ElementType kStored = runtime::ElementType::f32;
  static constexpr std::string_view kNumbers = "bf16";
  /// The largest relative difference from the reference.
  static constexpr double kTolerance = 2e-2;
  static constexpr Tokens kGranularity{64};
  /// Each tile of the head reads and writes the whole fp32 gradient of the projection: few, large.
  static constexpr std::optional<Tokens> kHeadTile = Tokens{4096};
  [[nodiscard]] static constexpr ElementBytes element_sizes() { return cuda::kRankElements; }
  /// Whether buffers lie where runtime::buffer_layout says.
  static constexpr bool kPlaced = true;
  /// Of buffers of a device that has this part of the model, and bytes that are free behind them.
  [[nodiscard]] static std::size_t alignment(const ModelShape& part) {
    return cuda::rank_alignment(part);
  }
  [[nodiscard]] static std::size_t behind(const ModelShape& part) {
    return cuda::bytes_behind(part);
  }
  /// A weight as the device computes with it.
  [[nodiscard]] static double rounded(double weight) {
    return static_cast<double>(cuda::to_float(cuda::to_bf16(static_cast<float>(weight))));
  }

  /// What of the plan's computation depends on the GPU, for people: the path of attention. Throws
  /// CudaError.
  [[nodiscard]] static std::string describe(const Plan& plan);

  CudaDevice() = default;  ///< none yet
  CudaDevice(const Plan& plan, std::size_t device, std::uint64_t seed, const cuda::AdamW& settings,
             const cuda::RankOptions& options = {})
      : rank_(std::make_unique<cuda::RankDevice>(plan, device, seed, settings, options)),
        hang_timeouts_(options.hang_timeouts) {}

  [[nodiscard]] cuda::StreamView stream() const { return rank_->stream(); }

  // --- training ---

  [[nodiscard]] const cuda::AdamW& settings() const { return rank_->settings(); }
  void set_settings(const cuda::AdamW& settings) { rank_->set_settings(settings); }
  [[nodiscard]] std::int64_t steps() const { return rank_->steps(); }
  void set_steps(std::int64_t steps) { rank_->set_steps(steps); }
  [[nodiscard]] double gradient_norm() const { return rank_->gradient_norm(); }
  /// While it is on, steps compute losses and change neither weights nor moments.
  void set_evaluating(bool evaluating) noexcept { evaluating_ = evaluating; }
  /// Times of the last step's units, in the device's order, by the device's own timer.
  [[nodiscard]] const std::vector<UnitTime>& times() const noexcept { return times_; }

  // --- weights and moments on the host ---

  [[nodiscard]] std::span<const runtime::HeldTensor> tensors() const { return rank_->tensors(); }
  /// visit(name, first element, gradients): summed ones of the elements that this rank updates.
  template <class Visit>
  void visit_gradients(const Visit& visit) const {
    for (const cuda::TensorPart& part : rank_->gradient_parts()) {
      visit(part.tensor, part.first, std::span(part.values));
    }
  }
  template <class Fill>
  void fill_weights(const runtime::HeldTensor& tensor, const Fill& fill) {
    std::vector<float> weights(tensor.size());
    fill(std::span(weights));
    rank_->set_weights(tensor, weights);
  }
  template <class Fill>
  void fill_moments(const Fill& fill) {
    std::vector<cuda::MasterPart> parts = rank_->master_parts();
    for (cuda::MasterPart& part : parts) {
      fill(part.tensor, part.first, std::span(part.first_moment), std::span(part.second_moment));
    }
    rank_->set_master_parts(parts);
  }
  /// visit(name, first element, weights): those of the optimizer that this rank is to save.
  template <class Visit>
  void visit_weights(const DeviceSchedule& place, OptimizerState optimizer,
                     const Visit& visit) const {
    if (place.dp > 0 && optimizer == OptimizerState::replicated) return;
    for (const cuda::MasterPart& part : rank_->master_parts()) {
      visit(part.tensor.name, static_cast<std::int64_t>(part.first),
            std::span<const float>(part.weights));
    }
  }
  template <class Visit>
  void visit_moments(const Visit& visit) const {
    for (const cuda::MasterPart& part : rank_->master_parts()) {
      visit(part.tensor.name, static_cast<std::int64_t>(part.first),
            std::span<const float>(part.first_moment), std::span<const float>(part.second_moment));
    }
  }

  // --- runtime::Backend ---

  /// Where buffers of the next step lie; without it the device finds out itself.
  void prepare(const runtime::BufferLayout& layout) { rank_->place(layout); }
  [[nodiscard]] ElementBytes element_bytes() const { return rank_->element_bytes(); }
  [[nodiscard]] StaticBytes static_bytes() const { return rank_->static_bytes(); }
  [[nodiscard]] Buffer allocate(Bytes bytes) { return rank_->allocate(bytes); }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const {
    return rank_->bytes(buffer);
  }
  void clear(Buffer& buffer) { rank_->clear(buffer); }

  void begin_step(const Plan& plan, const runtime::StepData& data) {
    rank_->begin_step(plan, data);
    marks_ = 0;
    mark();
  }
  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    timed([&] { rank_->forward(call, link); });
  }
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    timed([&] {
      if (!evaluating_) rank_->backward(call, link);
    });
  }
  template <class Link>
  void weight(const runtime::PackCall& call, Link& link) {
    timed([&] {
      if (!evaluating_) rank_->weight(call, link);
    });
  }
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    timed([&] { rank_->head(call, link); });
  }
  template <class Link>
  void reduce(std::int32_t chunk, Link& link) {
    timed([&] {
      if (!evaluating_) rank_->reduce(chunk, link);
    });
  }
  template <class Link>
  void optimize(Link& link) {
    timed([&] {
      if (!evaluating_) rank_->optimize(link);
    });
  }
  template <class Link>
  void finish(Link& link) {
    rank_->finish(link);
    cuda::await_on_host(link, events_[marks_ - 1], hang_timeouts_);
    times_.clear();
    const auto since_begin = [&](std::size_t i) {
      return Nanos{
          std::llround(1e6 * static_cast<double>(events_[i].milliseconds_since(events_.front())))};
    };
    for (std::size_t i = 1; i + 1 < marks_; i += 2) {
      times_.push_back({since_begin(i), since_begin(i + 1)});
    }
  }

 private:
  void mark() {
    if (marks_ == events_.size()) events_.emplace_back(cuda::EventUse::time);
    events_[marks_++].record(stream());
  }
  template <class Work>
  void timed(const Work& work) {
    mark();
    work();
    mark();
  }

  std::unique_ptr<cuda::RankDevice> rank_;
  std::chrono::milliseconds hang_timeouts_{};
  bool evaluating_ = false;
  std::vector<cuda::Event> events_;  ///< the step's begin, then begin and end of each unit
  std::size_t marks_ = 0;            ///< of this step
  std::vector<UnitTime> times_;
};

}  // namespace slimpack::trainer
