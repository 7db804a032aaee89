// SPDX-License-Identifier: Apache-2.0
// What the rows of a step tell, on its way from the device to the host: losses, and whether their
// gradients are finite.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

class RankReports {
 public:
  /// Room for one number a row of every B of a step of a device (`device_number`), and of every H
  /// where it is one of the last stage. No copy may be on its way. Throws CudaError.
  void reserve(const runtime::Program& program, std::size_t device, bool last) {
    std::int64_t rows = 0;
    for (const runtime::UnitWork& work : program.of_device(device).units) {
      const bool reports =
          work.unit.kind == UnitKind::backward || (last && work.unit.kind == UnitKind::head);
      // H has as many rows of each tensor-parallel device as of the one that has most.
      if (reports) {
        rows +=
            program.tensor_parallel * program.packs[index(work.unit.pack)][work.rank].share.value;
      }
    }
    if (rows <= pinned_.size()) return;
    // As tables (TableRing::reserve).
    pinned_ = PinnedBuffer<float>(std::max(rows, pinned_.size() + pinned_.size() / 2));
  }
  /// Forgets a step that ended before its time.
  void clear() noexcept {
    losses_.clear();
    gradients_.clear();
    used_ = 0;
  }
  /// Whether there is nothing for `deliver`.
  [[nodiscard]] bool empty() const noexcept { return losses_.empty(); }

  /// Where the losses of an H are to be copied, one a row of its tiles; `rows` are those of the
  /// pack, or -1.
  [[nodiscard]] std::span<float> place_losses(const runtime::HeadCall& call,
                                              std::vector<std::int32_t> rows) {
    const auto here = take(rows.size());
    losses_.push_back({{call.pack, call.pieces, std::move(rows), here}, call.losses});
    return here;
  }
  /// Where a number of each own row of a B is to be copied that is finite where the row's gradient
  /// is; `rows` are those of the pack, which has `all`.
  [[nodiscard]] std::span<float> place_gradients(PackId pack,
                                                 std::vector<runtime::PieceMemory> pieces,
                                                 std::vector<std::int32_t> rows, Tokens all) {
    const auto here = take(rows.size());
    gradients_.push_back(
        {{pack, std::move(pieces), std::move(rows), here}, static_cast<std::size_t>(all.value)});
    return here;
  }

  /// Hands losses over that have been copied. Throws std::runtime_error naming step, MicroPack and
  /// samples where one is not finite.
  void deliver(std::int64_t step) {
    const std::vector<Losses> all = std::exchange(losses_, {});
    for (const Losses& losses : all) losses.rows.write(losses.to);
    for (const Losses& losses : all) losses.rows.check(losses.to, "the loss", step);
  }
  /// Throws as `deliver` where the gradient of a row is not finite.
  void check_gradients(std::int64_t step) const {
    std::vector<double> numbers;
    for (const Gradients& gradients : gradients_) {
      numbers.assign(gradients.all, 0);
      gradients.rows.write(numbers);
      gradients.rows.check(numbers, "the gradient", step);
    }
  }

 private:
  struct Rows {
    PackId pack{};
    std::vector<runtime::PieceMemory> pieces;
    std::vector<std::int32_t> rows;  ///< of the pack, or -1
    std::span<const float> from;

    void write(std::span<double> to) const {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (rows[row] < 0) continue;
        to[static_cast<std::size_t>(rows[row])] = static_cast<double>(from[row]);
      }
    }
    void check(std::span<const double> numbers, const std::string& what, std::int64_t step) const {
      const std::string samples = runtime::samples_not_finite(pieces, numbers);
      if (samples.empty()) return;
      throw std::runtime_error(what + " of step " + std::to_string(step) +
                               " is not finite in MicroPack " + std::to_string(index(pack)) +
                               ", samples " + samples);
    }
  };
  struct Losses {
    Rows rows;
    std::span<double> to;
  };
  struct Gradients {
    Rows rows;
    std::size_t all = 0;  ///< rows of the pack
  };

  [[nodiscard]] std::span<float> take(std::size_t rows) {
    const auto here = pinned_.span().subspan(used_, rows);
    used_ += rows;
    return here;
  }

  PinnedBuffer<float> pinned_;
  std::size_t used_ = 0;
  std::vector<Losses> losses_;
  std::vector<Gradients> gradients_;
};

}  // namespace slimpack::cuda
