// SPDX-License-Identifier: Apache-2.0
// Recomputation by length: what is short keeps much, what is long keeps little; or pack by pack.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// Recomputation by length: short samples (of planners that decide by micro-batch: short
/// micro-batches) keep what `most` says, longer ones less, down to `lean`. Or pack by pack,
/// whatever the lengths: `lean_permille` thousandths of the backward packs keep what `lean` says,
/// evenly spread over them, the others what `most` says. Or token by token: of samples that have
/// `lean`, the first `early`, whose attention takes least time to make again, keep only what
/// `first` says.
struct ModeChoice {
  /// One mode for all.
  // NOLINTNEXTLINE(google-explicit-constructor): a mode is a choice
  constexpr ModeChoice(Recompute all = Recompute::none) noexcept : most(all), lean(all) {}
  /// `shortest` for the shortest samples, down to `longest`; limits are still to be set.
  constexpr ModeChoice(Recompute shortest, Recompute longest) noexcept
      : most(shortest), lean(longest) {}

  /// `others` for all packs but `permille` thousandths of them, which have `leaner`.
  constexpr ModeChoice(Recompute others, Recompute leaner, std::int64_t permille) noexcept
      : most(others), lean(leaner), lean_permille(permille) {}

  Recompute most;  ///< of the shortest samples
  Recompute lean;  ///< of the longest samples; `most` or a leaner mode
  /// The longest sample of each mode from `most` on; that of `lean` has no meaning.
  std::array<Tokens, kRecomputeModes> limit{Tokens::max(), Tokens::max(), Tokens::max(),
                                            Tokens::max()};
  /// 0 .. 999: of the packs; with `early` about the part of tokens that are; 0: by length alone.
  std::int64_t lean_permille = 0;
  Tokens early{0};         ///< tokens of each sample that has `lean`; 0: by length or by pack
  Recompute first = most;  ///< of these tokens

  friend constexpr bool operator==(const ModeChoice&, const ModeChoice&) = default;

  /// Whether a backward pack, counted from the first of its queue, is one of those that keep less.
  [[nodiscard]] constexpr bool leaner(std::size_t pack) const noexcept {
    if (early.value > 0) return false;
    const auto before = static_cast<std::int64_t>(pack) * lean_permille;
    return (before + lean_permille) / 1000 > before / 1000;
  }
  /// A figure of the modes for a sample, on average over the packs.
  template <class Figure>
  [[nodiscard]] constexpr auto mean(Tokens length, const Figure& figure) const {
    const Recompute usual = of(length);
    if (lean_permille == 0 || (early.value > 0 && usual != lean)) return figure(usual);
    const auto some = figure(early.value > 0 ? first : lean);
    return figure(usual) + (some - figure(usual)) * lean_permille / 1000;
  }
  /// The mode of a sample; where its packs or tokens differ, that of most.
  [[nodiscard]] constexpr Recompute of(Tokens length) const noexcept {
    auto mode = static_cast<std::size_t>(most);
    while (mode < static_cast<std::size_t>(lean) && length > limit[mode]) ++mode;
    return static_cast<Recompute>(mode);
  }
  /// The text "recompute", and "recompute_long" where samples, "recompute_packs" where packs,
  /// "recompute_early" where tokens differ.
  void describe(SettingTexts& texts) const {
    texts["recompute"] = to_string(most);
    if (early.value > 0) {
      texts["recompute_early"] =
          std::string(to_string(first)) + " in the first " + std::to_string(early.value);
    }
    if (lean_permille > 0 && early.value == 0) {
      texts["recompute_packs"] =
          std::string(to_string(lean)) + " in " + std::to_string(lean_permille) + "/1000";
      return;
    }
    for (auto i = static_cast<std::size_t>(most); i < static_cast<std::size_t>(lean); ++i) {
      std::string& text = texts["recompute_long"];
      if (!text.empty()) text += ", ";
      text += std::string(to_string(static_cast<Recompute>(i + 1))) + " from " +
              std::to_string(limit[i].value + 1);
    }
  }
};

/// Bytes of a token of a resident sample on one layer when its backward pass begins.
[[nodiscard]] constexpr std::int64_t resident_bytes(const LayerBytes& layer,
                                                    Recompute mode) noexcept {
  return layer.kept[static_cast<std::size_t>(mode)] + layer.kv + layer.kv_gradient;
}

/// The same of a sample of this length, on average over its packs.
[[nodiscard]] constexpr std::int64_t resident_bytes(const LayerBytes& layer, const ModeChoice& mode,
                                                    Tokens length) {
  return mode.mean(length, [&](Recompute of) { return resident_bytes(layer, of); });
}

/// Layers of the fullest stage.
[[nodiscard]] inline std::int64_t most_layers(const std::vector<Stage>& stages, std::int32_t pp) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(pp));
  for (const Stage& stage : stages) layers[static_cast<std::size_t>(stage.pp)] += stage.layers();
  return *std::max_element(layers.begin(), layers.end());
}

/// What samples have on a device of the fullest stage.
struct StageRoom {
  Bytes room;               ///< for samples
  LayerBytes layer;         ///< of one token and layer
  std::int64_t layers = 1;  ///< of the stage
};

/// The choice in which a sample keeps a mode from `most` to `lean` if, resident on its own, it then
/// fills at most `percent` of the room.
[[nodiscard]] inline ModeChoice mode_by_length(Recompute most, Recompute lean,
                                               const StageRoom& stage, std::int64_t percent) {
  ModeChoice choice(most, lean);
  for (auto mode = static_cast<std::size_t>(most); mode < static_cast<std::size_t>(lean); ++mode) {
    choice.limit[mode] = {
        std::max<std::int64_t>(0, stage.room.value) / 100 * percent /
        (stage.layers * resident_bytes(stage.layer, static_cast<Recompute>(mode)))};
  }
  return choice;
}

/// Modes to try, roughly from the fastest to the leanest: those of `recompute_choices` for all,
/// and, unless the request asks for the published form, choices by the tokens that a rank has of a
/// micro-batch: those that would fill more than 40, 20 or 10 % of the fullest stage keep less.
/// These come after `light`, which is tried first where `none` lacks memory.
[[nodiscard]] inline std::vector<ModeChoice> mode_choices(const PlanRequest& request) {
  const std::vector<Recompute> uniform = recompute_choices(request);
  std::vector<ModeChoice> modes(uniform.begin(), uniform.end());
  if (request.recompute || request.as_published) return modes;
  const Plan plan = plan_frame(request, "");
  Bytes always;
  for (std::int32_t pp = 0; pp < request.pp; ++pp) {
    always = std::max(always, static_bytes(plan, pp).total());
  }
  const StageRoom stage{plan.memory.capacity - plan.memory.reserved - always,
                        layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp),
                        most_layers(plan.stages, request.pp)};
  const Tokens all = total_tokens(request.batch.samples);
  auto next = std::find(modes.begin(), modes.end(), ModeChoice(Recompute::layer));
  for (const Recompute most : {Recompute::none, Recompute::light}) {
    for (const std::int64_t percent : {40, 20, 10}) {
      const ModeChoice choice = mode_by_length(most, Recompute::layer, stage, percent);
      if (choice.limit[static_cast<std::size_t>(most)] < all) next = modes.insert(next, choice) + 1;
    }
  }
  return modes;
}

}  // namespace slimpack::planners
