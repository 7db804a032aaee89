// SPDX-License-Identifier: Apache-2.0
// Random plans of every kind the format allows, small enough to execute, valid by construction.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/layer_bytes.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/ring_order.hpp"

namespace slimpack::test {

/// What to draw. An empty optional is drawn at random; a set one is forced. Bounds are inclusive.
struct RandomPlanOptions {
  std::int32_t max_dp = 4, max_pp = 4, max_chunks = 3, max_tp = 1;
  std::int32_t min_merge = 2, max_merge = 4;  ///< ranks of a group of several
  std::int32_t max_max_in_flight = 3;
  std::int64_t min_samples = 1, max_samples = 12;
  std::int64_t min_tokens = 5, max_tokens = 60;  ///< one sample in eight has one token instead
  std::int64_t max_granularity = 16;
  std::int64_t min_page = 1, max_page = 8, min_share = 1, max_share = 8, max_head_tile = 32;
  bool large_model = false;  ///< sizes of a real layer, for tests that do not execute
  bool vary_bytes = false;   ///< draw element and gradient sizes too
  std::int64_t bytes_per_element = 8, gradient_bytes = 8;
  Bytes capacity{1'000'000'000'000'000};
  std::optional<std::int32_t> dp, pp, tp, chunks, max_in_flight;
  std::optional<std::int64_t> devices_per_node;
  std::optional<LmHead> head;
  std::optional<bool> tied;
  std::optional<bool> cp_groups;       ///< true forces dp >= 2 and a group of several ranks in use
  std::optional<Recompute> recompute;  ///< one mode for all backward packs
  /// One mode for all slices of such groups; by heads for all samples that may be.
  std::optional<RingMode> exchange;
  std::optional<bool> same_cuts;  ///< backward packs are the forward packs reversed
  std::optional<bool> uncut;      ///< true: every sample is one slice in either pass
  bool weights = false;           ///< version 2 plans may leave gradients of weights to W
  bool by_heads = false;  ///< version 3 plans may exchange samples by heads, and have more of them
  std::optional<std::int32_t>
      version;  ///< of the rules; else 1 for two seeds in eight, 3 for three
};

/// Groups of up to `dp` ranks, of which each node has room for two.
[[nodiscard]] inline RandomPlanOptions on_nodes(std::int32_t dp, std::int32_t pp,
                                                std::int32_t tp = 1) {
  RandomPlanOptions options;
  options.dp = dp;
  options.max_merge = dp;
  options.pp = pp;
  options.tp = tp;
  options.devices_per_node = std::int64_t{2} * pp * tp;
  options.cp_groups = true;
  return options;
}

/// Whether a group's ring goes node by node.
[[nodiscard]] inline bool rings_node_by_node(const Plan& plan) {
  const std::vector<RingOrder> rings = ring_orders(plan);
  return std::any_of(rings.begin(), rings.end(),
                     [](const RingOrder& ring) { return ring.hops_between() > 0; });
}

/// The usual options, for plans that may have units W.
[[nodiscard]] inline RandomPlanOptions may_have_weights(bool weights = true) {
  RandomPlanOptions options;
  options.weights = weights;
  return options;
}

namespace detail {

inline constexpr int kScheduleAttempts = 9;

/// Draws a schedule by executing the plan in one random legal order: whatever is listed has been
/// possible at its time, so the order of every device, channel and process group is free of
/// deadlock.
class RandomSchedule {
 public:
  /// `boldness` 0 always advances what is farthest along (never stuck); 1, 2 and 4 choose the
  /// farthest of 4, 2 and 1 random candidates.
  RandomSchedule(Plan& plan, std::uint64_t seed, int boldness)
      : plan_(plan), random_(seed), boldness_(boldness) {}

  /// False where max_in_flight and orders got stuck; the plan's schedule is then of no use.
  [[nodiscard]] bool draw() {
    prepare();
    while (left_ + reduces_ > 0) {
      if (!step()) return false;
    }
    for (DeviceSchedule& device : plan_.schedule) {
      device.order.push_back({UnitKind::optimizer, {}, 0});
    }
    return true;
  }

 private:
  struct Item {
    UnitKind kind{};
    std::size_t pack = 0;
    std::size_t place = 0;  ///< line of F and B, data-parallel rank of H, device of R; of W rank x
                            ///< lines + line
  };
  struct Channel {
    std::vector<std::pair<std::size_t, std::size_t>> sent;  ///< (pack, line of the receiver)
    std::size_t consumed = 0;
  };

  std::size_t stages() const { return static_cast<std::size_t>(plan_.parallel.pp); }
  std::size_t lines() const { return stages() * static_cast<std::size_t>(plan_.parallel.chunks); }
  DeviceSchedule& device(std::size_t dp, std::size_t pp) {
    return plan_.schedule[dp * stages() + pp];
  }
  const std::vector<std::int32_t>& ranks(std::size_t pack) const {
    return plan_.groups[index(plan_.micropacks[pack].group)];
  }
  std::size_t slot(std::size_t pack, std::size_t line) const { return pack * lines() + line; }

  void prepare() {
    const auto dp = static_cast<std::size_t>(plan_.parallel.dp);
    const std::size_t packs = plan_.micropacks.size();
    plan_.schedule.clear();
    for (std::size_t rank = 0; rank < dp; ++rank) {
      for (std::size_t pp = 0; pp < stages(); ++pp) {
        plan_.schedule.push_back(
            {static_cast<std::int32_t>(rank), static_cast<std::int32_t>(pp), {}});
      }
    }
    waiting_.assign(packs * lines(), 0);
    after_.assign(packs, {});
    heads_.assign(packs, {});
    channels_.assign(plan_.groups.size() * 2 * stages(), {});
    link_slices();
    for (std::size_t pack = 0; pack < packs; ++pack) {
      const bool forward = plan_.micropacks[pack].pass == Pass::forward;
      for (const std::size_t next : after_[pack]) {
        for (std::size_t line = 0; line < lines(); ++line) ++waiting_[slot(next, line)];
      }
      if (is_weight(pack)) {
        left_ += lines() * ranks(pack).size();
        continue;
      }
      for (std::size_t line = 0; line < lines(); ++line) {
        if (forward ? line > 0 : line + 1 < lines()) ++waiting_[slot(pack, line)];
      }
      if (forward) {
        for (const std::size_t back : heads_[pack]) {
          waiting_[slot(back, lines() - 1)] += ranks(pack).size();
        }
      }
      left_ += lines() + (forward ? ranks(pack).size() : 0);
    }
    for (std::size_t pack = 0; pack < packs; ++pack) {
      for (std::size_t line = 0; line < lines(); ++line) {
        if (waiting_[slot(pack, line)] == 0) add(pack, line);
      }
    }
    backward_left_.assign(plan_.schedule.size() * chunks(), 0);
    for (std::size_t pack = 0; pack < packs; ++pack) {
      if (plan_.micropacks[pack].pass == Pass::forward) continue;
      for (const std::int32_t rank : ranks(pack)) {
        for (std::size_t line = 0; line < lines(); ++line) {
          ++backward_left_[backward_slot(static_cast<std::size_t>(rank), line)];
        }
      }
    }
    reduce_order_.clear();
    for (std::size_t pp = 0; pp < stages(); ++pp) {
      std::vector<std::size_t> order(chunks());
      std::iota(order.begin(), order.end(), std::size_t{0});
      random_.shuffle(std::span(order));
      reduce_order_.push_back(order);
    }
    reduced_.assign(plan_.schedule.size(), 0);
    reduces_ = plan_.schedule.size() * chunks();
    for (std::size_t i = 0; i < plan_.schedule.size(); ++i) add_reduce(i);
  }

  std::size_t chunks() const { return static_cast<std::size_t>(plan_.parallel.chunks); }
  std::size_t backward_slot(std::size_t rank, std::size_t line) const {
    return (rank * stages() + line % stages()) * chunks() + line / stages();
  }

  /// after_: packs that follow a pack at the same virtual stage; heads_: backward packs that
  /// need a forward pack's H.
  void link_slices() {
    struct Cut {
      std::int64_t begin, end;
      std::size_t pack;
    };
    std::vector<std::array<std::vector<Cut>, 3>> cuts(plan_.samples.size());
    for (std::size_t pack = 0; pack < plan_.micropacks.size(); ++pack) {
      const MicroPack& micropack = plan_.micropacks[pack];
      for (const Slice& slice : micropack.slices) {
        cuts[index(slice.sample)][static_cast<std::size_t>(micropack.pass)].push_back(
            {slice.begin.value, slice.end.value, pack});
      }
    }
    for (auto& [forward, backward, weight] : cuts) {
      const auto rising = [](const Cut& a, const Cut& b) { return a.begin < b.begin; };
      std::sort(forward.begin(), forward.end(), rising);
      std::sort(backward.begin(), backward.end(), rising);
      for (std::size_t i = 1; i < forward.size(); ++i) {
        after_[forward[i - 1].pack].push_back(forward[i].pack);
      }
      for (std::size_t i = 1; i < backward.size(); ++i) {
        after_[backward[i].pack].push_back(backward[i - 1].pack);
      }
      for (const Cut& f : forward) {
        for (const Cut& b : backward) {
          if (f.begin < b.end && b.begin < f.end) heads_[f.pack].push_back(b.pack);
        }
      }
      for (const Cut& b : backward) {
        for (const Cut& w : weight) {
          if (b.begin < w.end && w.begin < b.end) after_[b.pack].push_back(w.pack);
        }
      }
    }
  }

  bool is_weight(std::size_t pack) const { return plan_.micropacks[pack].pass == Pass::weight; }

  void add(std::size_t pack, std::size_t line) {
    if (is_weight(pack)) {
      for (const std::int32_t rank : ranks(pack)) {
        ready_.push_back({UnitKind::weight, pack, static_cast<std::size_t>(rank) * lines() + line});
      }
      return;
    }
    ready_.push_back(
        {plan_.micropacks[pack].pass == Pass::forward ? UnitKind::forward : UnitKind::backward,
         pack, line});
  }
  void add_reduce(std::size_t i) {
    if (reduced_[i] == chunks()) return;
    const std::size_t chunk = reduce_order_[i % stages()][reduced_[i]];
    if (backward_left_[i * chunks() + chunk] == 0) ready_.push_back({UnitKind::reduce, chunk, i});
  }

  Channel* outgoing(const Item& item) {
    if (stages() == 1) return nullptr;
    const std::size_t group = index(plan_.micropacks[item.pack].group);
    const std::size_t stage = item.place % stages();
    if (item.kind == UnitKind::forward) {
      return item.place + 1 == lines() ? nullptr : &channels_[group * 2 * stages() + stage];
    }
    return item.place == 0 ? nullptr : &channels_[(group * 2 + 1) * stages() + stage];
  }
  Channel* incoming(const Item& item) {
    if (stages() == 1) return nullptr;
    const std::size_t group = index(plan_.micropacks[item.pack].group);
    const std::size_t stage = item.place % stages();
    if (item.kind == UnitKind::forward) {
      return item.place == 0 ? nullptr
                             : &channels_[group * 2 * stages() + (stage + stages() - 1) % stages()];
    }
    return item.place + 1 == lines()
               ? nullptr
               : &channels_[(group * 2 + 1) * stages() + (stage + 1) % stages()];
  }

  bool legal(const Item& item) {
    if (item.kind != UnitKind::forward && item.kind != UnitKind::backward) return true;
    const auto max_in_flight = static_cast<std::size_t>(plan_.max_in_flight);
    if (const Channel* from = incoming(item); from != nullptr) {
      if (from->sent[from->consumed] != std::pair{item.pack, item.place}) return false;
    }
    // Send i waits for the end of send i - max_in_flight, which waits for receive i - max_in_flight
    // to be posted.
    if (const Channel* to = outgoing(item); to != nullptr) {
      if (to->sent.size() + 1 > to->consumed + 2 * max_in_flight) return false;
    }
    return true;
  }

  std::size_t progress(const Item& item) const {
    switch (item.kind) {
      case UnitKind::forward:
        return item.place;
      case UnitKind::head:
        return lines();
      case UnitKind::backward:
        return 2 * lines() - item.place;
      default:
        return 2 * lines() + 1;
    }
  }

  bool step() {
    std::vector<std::size_t> legal_now;
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (legal(ready_[i])) legal_now.push_back(i);
    }
    if (legal_now.empty()) return false;
    std::size_t chosen = legal_now[random_.below(legal_now.size())];
    const int rounds = boldness_ == 0 ? 0 : 4 / boldness_ - 1;
    const auto prefer = [&](std::size_t other) {
      if (progress(ready_[other]) > progress(ready_[chosen])) chosen = other;
    };
    for (int round = 0; round < rounds; ++round) prefer(legal_now[random_.below(legal_now.size())]);
    if (boldness_ == 0) {
      for (const std::size_t other : legal_now) prefer(other);
    }
    const Item item = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    run(item);
    return true;
  }

  void run(const Item& item) {
    if (item.kind == UnitKind::reduce) {
      plan_.schedule[item.place].order.push_back(
          {UnitKind::reduce, {}, static_cast<std::int32_t>(item.pack)});
      --reduces_;
      ++reduced_[item.place];
      add_reduce(item.place);
      return;
    }
    --left_;
    const auto id = static_cast<PackId>(item.pack);
    if (item.kind == UnitKind::weight) {
      const std::size_t dp = item.place / lines(), line = item.place % lines();
      const auto chunk = static_cast<std::int32_t>(line / stages());
      device(dp, line % stages()).order.push_back({UnitKind::weight, id, chunk});
      count_gradients(dp, line);
      return;
    }
    if (item.kind == UnitKind::head) {
      for (std::size_t pp = 0; pp < stages(); ++pp) {
        if (plan_.parallel.head == LmHead::shard || pp + 1 == stages()) {
          device(item.place, pp).order.push_back({UnitKind::head, id, 0});
        }
      }
      for (const std::size_t back : heads_[item.pack]) release(back, lines() - 1);
      return;
    }
    const auto chunk = static_cast<std::int32_t>(item.place / stages());
    for (const std::int32_t rank : ranks(item.pack)) {
      const auto dp = static_cast<std::size_t>(rank);
      device(dp, item.place % stages()).order.push_back({item.kind, id, chunk});
      if (item.kind == UnitKind::backward) count_gradients(dp, item.place);
    }
    if (Channel* from = incoming(item); from != nullptr) ++from->consumed;
    const bool forward = item.kind == UnitKind::forward;
    if (Channel* to = outgoing(item); to != nullptr) {
      to->sent.emplace_back(item.pack, forward ? item.place + 1 : item.place - 1);
    }
    for (const std::size_t next : after_[item.pack]) release(next, item.place);
    if (forward && item.place + 1 < lines()) release(item.pack, item.place + 1);
    if (!forward && item.place > 0) release(item.pack, item.place - 1);
    if (forward && item.place + 1 == lines()) {
      for (const std::int32_t rank : ranks(item.pack)) {
        ready_.push_back({UnitKind::head, item.pack, static_cast<std::size_t>(rank)});
      }
    }
  }

  /// A B or W of a device has run: R may be possible.
  void count_gradients(std::size_t dp, std::size_t line) {
    if (--backward_left_[backward_slot(dp, line)] > 0) return;
    const std::size_t i = dp * stages() + line % stages();
    if (reduced_[i] < chunks() && reduce_order_[i % stages()][reduced_[i]] == line / stages()) {
      add_reduce(i);
    }
  }

  void release(std::size_t pack, std::size_t line) {
    if (--waiting_[slot(pack, line)] == 0) add(pack, line);
  }

  Plan& plan_;
  Random random_;
  int boldness_;
  std::vector<std::size_t> waiting_;  ///< by (pack, line): what it still waits for
  std::vector<std::vector<std::size_t>> after_, heads_;
  std::vector<Channel> channels_;  ///< by (group, direction, sending stage)
  std::vector<Item> ready_;
  std::vector<std::size_t> backward_left_;  ///< B and W by (device, chunk)
  std::vector<std::vector<std::size_t>> reduce_order_;
  std::vector<std::size_t> reduced_;
  std::size_t left_ = 0, reduces_ = 0;
};

/// Cuts [0, length) at random multiples of `granularity`; `density` of eight boundaries are cuts.
inline std::vector<std::int64_t> random_cuts(Random& random, std::int64_t length,
                                             std::int64_t granularity, std::uint64_t density) {
  std::vector<std::int64_t> cuts{0};
  for (std::int64_t i = granularity; i < length; i += granularity) {
    if (random.chance(density, 8)) cuts.push_back(i);
  }
  cuts.push_back(length);
  return cuts;
}

/// Packs of one pass of one group: the samples' slices in a random common order that keeps each
/// sample's own, cut at random where no sample would come twice.
inline std::vector<std::vector<Slice>> random_packs(Random& random, const Plan& plan,
                                                    const std::vector<SampleId>& members,
                                                    bool falling, bool uncut) {
  struct Lane {
    std::vector<Slice> slices;
    std::size_t next = 0;
  };
  const std::uint64_t drawn = random.below(9), density = uncut ? 0 : drawn;
  std::vector<Lane> lanes;
  for (const SampleId sample : members) {
    const auto cuts = random_cuts(random, plan.samples[index(sample)].value,
                                  plan.parallel.granularity.value, density);
    Lane lane;
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      lane.slices.push_back({sample, {cuts[i - 1]}, {cuts[i]}});
    }
    if (falling) std::reverse(lane.slices.begin(), lane.slices.end());
    lanes.push_back(std::move(lane));
  }
  const std::uint64_t stay = random.below(4);
  std::vector<std::vector<Slice>> packs;
  while (!lanes.empty()) {
    const auto lane = static_cast<std::size_t>(random.below(lanes.size()));
    const Slice slice = lanes[lane].slices[lanes[lane].next];
    const bool twice =
        packs.empty() || std::any_of(packs.back().begin(), packs.back().end(),
                                     [&](const Slice& s) { return s.sample == slice.sample; });
    if (twice || !random.chance(stay, 4)) packs.emplace_back();
    packs.back().push_back(slice);
    if (++lanes[lane].next == lanes[lane].slices.size()) {
      lanes.erase(lanes.begin() + static_cast<std::ptrdiff_t>(lane));
    }
  }
  return packs;
}

/// Leaves the weights of some backward packs apart, and adds weight packs that hold their tokens,
/// cut anew and in any order.
inline void random_weights(Random& random, Plan& plan) {
  struct Region {
    SampleId sample{};
    std::int64_t begin, end;
  };
  const std::uint64_t share = 1 + random.below(4);  // of four
  std::vector<std::vector<Region>> regions(plan.groups.size());
  for (MicroPack& pack : plan.micropacks) {
    if (pack.pass != Pass::backward || !random.chance(share, 4)) continue;
    pack.weights = WeightGradients::apart;
    for (const Slice& slice : pack.slices) {
      regions[index(pack.group)].push_back({slice.sample, slice.begin.value, slice.end.value});
    }
  }
  const std::int64_t granularity = plan.parallel.granularity.value;
  for (std::size_t group = 0; group < regions.size(); ++group) {
    auto& of_group = regions[group];
    std::sort(of_group.begin(), of_group.end(), [](const Region& a, const Region& b) {
      return std::pair(index(a.sample), a.begin) < std::pair(index(b.sample), b.begin);
    });
    const std::uint64_t density = random.below(9);
    const bool join = random.chance(1, 2);  // across boundaries of backward slices
    std::vector<Slice> slices;
    for (std::size_t i = 0; i < of_group.size(); ++i) {
      const Region& region = of_group[i];
      const bool joins = join && i > 0 && of_group[i - 1].sample == region.sample &&
                         of_group[i - 1].end == region.begin;
      if (!joins) slices.push_back({region.sample, {region.begin}, {region.begin}});
      for (std::int64_t at = (region.begin / granularity + 1) * granularity; at < region.end;
           at += granularity) {
        if (!random.chance(density, 8)) continue;
        slices.back().end = {at};
        slices.push_back({region.sample, {at}, {at}});
      }
      slices.back().end = {region.end};
    }
    random.shuffle(std::span(slices));
    const std::uint64_t stay = random.below(4);
    const std::size_t first = plan.micropacks.size();
    for (const Slice& slice : slices) {
      const auto holds = [&](const Slice& other) { return other.sample == slice.sample; };
      const bool fits = plan.micropacks.size() > first && random.chance(stay, 4) &&
                        std::none_of(plan.micropacks.back().slices.begin(),
                                     plan.micropacks.back().slices.end(), holds);
      if (!fits) {
        MicroPack pack;
        pack.pass = Pass::weight;
        pack.group = static_cast<GroupId>(group);
        plan.micropacks.push_back(std::move(pack));
      }
      plan.micropacks.back().slices.push_back(slice);
    }
  }
}

inline ModelShape random_model(Random& random, const RandomPlanOptions& options,
                               std::int64_t lines) {
  ModelShape model;
  model.name = "random";
  model.layers = random.chance(1, 8) ? random.between(1, lines + 4) : lines + random.between(0, 5);
  model.hidden = options.large_model ? 128 * random.between(8, 64) : random.between(8, 32);
  model.heads = options.large_model ? random.between(8, 64) : random.between(1, 4);
  std::vector<std::int64_t> divisors;
  for (std::int64_t kv = 1; kv <= model.heads; ++kv) {
    if (model.heads % kv == 0) divisors.push_back(kv);
  }
  model.kv_heads = divisors[random.below(divisors.size())];
  model.head_dim = options.large_model ? 128 : 2 * random.between(2, 4);
  model.ffn = options.large_model ? 128 * random.between(16, 200) : random.between(8, 40);
  model.vocab = options.large_model ? random.between(30'000, 130'000) : random.between(11, 40);
  model.tied = options.tied.value_or(random.chance(1, 3));
  model.bytes_per_element = options.bytes_per_element;
  return model;
}

/// As many times the heads, and the next multiple of ffn.
inline void make_divisible(ModelShape& model, std::int64_t tensor_parallel) {
  model.heads *= tensor_parallel;
  model.kv_heads *= tensor_parallel;
  model.ffn = (model.ffn + tensor_parallel - 1) / tensor_parallel * tensor_parallel;
}

inline void random_stages(Random& random, Plan& plan) {
  const std::int32_t lines = plan.parallel.pp * plan.parallel.chunks;
  std::vector<std::int64_t> layers(static_cast<std::size_t>(lines), 0);
  std::int64_t left = plan.model.layers;
  if (left >= lines && !random.chance(1, 12)) {
    std::fill(layers.begin(), layers.end(), std::int64_t{1});
    left -= lines;
  }
  for (; left > 0; --left) ++layers[random.below(layers.size())];
  std::int64_t first = 0;
  for (std::int32_t line = 0; line < lines; ++line) {
    const std::int64_t end = first + layers[static_cast<std::size_t>(line)];
    plan.stages.push_back(
        {line % plan.parallel.pp, line / plan.parallel.pp, first, end, line == 0});
    first = end;
  }
}

inline void random_cluster(Random& random, Plan& plan, const RandomPlanOptions& options) {
  Cluster& cluster = plan.cluster;
  cluster.name = "random";
  cluster.devices_per_node = random.between(2, 8);
  if (options.devices_per_node) cluster.devices_per_node = *options.devices_per_node;
  cluster.memory = options.capacity;
  cluster.peak_flops = 1e10;
  cluster.matrix_flops = 5e9 * (0.5 + random.unit());
  cluster.attention_forward_flops = 4e9 * (0.5 + random.unit());
  cluster.attention_backward_flops = 3e9 * (0.5 + random.unit());
  cluster.memory_bytes_per_s = 1e10 * (0.5 + random.unit());
  cluster.inside = {1e9 * (0.5 + random.unit()), 1e-6 * random.unit()};
  cluster.between = {1e8 * (0.5 + random.unit()), 1e-5 * random.unit()};
  cluster.kernel_s = 1e-6 * random.unit();
  cluster.segment_s = 1e-7 * random.unit();
  cluster.tile_tokens = random.between(1, 16);
  const std::int32_t tp = plan.parallel.tp;
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(plan.parallel.dp * plan.parallel.pp));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  if (random.chance(1, 2)) random.shuffle(std::span(blocks));
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      const std::int64_t block = blocks[static_cast<std::size_t>(dp * plan.parallel.pp + pp)];
      for (std::int32_t t = 0; t < tp; ++t) {
        plan.placement.push_back({dp, pp, t, block * tp + t});
      }
    }
  }
}

inline void random_groups(Random& random, Plan& plan, const RandomPlanOptions& options) {
  const std::int32_t dp = plan.parallel.dp;
  for (std::int32_t rank = 0; rank < dp; ++rank) plan.groups.push_back({rank});
  const std::int32_t largest = std::min(dp, options.max_merge);
  const std::int32_t least = std::min(largest, options.min_merge);
  const bool cp_groups = largest >= 2 && options.cp_groups.value_or(random.chance(1, 2));
  if (cp_groups) {
    plan.parallel.max_cp = static_cast<std::int32_t>(random.between(least, largest));
    std::set<std::vector<std::int32_t>> drawn;
    const std::int64_t wanted = random.between(1, 3);
    for (std::int64_t i = 0; i < wanted; ++i) {
      std::vector<std::int32_t> ranks(static_cast<std::size_t>(dp));
      std::iota(ranks.begin(), ranks.end(), 0);
      random.shuffle(std::span(ranks));
      ranks.resize(static_cast<std::size_t>(random.between(least, plan.parallel.max_cp)));
      std::sort(ranks.begin(), ranks.end());
      if (drawn.insert(ranks).second) plan.groups.push_back(ranks);
    }
  }
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    plan.sample_group.push_back(static_cast<GroupId>(random.below(plan.groups.size())));
  }
  if (cp_groups) plan.sample_group[random.below(plan.samples.size())] = static_cast<GroupId>(dp);
}

inline void random_micropacks(Random& random, Plan& plan, const RandomPlanOptions& options) {
  const bool same_cuts = options.same_cuts.value_or(random.chance(1, 5));
  const bool one_mode = random.chance(1, 4);
  const auto mode = static_cast<Recompute>(random.below(kRecomputeModes));
  std::vector<MicroPack> packs;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    std::vector<SampleId> members;
    for (std::size_t i = 0; i < plan.samples.size(); ++i) {
      if (index(plan.sample_group[i]) == group) members.push_back(static_cast<SampleId>(i));
    }
    const bool uncut = options.uncut.value_or(false);
    const auto forward = random_packs(random, plan, members, false, uncut);
    auto backward = random_packs(random, plan, members, true, uncut);
    if (same_cuts) backward.assign(forward.rbegin(), forward.rend());
    const auto emit = [&](Pass pass, const std::vector<Slice>& slices) {
      MicroPack pack;
      pack.pass = pass;
      pack.group = static_cast<GroupId>(group);
      pack.slices = slices;
      if (plan.groups[group].size() > 1) {
        for (std::size_t i = 0; i < slices.size(); ++i) {
          const auto drawn = random.chance(1, 2) ? RingMode::pass_kv : RingMode::pass_q;
          const bool by_heads = options.exchange == RingMode::by_heads;  // random_by_heads
          pack.exchange.push_back(by_heads ? drawn : options.exchange.value_or(drawn));
        }
      }
      if (pass == Pass::backward) {
        const auto drawn = static_cast<Recompute>(random.below(kRecomputeModes));
        pack.recompute = options.recompute.value_or(one_mode ? mode : drawn);
      }
      packs.push_back(std::move(pack));
    };
    for (const auto& slices : forward) emit(Pass::forward, slices);
    for (const auto& slices : backward) emit(Pass::backward, slices);
  }
  if (random.chance(1, 2)) random.shuffle(std::span(packs));
  plan.micropacks = std::move(packs);
}

}  // namespace detail

namespace detail {

/// Lets each sample begin on any rank of its group.
inline void random_firsts(std::uint64_t seed, Plan& plan) {
  Random random(seed + 0xf1257u);
  for (const GroupId group : plan.sample_group) {
    plan.sample_first.push_back(static_cast<std::int32_t>(
        random.below(static_cast<std::uint64_t>(plan.groups[index(group)].size()))));
  }
}

/// Exchanges samples by heads, all that may be or by chance, and for that gives the model more
/// heads where a group's ranks do not divide them: of queries and keys, or of queries alone where
/// several ranks may have one of keys.
inline void random_by_heads(std::uint64_t seed, Plan& plan, bool all) {
  constexpr std::int64_t kMostHeads = 12;  // of keys on a device
  Random random(seed + 0x4ead5u);
  const std::int64_t tp = plan.parallel.tp;
  for (const std::vector<std::int32_t>& ranks : plan.groups) {
    const auto size = static_cast<std::int64_t>(ranks.size());
    const std::int64_t keys = plan.model.kv_heads / tp;
    if (divides_heads(plan.model, tp, size) || keys * size > kMostHeads) continue;
    plan.model.heads *= size;
    if (size % keys != 0 || random.chance(1, 2)) plan.model.kv_heads *= size;
  }
  std::vector<bool> by_heads;
  for (const GroupId group : plan.sample_group) {
    const auto size = static_cast<std::int64_t>(plan.groups[index(group)].size());
    const bool divides = divides_heads(plan.model, tp, size);
    by_heads.push_back(divides && (all || random.chance(1, 2)));
  }
  for (MicroPack& pack : plan.micropacks) {
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      if (by_heads[index(pack.slices[i].sample)]) pack.exchange[i] = RingMode::by_heads;
    }
  }
}

}  // namespace detail

/// A valid plan. The same seed and options give the same plan, up to the last bit of the cluster's
/// rates. `attempts`, if given, receives how many schedules got stuck before one was legal.
[[nodiscard]] inline Plan random_plan(std::uint64_t seed, const RandomPlanOptions& options = {},
                                      int* attempts = nullptr) {
  Random random(seed * 0x9e3779b97f4a7c15U + 0x51u);
  Plan plan;
  plan.version = options.version.value_or(seed % 4 == 3 ? 1 : seed % 8 < 4 ? 2 : 3);
  plan.planner = "random";
  plan.step_index = static_cast<std::int64_t>(seed % 1000);
  const std::int32_t least_dp = options.cp_groups.value_or(false) ? 2 : 1;
  const auto up_to = [&](std::int32_t low, std::int32_t high) {
    return static_cast<std::int32_t>(random.between(low, std::max(low, high)));
  };
  plan.parallel.dp = options.dp.value_or(up_to(least_dp, options.max_dp));
  plan.parallel.pp = options.pp.value_or(up_to(1, options.max_pp));
  plan.parallel.tp = options.tp.value_or(up_to(1, options.max_tp));
  plan.parallel.chunks = options.chunks.value_or(up_to(1, options.max_chunks));
  plan.parallel.head = options.head.value_or(random.chance(1, 2) ? LmHead::shard : LmHead::last);
  plan.parallel.granularity = {random.between(1, options.max_granularity)};
  plan.max_in_flight = options.max_in_flight.value_or(up_to(1, options.max_max_in_flight));

  const std::int64_t samples = random.between(options.min_samples, options.max_samples);
  for (std::int64_t i = 0; i < samples; ++i) {
    const bool single = random.chance(1, 8);
    plan.samples.push_back({single ? 1 : random.between(options.min_tokens, options.max_tokens)});
    plan.origin.push_back({0, i, {0}});
    plan.target_tokens += plan.samples.back().value - 1;
  }
  if (plan.target_tokens == 0) {
    plan.target_tokens = options.max_tokens - 1;
    plan.samples.front() = {options.max_tokens};
  }
  plan.sources.push_back({"random.lengths", samples, ""});
  plan.model = detail::random_model(random, options, plan.parallel.pp * plan.parallel.chunks);
  detail::make_divisible(plan.model, plan.parallel.tp);
  plan.memory.capacity = options.capacity;
  plan.memory.optimizer =
      random.chance(1, 2) ? OptimizerState::sharded : OptimizerState::replicated;
  plan.memory.gradient_bytes = options.gradient_bytes;
  if (options.vary_bytes) {
    plan.model.bytes_per_element = std::int64_t{1} << random.between(1, 3);
    plan.memory.gradient_bytes = std::max<std::int64_t>(4, plan.model.bytes_per_element)
                                 << random.below(2);
  }
  plan.memory.page_tokens = {random.between(options.min_page, options.max_page)};
  plan.memory.cp_block_tokens = {random.between(options.min_share, options.max_share)};
  plan.memory.head_tile = {random.between(1, options.max_head_tile)};
  detail::random_stages(random, plan);
  detail::random_cluster(random, plan, options);
  detail::random_groups(random, plan, options);
  detail::random_micropacks(random, plan, options);
  if (options.weights && plan.version >= 2) detail::random_weights(random, plan);
  if (plan.version >= 3) detail::random_firsts(seed, plan);
  const bool all_by_heads = options.exchange == RingMode::by_heads;
  if (plan.version >= 3 && (options.by_heads || all_by_heads)) {
    detail::random_by_heads(seed, plan, all_by_heads);
  }
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      plan.prediction.devices.push_back({dp, pp, {}, {}});
    }
  }
  const int first_boldness = 1 << random.below(3);
  for (int attempt = 0;; ++attempt) {
    require(attempt < detail::kScheduleAttempts, "random_plan: no legal schedule was found");
    const bool last = attempt + 1 == detail::kScheduleAttempts;
    const int boldness = last ? 0 : attempt >= 4 ? 1 : first_boldness;
    if (detail::RandomSchedule(plan, random.bits(), boldness).draw()) {
      if (attempts != nullptr) *attempts = attempt;
      return plan;
    }
  }
}

/// How many plans show each feature.
struct Features {
  std::int64_t plans = 0;
  std::int64_t merged_kv = 0, merged_q = 0, merged_heads = 0, shared_ranks = 0;
  std::int64_t chunks = 0, sharded_head = 0, tied = 0, grouped_queries = 0;
  std::int64_t differing_cuts = 0;
  std::array<std::int64_t, kRecomputeModes> recompute{};
  std::int64_t mixed_recompute = 0;  ///< a sample whose tokens have different modes
  std::int64_t uneven_stages = 0, empty_stages = 0, idle_ranks = 0, tensor_parallel = 0;
  std::int64_t weights = 0, weights_in_groups = 0;  ///< W, and W of groups of several ranks
  std::int64_t firsts = 0;                          ///< samples that begin on a later rank
  std::array<std::int64_t, 4> max_in_flight{};      ///< 1, 2, 3 and above
  friend bool operator==(const Features&, const Features&) = default;

  Features& operator+=(const Features& other) {
    plans += other.plans;
    merged_kv += other.merged_kv;
    merged_q += other.merged_q;
    merged_heads += other.merged_heads;
    shared_ranks += other.shared_ranks;
    chunks += other.chunks;
    sharded_head += other.sharded_head;
    tied += other.tied;
    grouped_queries += other.grouped_queries;
    differing_cuts += other.differing_cuts;
    for (std::size_t i = 0; i < recompute.size(); ++i) recompute[i] += other.recompute[i];
    mixed_recompute += other.mixed_recompute;
    uneven_stages += other.uneven_stages;
    empty_stages += other.empty_stages;
    idle_ranks += other.idle_ranks;
    tensor_parallel += other.tensor_parallel;
    weights += other.weights;
    weights_in_groups += other.weights_in_groups;
    firsts += other.firsts;
    for (std::size_t i = 0; i < max_in_flight.size(); ++i)
      max_in_flight[i] += other.max_in_flight[i];
    return *this;
  }
};

/// The features of one plan, each 0 or 1.
[[nodiscard]] inline Features features_of(const Plan& plan) {
  Features found;
  found.plans = 1;
  std::vector<std::int32_t> merged_of(static_cast<std::size_t>(plan.parallel.dp), 0);
  std::vector<bool> busy(static_cast<std::size_t>(plan.parallel.dp), false);
  std::vector<bool> used(plan.groups.size(), false);
  found.firsts = std::ranges::any_of(plan.sample_first, [](auto first) { return first > 0; });
  std::vector<std::optional<Recompute>> mode(plan.samples.size());
  std::vector<std::array<std::set<std::int64_t>, 2>> cuts(plan.samples.size());
  for (const MicroPack& pack : plan.micropacks) {
    used[index(pack.group)] = true;
    for (const std::int32_t rank : plan.groups[index(pack.group)]) {
      busy[static_cast<std::size_t>(rank)] = true;
    }
    for (const RingMode exchange : pack.exchange) {
      (exchange == RingMode::pass_kv  ? found.merged_kv
       : exchange == RingMode::pass_q ? found.merged_q
                                      : found.merged_heads) = 1;
    }
    if (pack.pass == Pass::weight) {
      found.weights = 1;
      if (plan.groups[index(pack.group)].size() > 1) found.weights_in_groups = 1;
      continue;
    }
    for (const Slice& slice : pack.slices) {
      cuts[index(slice.sample)][pack.pass == Pass::forward ? 0 : 1].insert(slice.begin.value);
    }
    if (pack.pass == Pass::forward) continue;
    found.recompute[static_cast<std::size_t>(pack.recompute)] = 1;
    for (const Slice& slice : pack.slices) {
      auto& known = mode[index(slice.sample)];
      if (known && *known != pack.recompute) found.mixed_recompute = 1;
      known = pack.recompute;
    }
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (!used[group] || plan.groups[group].size() < 2) continue;
    for (const std::int32_t rank : plan.groups[group]) ++merged_of[static_cast<std::size_t>(rank)];
  }
  found.shared_ranks =
      std::any_of(merged_of.begin(), merged_of.end(), [](std::int32_t n) { return n > 1; });
  found.idle_ranks = std::find(busy.begin(), busy.end(), false) != busy.end();
  found.differing_cuts =
      std::any_of(cuts.begin(), cuts.end(), [](const auto& c) { return c[0] != c[1]; });
  found.chunks = plan.parallel.chunks > 1;
  found.sharded_head = plan.parallel.head == LmHead::shard && plan.parallel.pp > 1;
  found.tied = plan.model.tied;
  found.grouped_queries = plan.model.kv_heads < plan.model.heads;
  found.tensor_parallel = plan.parallel.tp > 1;
  for (const Stage& stage : plan.stages) {
    if (stage.layers() != plan.stages.front().layers()) found.uneven_stages = 1;
    if (stage.layers() == 0) found.empty_stages = 1;
  }
  found.max_in_flight[static_cast<std::size_t>(std::clamp(plan.max_in_flight, 1, 4) - 1)] = 1;
  return found;
}

/// One line of counts, for a test's message.
[[nodiscard]] inline std::string to_string(const Features& found) {
  std::string text = std::to_string(found.plans) + " plans";
  const auto add = [&](const char* name, std::int64_t count) {
    text += std::string(", ") + name + " " + std::to_string(count);
  };
  add("merged kv", found.merged_kv);
  add("merged q", found.merged_q);
  add("merged heads", found.merged_heads);
  add("ranks in several merged groups", found.shared_ranks);
  add("chunks", found.chunks);
  add("sharded head", found.sharded_head);
  add("tied", found.tied);
  add("grouped queries", found.grouped_queries);
  add("differing cuts", found.differing_cuts);
  add("none", found.recompute[0]);
  add("light", found.recompute[1]);
  add("layer", found.recompute[2]);
  add("full", found.recompute[3]);
  add("mixed modes in a sample", found.mixed_recompute);
  add("uneven stages", found.uneven_stages);
  add("stages without layers", found.empty_stages);
  add("idle ranks", found.idle_ranks);
  add("tp", found.tensor_parallel);
  add("W", found.weights);
  add("W in groups", found.weights_in_groups);
  add("firsts", found.firsts);
  add("window 1", found.max_in_flight[0]);
  add("window 2", found.max_in_flight[1]);
  add("window 3", found.max_in_flight[2]);
  return text;
}

}  // namespace slimpack::test
