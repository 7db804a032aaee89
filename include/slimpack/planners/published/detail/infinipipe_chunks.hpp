// SPDX-License-Identifier: Apache-2.0
// InfiniPipe's sequence processor: long samples cut along one mesh, short ones packed to match.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/chunk_groups.hpp"

namespace slimpack::planners::detail {

/// The positions at which samples are cut, so that the slices of the longest sample take about
/// equal time, and the limits of a chunk that follow from these slices.
struct SliceMesh {
  std::vector<Tokens> ends;  ///< of the longest sample's slices, rising
  std::int64_t time = 0;     ///< of the slice that takes longest: limit of a chunk
  Tokens tokens;             ///< of the slice with most: limit of a chunk
};

/// Cuts `longest` tokens into at most `count` slices of equal time, at the nearest multiples of
/// `granularity` below, and leaves out what would be empty. `time(begin, end)` is what a slice
/// takes, at least 1; times of adjoining slices add up. Throws InvalidInput if a number is < 1.
/// O(count log tokens).
template <class TimeOf>
[[nodiscard]] SliceMesh slice_mesh(Tokens longest, std::int64_t count, Tokens granularity,
                                   const TimeOf& time) {
  require(longest.value >= 1, "slice_mesh: tokens must be >= 1", longest.value);
  require(count >= 1, "slice_mesh: count must be >= 1", count);
  require(granularity.value >= 1, "slice_mesh: granularity must be >= 1", granularity.value);
  SliceMesh mesh;
  const Int128 all = time(Tokens{}, longest);
  for (std::int64_t cut = 1; cut < count; ++cut) {
    std::int64_t low = 0, high = longest.value / granularity.value + 1;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      const Tokens position = granularity * middle;
      (position < longest && Int128{time(Tokens{}, position)} * count <= all * cut ? low : high) =
          middle;
    }
    const Tokens position = granularity * low;
    if (position > (mesh.ends.empty() ? Tokens{} : mesh.ends.back())) mesh.ends.push_back(position);
  }
  mesh.ends.push_back(longest);
  Tokens begin;
  for (const Tokens end : mesh.ends) {
    mesh.time = std::max(mesh.time, time(begin, end));
    mesh.tokens = std::max(mesh.tokens, end - begin);
    begin = end;
  }
  return mesh;
}

/// Chunks of samples (workload-balanced sequence chunking of InfiniPipe, arXiv 2509.21275,
/// algorithm 1). Samples longer than the mesh's first slice are cut along it; the last slice of
/// each opens a bucket. Short samples, those that take longest first, each join the bucket with
/// least time a token that has tokens and time left for them; where none has tokens left a new one
/// opens, where none has time left the limit of time rises to what the least full of those with
/// tokens left needs. Equal buckets go by number. Groups of cut samples come first, as given.
/// O(short samples x buckets).
template <class TimeOf>
[[nodiscard]] std::vector<ChunkGroup> chunk_sequences(std::span<const std::size_t> which,
                                                      std::span<const Tokens> samples,
                                                      const SliceMesh& mesh, const TimeOf& time) {
  struct Bucket {
    std::int64_t time = 0;
    Tokens tokens;
    std::vector<Slice> slices;
  };
  struct Short {
    std::int64_t time = 0;
    std::size_t sample = 0;
  };
  std::vector<ChunkGroup> groups;
  std::vector<Bucket> buckets;
  std::vector<Short> shorts;
  for (const std::size_t sample : which) {
    const Tokens length = samples[sample];
    if (length <= mesh.ends.front()) {
      shorts.push_back({time(Tokens{}, length), sample});
      continue;
    }
    ChunkGroup& group = groups.emplace_back();
    Tokens begin;
    for (const Tokens end : mesh.ends) {
      const Slice slice{static_cast<SampleId>(sample), begin, std::min(end, length)};
      if (end >= length) {
        buckets.push_back({time(begin, length), length - begin, {slice}});
        break;
      }
      group.chunks.push_back({slice});
      begin = end;
    }
  }
  std::stable_sort(shorts.begin(), shorts.end(),
                   [](const Short& a, const Short& b) { return a.time > b.time; });
  std::int64_t limit = mesh.time;
  const auto light = [](const Bucket& a, const Bucket& b) {
    return Int128{a.time} * b.tokens.value < Int128{b.time} * a.tokens.value;
  };
  for (const Short& one : shorts) {
    const Tokens tokens = samples[one.sample];
    Bucket* best = nullptr;
    Bucket* emptiest = nullptr;
    for (Bucket& bucket : buckets) {
      if (bucket.tokens + tokens > mesh.tokens) continue;
      if (emptiest == nullptr || bucket.time < emptiest->time) emptiest = &bucket;
      if (bucket.time + one.time > limit) continue;
      if (best == nullptr || light(bucket, *best)) best = &bucket;
    }
    if (best == nullptr && emptiest != nullptr) {
      limit = emptiest->time + one.time;
      best = emptiest;
    }
    if (best == nullptr) best = &buckets.emplace_back();
    best->time += one.time;
    best->tokens += tokens;
    best->slices.push_back({static_cast<SampleId>(one.sample), Tokens{}, tokens});
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (i >= groups.size()) groups.emplace_back();
    groups[i].chunks.push_back(std::move(buckets[i].slices));
  }
  return groups;
}

}  // namespace slimpack::planners::detail
