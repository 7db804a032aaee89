// SPDX-License-Identifier: Apache-2.0
// From documents to the samples of a training step: cutting at the context, shuffling, batching.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/data/lengths.hpp"
#include "slimpack/plan/batch.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack {

/// What happens to a document longer than the context: cut into context-sized samples, left out
/// and counted, or refused.
enum class Overlong : std::uint8_t { split, drop, error };
template <>
inline constexpr std::array<std::string_view, 3> kWords<Overlong>{"split", "drop", "error"};

/// How steps are drawn. Without a limit a step holds all documents of all sources; with both, the
/// limit that is reached first ends it.
struct BatchOptions {
  Tokens context{131072};                     ///< longest sample, 1 .. 2^30
  Overlong overlong = Overlong::error;        ///< what becomes of documents beyond the context
  std::optional<Tokens> batch_tokens;         ///< most tokens of a step, >= 1
  std::optional<std::int64_t> batch_samples;  ///< most samples of a step, 1 .. kMostSamples
  std::uint64_t seed = 0;                     ///< of the shuffles
  bool shuffle = true;                        ///< otherwise documents come in file order
  bool end_of_document = false;               ///< the last token of a document has a target too
};

/// The largest context that a run may have.
inline constexpr Tokens kLongestContext{std::int64_t{1} << 30U};
/// Most samples of a step, so that a mistyped limit ends in a message and not in a full memory.
inline constexpr std::int64_t kMostSamples = std::int64_t{1} << 26U;

/// Documents longer than the context, in one pass over all sources: cut or dropped.
struct OverlongCount {
  std::int64_t documents = 0;  ///< how many there are
  Tokens tokens;               ///< sum of their whole lengths
  friend bool operator==(const OverlongCount&, const OverlongCount&) = default;
};

/// The steps of a training run, one after the other.
///
///     BatchStream stream(std::span(&lengths, 1), {.context = Tokens{131072},
///                                                  .batch_tokens = Tokens{4'000'000},
///                                                  .seed = 7});
///     const Batch first = stream.next();
///     stream.skip(8);                      // go on with step 9
///
/// Documents come in shuffled or in file order. Each pass has a shuffle of its own, which depends
/// on the seed and the number of the pass alone. The pieces of a cut document follow each other. A
/// step takes samples until the next would exceed a limit, and at least one. After the last
/// document the next pass begins, so no token is lost or seen twice in a pass; dropped documents
/// are in none.
class BatchStream {
 public:
  /// Throws InvalidInput: limits out of range, no document, or an overlong one that is refused.
  /// O(documents).
  BatchStream(std::span<const LengthSet> sources, const BatchOptions& options);

  /// The next step, counted from 0. Throws InvalidInput for a step without a target or with more
  /// than kMostSamples samples.
  [[nodiscard]] Batch next();

  /// Passes over `steps` steps. O(their samples); O(steps) where a step is a whole pass.
  void skip(std::int64_t steps);

  /// How many documents were longer than the context, and were cut or dropped.
  [[nodiscard]] const OverlongCount& overlong() const noexcept { return overlong_; }

 private:
  struct Document {
    std::int64_t source = 0;
    std::int64_t number = 0;
    Tokens length;
  };
  struct Piece {
    Origin origin;
    Tokens length;
    std::int64_t targets = 0;
  };

  void add(const LengthSet& set, std::int64_t source);
  void begin_pass();
  [[nodiscard]] Piece piece() const;
  void advance(const Piece& taken);
  template <class Take>
  void draw(Take&& take);

  BatchOptions options_;
  OverlongCount overlong_;
  std::vector<Document> documents_;
  std::vector<std::uint32_t> order_;
  Random seeds_;
  std::size_t next_ = 0;  ///< document to come, in order_
  Tokens first_;          ///< of the next piece in its document
  std::int64_t step_ = 0;
};

/// Step `step` (from 0) of a run over `sources`. Throws InvalidInput. O(samples up to that step).
[[nodiscard]] inline Batch draw_batch(std::span<const LengthSet> sources,
                                      const BatchOptions& options, std::int64_t step) {
  require(step >= 0, "step must be >= 0", step);
  BatchStream stream(sources, options);
  stream.skip(step);
  return stream.next();
}

/// The same for one source.
[[nodiscard]] inline Batch draw_batch(const LengthSet& source, const BatchOptions& options,
                                      std::int64_t step) {
  return draw_batch(std::span(&source, 1), options, step);
}

inline BatchStream::BatchStream(std::span<const LengthSet> sources, const BatchOptions& options)
    : options_(options), seeds_(options.seed) {
  require(options.context >= Tokens{1} && options.context <= kLongestContext,
          "context must be in 1 .. " + std::to_string(kLongestContext.value),
          options.context.value);
  if (options.batch_tokens) {
    require(*options.batch_tokens >= Tokens{1}, "batch tokens must be >= 1",
            options.batch_tokens->value);
  }
  if (options.batch_samples) {
    require(*options.batch_samples >= 1 && *options.batch_samples <= kMostSamples,
            "batch samples must be in 1 .. " + std::to_string(kMostSamples),
            *options.batch_samples);
  }
  for (std::size_t source = 0; source < sources.size(); ++source) {
    add(sources[source], static_cast<std::int64_t>(source));
  }
  require(!documents_.empty(), overlong_.documents == 0
                                   ? std::string("there is no document to draw from")
                                   : "every document is longer than the context of " +
                                         std::to_string(options.context.value) +
                                         " tokens, and dropped");
  require(documents_.size() <= std::numeric_limits<std::uint32_t>::max(),
          "at most 4294967295 documents can be drawn from",
          static_cast<std::int64_t>(documents_.size()));
  order_.resize(documents_.size());
  begin_pass();
}

inline void BatchStream::add(const LengthSet& set, std::int64_t source) {
  const std::string place = set.name.empty() ? "source " + std::to_string(source) : set.name;
  for (std::size_t number = 0; number < set.documents.size(); ++number) {
    const Tokens length = set.documents[number];
    require(length > Tokens{}, place + ": document " + std::to_string(number) + " must have tokens",
            length.value);
    if (length > options_.context) {
      require(options_.overlong != Overlong::error,
              place + ": document " + std::to_string(number) + " (from 0) has " +
                  std::to_string(length.value) + " tokens, more than the context of " +
                  std::to_string(options_.context.value) +
                  "; overlong documents may be split or "
                  "dropped");
      ++overlong_.documents;
      overlong_.tokens += length;
      if (options_.overlong == Overlong::drop) continue;
    }
    documents_.push_back({source, static_cast<std::int64_t>(number), length});
  }
}

inline void BatchStream::begin_pass() {
  // A pass is shuffled from file order by a generator of its own: it depends on no other pass.
  Random random(seeds_.bits());
  std::iota(order_.begin(), order_.end(), std::uint32_t{0});
  if (options_.shuffle) random.shuffle(std::span(order_));
  next_ = 0;
  first_ = {};
}

inline BatchStream::Piece BatchStream::piece() const {
  const Document& document = documents_[order_[next_]];
  const Tokens left = document.length - first_;
  const bool last = left <= options_.context;
  const Tokens length = last ? left : options_.context;
  // The target of a piece's last token is the first of the next piece.
  const bool has_all_targets = !last || options_.end_of_document;
  return {{document.source, document.number, first_},
          length,
          has_all_targets ? length.value : length.value - 1};
}

inline void BatchStream::advance(const Piece& taken) {
  first_ += taken.length;
  if (first_ == documents_[order_[next_]].length) {
    ++next_;
    first_ = {};
  }
}

template <class Take>
void BatchStream::draw(Take&& take) {
  const bool whole_pass = !options_.batch_tokens && !options_.batch_samples;
  std::int64_t samples = 0;
  Tokens tokens;
  while (true) {
    if (next_ == order_.size()) {
      if (whole_pass && samples > 0) break;
      begin_pass();
    }
    const Piece next = piece();
    if (samples > 0) {
      if (options_.batch_samples && samples >= *options_.batch_samples) break;
      if (options_.batch_tokens && next.length > *options_.batch_tokens - tokens) break;
    }
    require(samples < kMostSamples, "a step can hold at most " + std::to_string(kMostSamples) +
                                        " samples; give a smaller batch");
    take(next);
    ++samples;
    tokens += next.length;
    advance(next);
  }
  ++step_;
}

inline Batch BatchStream::next() {
  Batch batch;
  batch.step = step_;
  draw([&batch](const Piece& piece) {
    batch.samples.push_back(piece.length);
    batch.origin.push_back(piece.origin);
    batch.target_tokens += piece.targets;
  });
  require(batch.target_tokens > 0, "step " + std::to_string(batch.step) +
                                       " has no target: every document in it is a single token");
  return batch;
}

inline void BatchStream::skip(std::int64_t steps) {
  require(steps >= 0, "steps to skip must be >= 0", steps);
  if (steps == 0) return;
  if (!options_.batch_tokens && !options_.batch_samples) {
    // Each step is one pass; the first of them may have begun.
    const bool begun = next_ < order_.size();
    for (std::int64_t pass = begun ? 1 : 0; pass < steps; ++pass) static_cast<void>(seeds_.bits());
    next_ = order_.size();
    step_ += steps;
    return;
  }
  for (std::int64_t step = 0; step < steps; ++step) draw([](const Piece&) {});
}

}  // namespace slimpack
