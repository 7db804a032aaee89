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
#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/device_result.hpp"

namespace slimpack::exec {

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

/// "1, 4": the samples with a loss that is not finite; empty where all are.
[[nodiscard]] inline std::string samples_not_finite(std::span<const PieceMemory> pieces,
                                                    std::span<const double> losses) {
  std::string samples;
  std::optional<SampleId> last;
  for_each_piece_loss(pieces, losses, [&](const Piece& piece, std::span<const double> values) {
    const bool good = std::ranges::all_of(values, [](double loss) { return std::isfinite(loss); });
    if (good || last == piece.sample) return;
    last = piece.sample;
    samples += (samples.empty() ? "" : ", ") + std::to_string(index(piece.sample));
  });
  return samples;
}

}  // namespace slimpack::exec
