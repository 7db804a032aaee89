// SPDX-License-Identifier: Apache-2.0
// The losses of a step on their way from the device to the executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/losses.hpp"
#include "slimpack/exec/program.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

class RankLosses {
 public:
  /// Room for the losses of all H of a step of the device, which is one of the last stage. No copy
  /// may be on its way. Throws CudaError.
  void reserve(const exec::Program& program, std::size_t device) {
    std::int64_t rows = 0;
    for (const exec::UnitWork& work : program.devices[device].units) {
      if (work.unit.kind != UnitKind::head) continue;
      rows += program.packs[index(work.unit.pack)][work.rank].rows.value;
    }
    if (rows > pinned_.size()) pinned_ = PinnedBuffer<float>(rows);
  }
  /// Forgets a step that ended before its time.
  void clear() noexcept {
    pending_.clear();
    used_ = 0;
  }
  [[nodiscard]] bool empty() const noexcept { return pending_.empty(); }

  /// Where the losses of an H are to be copied, one a row of its blocks; `rows` are those of the
  /// pack.
  [[nodiscard]] std::span<float> place(const exec::HeadCall& call, std::vector<std::int32_t> rows) {
    const auto here = pinned_.span().subspan(used_, call.losses.size());
    used_ += here.size();
    pending_.push_back({call.pack, call.pieces, std::move(rows), here, call.losses});
    return here;
  }

  /// Hands over what has been copied. Throws std::runtime_error naming step, MicroPack and samples
  /// where a loss is not finite.
  void deliver(std::int64_t step) {
    const std::vector<Pending> pending = std::exchange(pending_, {});
    for (const Pending& losses : pending) {
      for (std::size_t row = 0; row < losses.rows.size(); ++row) {
        losses.to[static_cast<std::size_t>(losses.rows[row])] =
            static_cast<double>(losses.from[row]);
      }
    }
    for (const Pending& losses : pending) {
      const std::string samples = exec::samples_not_finite(losses.pieces, losses.to);
      if (samples.empty()) continue;
      throw std::runtime_error("the loss of step " + std::to_string(step) +
                               " is not finite in MicroPack " + std::to_string(index(losses.pack)) +
                               ", samples " + samples);
    }
  }

 private:
  struct Pending {
    PackId pack{};
    std::vector<exec::PieceMemory> pieces;
    std::vector<std::int32_t> rows;  ///< of the pack, by those of the blocks
    std::span<const float> from;
    std::span<double> to;
  };
  PinnedBuffer<float> pinned_;
  std::size_t used_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace slimpack::cuda
