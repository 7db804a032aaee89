// SPDX-License-Identifier: Apache-2.0
// Executes a plan in simulated time straight from its schedules, without a DAG.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/counted_rows.hpp"

namespace slimpack::test {

/// Devices with program counters, channels with counters, collectives that wait for all: the rules
/// of docs/equations.md carried out one instant after the other. For small valid plans.
template <UnitTimes Times>
class PlanMachine {
 public:
  struct Device {
    std::size_t next = 0;
    bool working = false;  // on a unit whose end has not been carried out
    std::int64_t busy = 0;
    std::map<std::int64_t, std::int64_t> memory;             // changes by time
    std::vector<std::pair<std::int64_t, std::int64_t>> ran;  // each F, B, W, H, O in order
  };

  PlanMachine(const Plan& plan, const Times& times)
      : plan_(plan), times_(times), counted_(counted_rows(plan)) {
    devices.resize(plan.schedule.size());
    line_ = plan.parallel.pp * plan.parallel.chunks;
    prepare_channels();
    prepare_reduction();
    run();
  }

  /// The most bytes at an instant, without weights, gradients and optimizer state.
  [[nodiscard]] std::int64_t peak(std::size_t device) const {
    std::int64_t level = 0, most = 0;
    for (const auto& [time, change] : devices[device].memory) {
      level += change;
      most = std::max(most, level);
    }
    return most;
  }
  /// What is still there when all has ended.
  [[nodiscard]] std::int64_t left(std::size_t device) const {
    std::int64_t level = 0;
    for (const auto& [time, change] : devices[device].memory) level += change;
    return level;
  }

  std::vector<Device> devices;
  std::int64_t makespan = 0;
  bool finished = true;

 private:
  using Key = std::tuple<std::uint32_t, std::int32_t, int, std::int32_t>;  // group, dp, pass, from

  struct Message {
    std::uint32_t pack = 0;
    std::int32_t line = 0;
    std::size_t unit = 0;  // of the sender
    std::int64_t bytes = 0, time = 0;
    std::optional<std::int64_t> possible, start, end;
  };
  struct Channel {
    std::size_t from = 0, to = 0;
    std::vector<Message> messages;
    std::size_t queued = 0, moved = 0, ended = 0, consumed = 0;
  };
  struct Bucket {
    std::int32_t pp = 0, chunk = 0, number = 0, count = 1;
    std::int64_t time = 0;
    std::optional<std::int64_t> start, end;
  };

  // --- facts ---

  [[nodiscard]] const MicroPack& pack(std::uint32_t id) const { return plan_.micropacks[id]; }
  [[nodiscard]] std::size_t rank(std::uint32_t id, std::int32_t dp) const {
    const auto& ranks = plan_.groups[index(pack(id).group)];
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), dp) - ranks.begin());
  }
  [[nodiscard]] std::size_t device(std::int32_t dp, std::int32_t pp) const {
    return static_cast<std::size_t>(dp * plan_.parallel.pp + pp);
  }
  [[nodiscard]] bool on_line(const Unit& unit) const {
    return unit.kind == UnitKind::forward || unit.kind == UnitKind::backward;
  }
  [[nodiscard]] std::int32_t line_of_unit(const Unit& unit, std::int32_t pp) const {
    return unit.chunk * plan_.parallel.pp + pp;
  }
  [[nodiscard]] std::int64_t layers(std::int32_t line) const {
    return plan_.stages[static_cast<std::size_t>(line)].layers();
  }
  /// Key of the channel on which the unit at `line` sends, if it does.
  [[nodiscard]] std::optional<Key> sends(const Unit& unit, std::int32_t dp,
                                         std::int32_t line) const {
    if (!on_line(unit) || plan_.parallel.pp == 1) return std::nullopt;
    const bool forward = unit.kind == UnitKind::forward;
    if (line == (forward ? line_ - 1 : 0)) return std::nullopt;
    return Key{static_cast<std::uint32_t>(pack(static_cast<std::uint32_t>(unit.pack)).group), dp,
               forward ? 0 : 1, line % plan_.parallel.pp};
  }
  /// Key of the channel from which the unit at `line` receives, if it does.
  [[nodiscard]] std::optional<Key> receives(const Unit& unit, std::int32_t dp,
                                            std::int32_t line) const {
    if (!on_line(unit) || plan_.parallel.pp == 1) return std::nullopt;
    const bool forward = unit.kind == UnitKind::forward;
    if (line == (forward ? 0 : line_ - 1)) return std::nullopt;
    const std::int32_t before = forward ? line - 1 : line + 1;
    return Key{static_cast<std::uint32_t>(pack(static_cast<std::uint32_t>(unit.pack)).group), dp,
               forward ? 0 : 1, before % plan_.parallel.pp};
  }

  // --- bytes, token by token ---

  [[nodiscard]] std::int64_t tp_part(std::int64_t bytes) const {
    return (bytes + plan_.parallel.tp - 1) / plan_.parallel.tp;
  }
  /// Of a token, bytes that devices split by width, and by rows.
  [[nodiscard]] std::int64_t split(std::size_t sample, std::int64_t token, std::int64_t width,
                                   std::int64_t row) const {
    if (!has_rows()) return tp_part(width + row);
    return tp_part(width) + (counted_.contains({sample, token}) ? row : 0);
  }
  [[nodiscard]] bool has_rows() const { return plan_.parallel.tp > 1 && plan_.version > 1; }
  /// Rows that count of a pack's own tokens, and of one tile of them.
  [[nodiscard]] std::int64_t rows_of(std::uint32_t id, std::int32_t dp) const {
    std::int64_t rows = 0;
    for_own(id, dp, [&](std::size_t sample, std::int64_t token) {
      rows += counted_.contains({sample, token}) ? 1 : 0;
    });
    return rows;
  }
  [[nodiscard]] std::int64_t tile_rows(std::uint32_t id, std::int32_t dp) const {
    return std::min(rows_of(id, dp), tp_part(plan_.memory.head_tile.value));
  }
  [[nodiscard]] std::int64_t whole_rows(std::uint32_t id, std::int32_t dp) const {
    if (!has_rows()) return 0;
    return 2 * plan_.parallel.tp * tile_rows(id, dp) * plan_.model.hidden *
           plan_.model.bytes_per_element;
  }
  [[nodiscard]] std::int64_t hidden_of(std::uint32_t id, std::int32_t dp) const {
    std::int64_t bytes = 0;
    for_own(id, dp, [&](std::size_t sample, std::int64_t token) {
      bytes += split(sample, token, 0, plan_.model.hidden * plan_.model.bytes_per_element);
    });
    return bytes;
  }
  [[nodiscard]] bool owns(std::uint32_t id, std::int32_t dp, std::size_t sample,
                          std::int64_t token) const {
    const auto ranks = static_cast<std::int64_t>(plan_.groups[index(pack(id).group)].size());
    const std::int64_t turn = token / plan_.memory.cp_block_tokens.value % (2 * ranks);
    const std::int64_t first = plan_.sample_first.empty() ? 0 : plan_.sample_first[sample];
    const std::int64_t owner = (first + std::min(turn, 2 * ranks - 1 - turn)) % ranks;
    return owner == static_cast<std::int64_t>(rank(id, dp));
  }
  template <class Visit>
  void for_own(std::uint32_t id, std::int32_t dp, const Visit& visit) const {
    for (const Slice& slice : pack(id).slices) {
      for (std::int64_t token = slice.begin.value; token < slice.end.value; ++token) {
        if (owns(id, dp, index(slice.sample), token)) visit(index(slice.sample), token);
      }
    }
  }
  [[nodiscard]] Recompute mode(std::size_t sample, std::int64_t token) const {
    for (const MicroPack& candidate : plan_.micropacks) {
      if (candidate.pass != Pass::backward) continue;
      for (const Slice& slice : candidate.slices) {
        if (index(slice.sample) == sample && slice.begin.value <= token &&
            token < slice.end.value) {
          return candidate.recompute;
        }
      }
    }
    return Recompute::none;
  }
  /// Split by width, and by rows.
  [[nodiscard]] std::int64_t kept(Recompute mode) const {
    const ModelShape& m = plan_.model;
    const std::int64_t e = m.bytes_per_element, t = std::max<std::int64_t>(e, 4);
    const std::int64_t q = m.heads * m.head_dim, f = m.ffn;
    switch (mode) {
      case Recompute::none:
        return (q + q + f + f + f) * e + m.heads * t;
      case Recompute::light:
        return (q + q + f + f) * e + m.heads * t;
      case Recompute::layer:
        return q * e + m.heads * t;
      default:
        return 0;
    }
  }
  [[nodiscard]] std::int64_t kept_rows(Recompute mode) const {
    const std::int64_t e = plan_.model.bytes_per_element, t = std::max<std::int64_t>(e, 4);
    const std::int64_t h = plan_.model.hidden;
    if (mode == Recompute::none) return (h + h + h + h) * e + 2 * t;
    return (mode == Recompute::light ? h + h : h) * e;
  }
  [[nodiscard]] std::int64_t own_before(std::uint32_t id, std::int32_t dp, std::size_t sample,
                                        std::int64_t end) const {
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < end; ++token) count += owns(id, dp, sample, token) ? 1 : 0;
    return count;
  }
  [[nodiscard]] std::int64_t largest_share(std::uint32_t id, std::size_t sample, std::int64_t begin,
                                           std::int64_t end) const {
    std::int64_t most = 0;
    for (const std::int32_t dp : plan_.groups[index(pack(id).group)]) {
      most = std::max(most, own_before(id, dp, sample, end) - own_before(id, dp, sample, begin));
    }
    return most;
  }
  [[nodiscard]] std::int64_t exchange_bytes(std::uint32_t id) const {
    const ModelShape& m = plan_.model;
    if (plan_.groups[index(pack(id).group)].size() == 1) return 0;
    const std::int64_t e = m.bytes_per_element, t = std::max<std::int64_t>(e, 4);
    const std::int64_t k = m.kv_heads * m.head_dim, q = m.heads * m.head_dim;
    const std::int64_t g = plan_.memory.gradient_bytes;
    const bool back = pack(id).pass == Pass::backward;
    std::int64_t kv = 0, travelling = 0;
    for (std::size_t i = 0; i < pack(id).slices.size(); ++i) {
      const Slice& slice = pack(id).slices[i];
      if (pack(id).exchange[i] == RingMode::pass_kv) {
        const std::int64_t share = largest_share(id, index(slice.sample), 0, slice.end.value);
        kv = std::max(kv,
                      share * tp_part(2 * 2 * k * e) + (back ? share * tp_part(2 * 2 * k * g) : 0));
      } else {
        const std::int64_t share =
            largest_share(id, index(slice.sample), slice.begin.value, slice.end.value);
        travelling =
            std::max(travelling, share * tp_part(back ? 2 * (2 * q * e + q * g + 2 * m.heads * t)
                                                      : 2 * (2 * q * e + m.heads * t)));
      }
    }
    return std::max(kv, travelling);
  }

  /// Of a pack's own tokens and a layer: inputs of matrix products, those that a mode has not kept,
  /// and gradients of what they make.
  [[nodiscard]] std::int64_t for_weights(std::uint32_t id, std::int32_t dp, bool norms,
                                         bool attention) const {
    const ModelShape& m = plan_.model;
    const std::int64_t e = m.bytes_per_element;
    const std::int64_t q = m.heads * m.head_dim, k = m.kv_heads * m.head_dim;
    const std::int64_t inputs = (norms ? m.ffn : 0) + (attention ? q : 0);
    std::int64_t bytes = 0;
    for_own(id, dp, [&](std::size_t sample, std::int64_t token) {
      bytes += split(sample, token, inputs * e, norms ? 2 * m.hidden * e : 0) +
               split(sample, token, (q + k + k + m.ffn + m.ffn) * e, 2 * m.hidden * e);
    });
    return bytes;
  }
  [[nodiscard]] std::int64_t made_for_weights(std::uint32_t id, std::int32_t dp) const {
    const Recompute how = pack(id).recompute;
    return for_weights(id, dp, how != Recompute::none, how == Recompute::full);
  }
  [[nodiscard]] std::int64_t left_for_weights(std::uint32_t id, std::int32_t dp) const {
    return for_weights(id, dp, true, true);
  }

  void change(std::size_t device, std::int64_t i, std::int64_t bytes) {
    devices[device].memory[i] += bytes;
  }

  void account(const DeviceSchedule& schedule, const Unit& unit, std::int64_t start,
               std::int64_t end) {
    if (!names_pack(unit.kind)) return;
    const ModelShape& m = plan_.model;
    const std::size_t on = device(schedule.dp, schedule.pp);
    const auto id = static_cast<std::uint32_t>(unit.pack);
    const std::int64_t e = m.bytes_per_element, t = std::max<std::int64_t>(e, 4);
    const std::int64_t g = plan_.memory.gradient_bytes;
    const std::int64_t h = m.hidden, q = m.heads * m.head_dim, k = m.kv_heads * m.head_dim;
    const std::int64_t hidden = hidden_of(id, schedule.dp);
    std::int64_t own = 0;
    for_own(id, schedule.dp, [&](std::size_t, std::int64_t) { ++own; });
    if (unit.kind == UnitKind::head) {
      std::int64_t rows = m.vocab;
      if (plan_.parallel.head == LmHead::shard) {
        rows = m.vocab * (schedule.pp + 1) / plan_.parallel.pp -
               m.vocab * schedule.pp / plan_.parallel.pp;
      }
      const std::int64_t tile = tile_rows(id, schedule.dp);
      const std::int64_t work = has_rows()
                                    ? tile * (3 * h * e + h * g) +
                                          tile * plan_.parallel.tp * (tp_part(rows) * t + 4 * t) +
                                          whole_rows(id, schedule.dp)
                                    : std::min(own, plan_.memory.head_tile.value) *
                                          tp_part(rows * t + 3 * h * e + h * g + 4 * t);
      change(on, start, work);
      change(on, end, -work);
      if (schedule.pp != plan_.parallel.pp - 1) return;
      change(on, end, -hidden);
      change(on, start, hidden);
      return;
    }
    const std::int32_t line = line_of_unit(unit, schedule.pp);
    const std::int64_t n = layers(line);
    if (unit.kind == UnitKind::weight) {
      const std::int64_t left = left_for_weights(id, schedule.dp);
      const std::int64_t whole = whole_rows(id, schedule.dp);
      change(on, start, left + whole);
      change(on, end, -(n + 1) * left - whole);
      return;
    }
    if (pack(id).weights == WeightGradients::apart) {
      const std::int64_t made = n * made_for_weights(id, schedule.dp);
      change(on, start, made);
      change(on, end, n * left_for_weights(id, schedule.dp) - made);
    }
    const bool forward = unit.kind == UnitKind::forward;
    std::int64_t work = exchange_bytes(id) + whole_rows(id, schedule.dp), saved = 0;
    for_own(id, schedule.dp, [&](std::size_t sample, std::int64_t token) {
      const Recompute how = mode(sample, token);
      const std::int64_t again = kept(Recompute::none) - kept(how);
      const std::int64_t again_rows = kept_rows(Recompute::none) - kept_rows(how);
      saved += n * split(sample, token, kept(how), kept_rows(how));
      work += forward ? split(sample, token, 2 * k * e + again, 2 * h * e + again_rows)
                      : split(sample, token, (2 * q + 3 * m.ffn) * e + 2 * k * g + again,
                              3 * h * e + again_rows);
      if (!forward && !has_pages(sample)) work += tp_part(2 * k * e);
    });
    change(on, start, work);
    change(on, end, -work);
    if (forward) {
      change(on, start, saved);
    } else {
      change(on, end, -saved);
    }
    if (line == line_ - 1) change(on, forward ? start : end, forward ? hidden : -hidden);
    const std::int64_t page = plan_.memory.page_tokens.value;
    const auto pages = [&](std::int64_t tokens) { return (tokens + page - 1) / page; };
    for (const Slice& slice : pack(id).slices) {
      const std::int64_t length = plan_.samples[index(slice.sample)].value;
      const std::int64_t all = own_before(id, schedule.dp, index(slice.sample), length);
      const std::int64_t page_bytes =
          has_pages(index(slice.sample)) ? n * tp_part(2 * k * e) * page : 0;
      const bool summed = plan_.version == 1 || slices_of(index(slice.sample), Pass::backward) > 1;
      const std::int64_t gradient = summed ? n * tp_part(2 * k * g) * all : 0;
      if (forward) {
        change(on, start,
               (pages(own_before(id, schedule.dp, index(slice.sample), slice.end.value)) -
                pages(own_before(id, schedule.dp, index(slice.sample), slice.begin.value))) *
                   page_bytes);
        continue;
      }
      if (slice.end.value == length) change(on, start, gradient);
      if (slice.begin.value == 0) {
        change(on, end, -gradient);
        change(on, end, -pages(all) * page_bytes);
      }
    }
    if (plan_.parallel.pp == 1) {  // handed over in place
      if (line != (forward ? line_ - 1 : 0)) change(on, start, hidden);
      if (line != (forward ? 0 : line_ - 1)) change(on, end, -hidden);
    }
  }

  [[nodiscard]] std::int64_t slices_of(std::size_t sample, Pass pass) const {
    std::int64_t count = 0;
    for (const MicroPack& other : plan_.micropacks) {
      if (other.pass != pass) continue;
      count += std::ranges::count(other.slices, sample,
                                  [](const Slice& slice) { return index(slice.sample); });
    }
    return count;
  }
  [[nodiscard]] bool has_pages(std::size_t sample) const {
    return plan_.version == 1 || slices_of(sample, Pass::forward) > 1 ||
           slices_of(sample, Pass::backward) > 1 || mode(sample, 0) != Recompute::full;
  }

  // --- channels ---

  void prepare_channels() {
    for (const DeviceSchedule& schedule : plan_.schedule) {
      for (std::size_t i = 0; i < schedule.order.size(); ++i) {
        const Unit& unit = schedule.order[i];
        const std::int32_t line = line_of_unit(unit, schedule.pp);
        const auto key = sends(unit, schedule.dp, line);
        if (!key) continue;
        Channel& channel = channels_[*key];
        const auto id = static_cast<std::uint32_t>(unit.pack);
        const std::int32_t next = unit.kind == UnitKind::forward ? line + 1 : line - 1;
        channel.from = device(schedule.dp, schedule.pp);
        channel.to = device(schedule.dp, next % plan_.parallel.pp);
        Message message;
        message.pack = id;
        message.line = line;
        message.unit = i;
        message.bytes = hidden_of(id, schedule.dp);
        message.time = times_.transfer(unit.pack, line, rank(id, schedule.dp)).value;
        channel.messages.push_back(message);
      }
    }
    for (auto& [key, channel] : channels_) {
      for (std::size_t i = 0; i < channel.messages.size(); ++i) {
        if (i < max_in_flight()) change(channel.to, 0, channel.messages[i].bytes);
      }
    }
  }
  [[nodiscard]] std::size_t max_in_flight() const {
    return static_cast<std::size_t>(plan_.max_in_flight);
  }

  // --- reduction ---

  [[nodiscard]] bool has_table(std::int32_t pp) const {
    const std::int64_t v = plan_.model.vocab;
    const std::int64_t p = plan_.parallel.pp;
    if (!plan_.model.tied || p == 1) return false;
    if (pp == 0) return p > 1 && (plan_.parallel.head == LmHead::last || v - v / p > 0);
    if (plan_.parallel.head == LmHead::last) return pp == p - 1;
    return v * (pp + 1) / p > v * pp / p;
  }
  [[nodiscard]] bool last_backward_before(const DeviceSchedule& schedule, std::size_t i) const {
    const std::int32_t chunk = schedule.order[i].chunk;
    std::size_t before = i;
    while (before > 0 && schedule.order[before - 1].kind == UnitKind::reduce) --before;
    if (before == 0) return false;
    const Unit& unit = schedule.order[before - 1];
    const auto has_gradients = [&](const Unit& one) {
      return (one.kind == UnitKind::backward || one.kind == UnitKind::weight) && one.chunk == chunk;
    };
    if (!has_gradients(unit)) return false;
    return std::none_of(schedule.order.begin() + static_cast<std::ptrdiff_t>(before),
                        schedule.order.end(), has_gradients);
  }

  void prepare_reduction() {
    for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
      std::vector<Bucket> queue;
      for (const Unit& unit : plan_.schedule[device(0, pp)].order) {
        if (unit.kind != UnitKind::reduce) continue;
        const std::int32_t line = line_of_unit(unit, pp);
        const std::int64_t whole = times_.reduce(pp, unit.chunk).value;
        const std::int64_t count = std::max<std::int64_t>(1, layers(line));
        const std::int64_t layer = layer_weights();
        const std::int64_t all = layer * layers(line) + (unit.chunk == 0 ? end_weights(pp) : 0);
        std::int64_t done = 0;
        const bool split = any_early(pp, unit.chunk);
        for (std::int64_t number = 0; number < (split ? count : 1); ++number) {
          const bool last = number + 1 == (split ? count : 1);
          const std::int64_t until = last ? whole : whole * (layer * (number + 1)) / all;
          queue.push_back({pp,
                           unit.chunk,
                           static_cast<std::int32_t>(number),
                           static_cast<std::int32_t>(split ? count : 1),
                           until - done,
                           {},
                           {}});
          done = until;
        }
      }
      buckets_.push_back(queue);
    }
    std::int64_t longest = 0;
    for_table_buckets([&](Bucket& bucket) { longest = std::max(longest, bucket.time); });
    for_table_buckets([&](Bucket& bucket) { bucket.time = longest; });
  }
  [[nodiscard]] bool any_early(std::int32_t pp, std::int32_t chunk) const {
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      const DeviceSchedule& schedule = plan_.schedule[device(dp, pp)];
      for (std::size_t i = 0; i < schedule.order.size(); ++i) {
        if (schedule.order[i] == Unit{UnitKind::reduce, {}, chunk} &&
            last_backward_before(schedule, i)) {
          return true;
        }
      }
    }
    return false;
  }
  template <class Visit>
  void for_table_buckets(const Visit& visit) {
    for (auto& queue : buckets_) {
      for (Bucket& bucket : queue) {
        if (bucket.chunk == 0 && bucket.number + 1 == bucket.count && has_table(bucket.pp)) {
          visit(bucket);
        }
      }
    }
  }
  [[nodiscard]] std::int64_t layer_weights() const {
    const ModelShape& m = plan_.model;
    const std::int64_t q = m.heads * m.head_dim, k = m.kv_heads * m.head_dim;
    return m.hidden * (2 * q + 2 * k) + 3 * m.hidden * m.ffn + 2 * m.hidden;
  }
  [[nodiscard]] std::int64_t end_weights(std::int32_t pp) const {
    const std::int64_t p = plan_.parallel.pp;
    const std::int64_t v = plan_.model.vocab, h = plan_.model.hidden;
    std::int64_t rows = pp == p - 1 ? v : 0;
    if (plan_.parallel.head == LmHead::shard) rows = v * (pp + 1) / p - v * pp / p;
    if (plan_.model.tied && pp == 0) rows = 0;
    return (pp == 0 ? v * h : 0) + (pp == p - 1 ? h : 0) + rows * h;
  }

  /// When a device has released a bucket, if that is known yet.
  [[nodiscard]] std::optional<std::int64_t> released(std::int32_t dp, const Bucket& bucket) const {
    const std::size_t on = device(dp, bucket.pp);
    const DeviceSchedule& schedule = plan_.schedule[on];
    std::size_t i = 0;
    while (schedule.order[i] != Unit{UnitKind::reduce, {}, bucket.chunk}) ++i;
    std::size_t units = 0;  // before R, other than R
    for (std::size_t before = 0; before < i; ++before) {
      units += schedule.order[before].kind == UnitKind::reduce ? 0U : 1U;
    }
    if (units == 0) return 0;
    if (devices[on].ran.size() < units) return std::nullopt;
    const auto& [start, end] = devices[on].ran[units - 1];
    if (!last_backward_before(schedule, i)) return end;
    return start + (end - start) * (bucket.number + 1) / bucket.count;
  }
  [[nodiscard]] std::optional<std::int64_t> ready(const std::vector<Bucket>& queue,
                                                  const Bucket& bucket) const {
    std::int64_t latest = 0;
    for (const Bucket& before : queue) {
      if (&before == &bucket) break;
      if (!before.end) return std::nullopt;
      latest = std::max(latest, *before.end);
    }
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      const auto time = released(dp, bucket);
      if (!time) return std::nullopt;
      latest = std::max(latest, *time);
    }
    return latest;
  }
  /// Buckets whose start is known; their times may lie ahead.
  bool settle_buckets() {
    bool any = false;
    std::int64_t table = 0;
    bool table_ready = true;
    for (auto& queue : buckets_) {
      for (Bucket& bucket : queue) {
        const bool shared =
            bucket.chunk == 0 && bucket.number + 1 == bucket.count && has_table(bucket.pp);
        if (shared) {
          const auto time = ready(queue, bucket);
          table_ready = table_ready && time.has_value();
          table = std::max(table, time.value_or(0));
          continue;
        }
        if (bucket.end) continue;
        const auto time = ready(queue, bucket);
        if (!time) continue;
        bucket.start = *time;
        bucket.end = *time + bucket.time;
        any = true;
      }
    }
    if (!table_ready) return any;
    for_table_buckets([&](Bucket& bucket) {
      if (bucket.end) return;
      bucket.start = table;
      bucket.end = table + bucket.time;
      any = true;
    });
    return any;
  }

  // --- the run ---

  [[nodiscard]] bool own_side_ready(std::size_t on, const Unit& unit) const {
    const DeviceSchedule& schedule = plan_.schedule[on];
    if (devices[on].working) return false;
    const std::int32_t line = line_of_unit(unit, schedule.pp);
    if (unit.kind == UnitKind::optimizer) {
      for (const Bucket& bucket : buckets_[static_cast<std::size_t>(schedule.pp)]) {
        if (!bucket.end || *bucket.end > now_) return false;
      }
      return true;
    }
    if (const auto key = receives(unit, schedule.dp, line)) {
      const Channel& channel = channels_.at(*key);
      const auto id = static_cast<std::uint32_t>(unit.pack);
      const std::int32_t from = unit.kind == UnitKind::forward ? line - 1 : line + 1;
      const bool arrived = std::any_of(channel.messages.begin(), channel.messages.end(),
                                       [&](const Message& message) {
                                         return message.pack == id && message.line == from &&
                                                message.end && *message.end <= now_;
                                       });
      if (!arrived) return false;
    }
    if (const auto key = sends(unit, schedule.dp, line)) {
      const Channel& channel = channels_.at(*key);
      if (channel.queued - channel.ended >= max_in_flight()) return false;
    }
    if (unit.kind == UnitKind::head) {
      const std::size_t last = device(schedule.dp, plan_.parallel.pp - 1);
      if (done_.count({last, Unit{UnitKind::forward, unit.pack, plan_.parallel.chunks - 1}}) == 0) {
        return false;
      }
    }
    if (unit.kind == UnitKind::backward && line == line_ - 1) {
      for (std::uint32_t id = 0; id < plan_.micropacks.size(); ++id) {
        if (pack(id).pass != Pass::forward || !cp_block_tokens(id, unit.pack)) continue;
        if (done_.count({on, Unit{UnitKind::head, PackId{id}, 0}}) == 0) return false;
      }
    }
    if (unit.kind == UnitKind::weight) {
      for (std::uint32_t id = 0; id < plan_.micropacks.size(); ++id) {
        if (pack(id).pass != Pass::backward || !cp_block_tokens(id, unit.pack)) continue;
        if (done_.count({on, Unit{UnitKind::backward, PackId{id}, unit.chunk}}) == 0) return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool cp_block_tokens(std::uint32_t forward, PackId backward) const {
    for (const Slice& a : pack(forward).slices) {
      for (const Slice& b : pack(static_cast<std::uint32_t>(backward)).slices) {
        if (a.sample == b.sample && a.begin < b.end && b.begin < a.end) return true;
      }
    }
    return false;
  }
  [[nodiscard]] std::vector<std::size_t> participants(std::size_t on, const Unit& unit) const {
    const DeviceSchedule& schedule = plan_.schedule[on];
    std::vector<std::size_t> all;
    if (on_line(unit)) {
      for (const std::int32_t dp :
           plan_.groups[index(pack(static_cast<std::uint32_t>(unit.pack)).group)]) {
        all.push_back(device(dp, schedule.pp));
      }
    } else if (unit.kind == UnitKind::head && plan_.parallel.head == LmHead::shard) {
      for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
        all.push_back(device(schedule.dp, pp));
      }
    } else {
      all.push_back(on);
    }
    return all;
  }
  [[nodiscard]] std::int64_t duration(std::size_t on, const Unit& unit) const {
    const DeviceSchedule& schedule = plan_.schedule[on];
    if (unit.kind == UnitKind::optimizer) return times_.optimizer(schedule.dp, schedule.pp).value;
    if (on_line(unit)) return times_.compute(unit.pack, line_of_unit(unit, schedule.pp)).value;
    if (unit.kind == UnitKind::weight) {
      return weight_time(times_, unit.pack, line_of_unit(unit, schedule.pp),
                         rank(static_cast<std::uint32_t>(unit.pack), schedule.dp))
          .value;
    }
    return times_
        .head(unit.pack, rank(static_cast<std::uint32_t>(unit.pack), schedule.dp), schedule.pp)
        .value;
  }

  /// Effects of the units that end now.
  bool end_units() {
    bool any = false;
    for (auto unit = running_.begin(); unit != running_.end();) {
      const auto& [on, what, end] = *unit;
      if (end > now_) {
        ++unit;
        continue;
      }
      const DeviceSchedule& schedule = plan_.schedule[on];
      devices[on].working = false;
      done_.insert({on, what});
      const std::int32_t line = line_of_unit(what, schedule.pp);
      if (const auto key = sends(what, schedule.dp, line)) ++channels_.at(*key).queued;
      if (const auto key = receives(what, schedule.dp, line)) {
        Channel& channel = channels_.at(*key);
        change(on, now_, -channel.messages[channel.consumed].bytes);
        ++channel.consumed;
        const std::size_t posted = channel.consumed + max_in_flight() - 1;
        if (posted < channel.messages.size()) change(on, now_, channel.messages[posted].bytes);
      }
      unit = running_.erase(unit);
      any = true;
    }
    return any;
  }
  bool end_transfers() {
    bool any = false;
    for (auto& [key, channel] : channels_) {
      while (channel.ended < channel.moved && *channel.messages[channel.ended].end <= now_) {
        change(channel.from, *channel.messages[channel.ended].end,
               -channel.messages[channel.ended].bytes);
        ++channel.ended;
        any = true;
      }
      const std::size_t possible =
          std::min({channel.queued, channel.consumed + max_in_flight(), channel.messages.size()});
      for (std::size_t i = 0; i < possible; ++i) {
        if (!channel.messages[i].possible) {
          channel.messages[i].possible = now_;
          any = true;
        }
      }
    }
    return any;
  }
  bool start_units() {
    bool any = false;
    for (std::size_t on = 0; on < devices.size(); ++on) {
      const std::vector<Unit>& order = plan_.schedule[on].order;
      while (devices[on].next < order.size() && order[devices[on].next].kind == UnitKind::reduce &&
             !devices[on].working) {
        ++devices[on].next;
      }
      if (devices[on].next >= order.size() || devices[on].working) continue;
      const Unit unit = order[devices[on].next];
      const std::vector<std::size_t> all = participants(on, unit);
      const bool ready = std::all_of(all.begin(), all.end(), [&](std::size_t other) {
        const std::vector<Unit>& theirs = plan_.schedule[other].order;
        std::size_t i = devices[other].next;
        while (i < theirs.size() && theirs[i].kind == UnitKind::reduce) ++i;
        return i < theirs.size() && theirs[i] == unit && own_side_ready(other, unit);
      });
      if (!ready) continue;
      std::int64_t longest = 0;
      for (const std::size_t other : all) longest = std::max(longest, duration(other, unit));
      for (const std::size_t other : all) begin(other, unit, longest);
      any = true;
    }
    return any;
  }
  void begin(std::size_t on, const Unit& unit, std::int64_t time) {
    Device& state = devices[on];
    while (plan_.schedule[on].order[state.next].kind == UnitKind::reduce) ++state.next;
    ++state.next;
    state.working = true;
    state.busy += time;
    state.ran.emplace_back(now_, now_ + time);
    running_.emplace_back(on, unit, now_ + time);
    makespan = std::max(makespan, now_ + time);
    account(plan_.schedule[on], unit, now_, now_ + time);
    const std::int32_t line = line_of_unit(unit, plan_.schedule[on].pp);
    if (const auto key = sends(unit, plan_.schedule[on].dp, line)) {
      const auto id = static_cast<std::uint32_t>(unit.pack);
      for (const Message& message : channels_.at(*key).messages) {
        if (message.pack == id && message.line == line) change(on, now_, message.bytes);
      }
    }
  }
  [[nodiscard]] std::int64_t node(std::size_t device, std::int32_t tp) const {
    for (const Placement& place : plan_.placement) {
      if (this->device(place.dp, place.pp) == device && place.tp == tp) {
        return place.device / plan_.cluster.devices_per_node;
      }
    }
    return -1;
  }
  [[nodiscard]] bool crosses_nodes(const Channel& channel) const {
    for (std::int32_t tp = 0; tp < plan_.parallel.tp; ++tp) {
      if (node(channel.from, tp) != node(channel.to, tp)) return true;
    }
    return false;
  }
  bool start_transfers() {
    std::map<std::pair<std::size_t, std::size_t>, std::vector<Channel*>> links;
    for (auto& [key, channel] : channels_) {
      const bool shared = plan_.cluster.small.shared_links;
      const std::size_t way = shared ? (crosses_nodes(channel) ? 1U : 0U) : channel.to;
      links[{channel.from, way}].push_back(&channel);
    }
    bool any = false;
    for (auto& [ends, sharing] : links) {
      Channel* best = nullptr;
      bool busy = false;
      for (Channel* channel : sharing) {
        busy = busy || channel->moved > channel->ended;
        if (channel->moved == channel->messages.size()) continue;
        const Message& next = channel->messages[channel->moved];
        if (!next.possible) continue;
        if (best == nullptr) {
          best = channel;
          continue;
        }
        const Message& other = best->messages[best->moved];
        if (std::pair(*next.possible, next.unit) < std::pair(*other.possible, other.unit)) {
          best = channel;
        }
      }
      if (busy || best == nullptr) continue;
      Message& message = best->messages[best->moved++];
      message.start = now_;
      message.end = now_ + message.time;
      makespan = std::max(makespan, *message.end);
      any = true;
    }
    return any;
  }

  void run() {
    for (;;) {
      do {
        bool any = true;
        while (any) {
          any = end_units();
          any = end_transfers() || any;
          any = settle_buckets() || any;
          any = start_units() || any;
        }
      } while (start_transfers());
      std::optional<std::int64_t> next;
      const auto consider = [&](std::int64_t i) {
        if (i > now_ && (!next || i < *next)) next = i;
      };
      for (const auto& [on, unit, end] : running_) consider(end);
      for (const auto& [key, channel] : channels_) {
        for (const Message& message : channel.messages) {
          if (message.end) consider(*message.end);
        }
      }
      for (const auto& queue : buckets_) {
        for (const Bucket& bucket : queue) {
          if (!bucket.end) continue;
          consider(*bucket.end);
          makespan = std::max(makespan, *bucket.end);
        }
      }
      if (!next) break;
      now_ = *next;
    }
    for (std::size_t on = 0; on < devices.size(); ++on) {
      finished = finished && devices[on].next == plan_.schedule[on].order.size();
    }
  }

  const Plan& plan_;
  const Times& times_;
  std::set<std::pair<std::size_t, std::int64_t>> counted_;  // tokens, of tensor parallelism
  std::int32_t line_ = 1;
  std::int64_t now_ = 0;
  std::map<Key, Channel> channels_;
  std::vector<std::vector<Bucket>> buckets_;  // by stage
  std::vector<std::tuple<std::size_t, Unit, std::int64_t>> running_;
  std::set<std::pair<std::size_t, Unit>> done_;
};

}  // namespace slimpack::test
