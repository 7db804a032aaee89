// SPDX-License-Identifier: Apache-2.0
// The losses of a pack's rows, by piece.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/device_result.hpp"

namespace slimpack::runtime {

/// Calls visit(piece, its losses) for losses that stand in the order of the pieces.
template <class Visit>
  requires std::invocable<Visit, const Piece&, std::span<const double>>
void for_each_piece_loss(std::span<const PieceMemory> pieces, std::span<const double> losses,
                         Visit visit) {
  for (const PieceMemory& memory : pieces) {
    const auto rows = static_cast<std::size_t>(memory.piece.length().value);
    visit(memory.piece, losses.first(rows));
    losses = losses.subspan(rows);
  }
}

/// The losses by sample and token.
inline void append_losses(std::vector<TokenLosses>& to, std::span<const PieceMemory> pieces,
                          std::span<const double> losses) {
  for_each_piece_loss(pieces, losses, [&](const Piece& piece, std::span<const double> values) {
    to.push_back({piece.sample, piece.begin, {values.begin(), values.end()}});
  });
}

/// "1, 4": samples as a sentence lists them, each once where its pieces stand side by side.
class SampleList {
 public:
  void add(SampleId sample) {
    if (last_ == sample) return;
    last_ = sample;
    text_ += (text_.empty() ? "" : ", ") + std::to_string(index(sample));
  }
  /// Empty where none was added.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
  std::optional<SampleId> last_;
};

/// The samples with a number that is not finite, of one number a row: losses or what else stands in
/// the order of the pieces.
[[nodiscard]] inline std::string samples_not_finite(std::span<const PieceMemory> pieces,
                                                    std::span<const double> numbers) {
  SampleList samples;
  for_each_piece_loss(pieces, numbers, [&](const Piece& piece, std::span<const double> values) {
    const bool good =
        std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
    if (!good) samples.add(piece.sample);
  });
  return samples.text();
}

}  // namespace slimpack::runtime
