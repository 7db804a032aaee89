// SPDX-License-Identifier: Apache-2.0
// Measures on this machine what cost coefficients are fitted to (docs/costs.md).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/any_transport.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/thread_system.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack_cpu/device.hpp"
#include "slimpack_cpu/profile_plans.hpp"
#include "slimpack_cpu/profile_rows.hpp"

namespace slimpack::cpu {

/// How a profile is measured.
struct ProfileOptions {
  std::size_t ranks = 1;            ///< threads, all loaded at the same time
  std::size_t tensor_parallel = 1;  ///< of them, those that split layers between them
  std::vector<std::size_t> cores;   ///< one a rank, to stay on; empty: wherever there is room
  Tokens context{8192};             ///< longest sample
  std::int64_t rounds = 7;          ///< measured at most; every unit runs once a round
  std::chrono::milliseconds budget{45'000};  ///< no round begins that would end after it
  bool quick = false;                        ///< quick_profile_plans

  /// Told the round and the plan that run next, both from 0, while no rank works: the first round
  /// counts for nothing where there is another. Its time does not count towards the budget.
  std::function<void(std::int64_t, std::size_t)> before_each = [](std::int64_t, std::size_t) {};
};

/// What was measured, and how quietly.
struct MeasuredProfile {
  /// What `fit_cost` is fitted to.
  std::vector<ProfileRow> rows;
  /// Of the time that units took, the share in which their threads computed, in 0 .. 1. The rest
  /// went to other programs and to the host; rows are longer by what is usual of it.
  double core_share = 1;
};

namespace detail {

using ProfileClock = std::chrono::steady_clock;

[[nodiscard]] inline double profile_seconds(ProfileClock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// How long the calling thread has computed; other programs on its core do not count. Where the
/// system does not tell, the time of day.
[[nodiscard]] inline std::chrono::nanoseconds computed() {
  const auto time = runtime::ComputeClock::mine().read();
  return time ? *time
              : std::chrono::duration_cast<std::chrono::nanoseconds>(
                    ProfileClock::now().time_since_epoch());
}

/// A thread transport that keeps how long its thread had computed when each unit began.
class StampedTransport : public runtime::ThreadTransport {
 public:
  using runtime::ThreadTransport::ThreadTransport;
  /// Notes that the unit of this name begins.
  void announce(const std::string& unit) {
    runtime::ThreadTransport::announce(unit);
    stamps.push_back(computed());
    clock.push_back(ProfileClock::now());
  }
  std::vector<std::chrono::nanoseconds> stamps;
  std::vector<ProfileClock::time_point> clock;  ///< when
};

/// One profile: every rank runs the same units on its own thread.
template <Mathematics Math>
class ProfileRun {
 public:
  using Number = typename Math::Number;
  static constexpr auto kElement = static_cast<std::int64_t>(sizeof(Number));

  ProfileRun(const ModelShape& model, const ProfileOptions& options)
      : options_(options),
        model_(model),
        device_threads_(options.ranks, {options.cores, std::nullopt}) {
    require(options.rounds >= 1, "measure_profile: rounds must be >= 1", options.rounds);
    require(options.context >= Tokens{1}, "measure_profile: context must be >= 1",
            options.context.value);
    model_.bytes_per_element = kElement;
    for (ProfilePlan& made : options.quick ? quick_profile_plans(model_, options.context)
                                           : profile_plans(model_, options.context)) {
      shots_.emplace_back(std::move(made));
    }
    require(options.tensor_parallel >= 1 && options.ranks % options.tensor_parallel == 0,
            "measure_profile: tensor_parallel must divide ranks",
            static_cast<std::int64_t>(options.tensor_parallel));
    if (options.ranks > 1 && options.tensor_parallel == 1 && !options.quick) {
      for (ProfilePlan& made :
           group_plans(model_, options.context, static_cast<std::int32_t>(options.ranks))) {
        shots_.emplace_back(std::move(made));
      }
    }
    if (options.tensor_parallel > 1) {
      shots_.emplace_back(
          split_plan(model_, options.context, static_cast<std::int32_t>(options.tensor_parallel)));
    }
    for (Shot& shot : shots_) {
      shot.devices.reserve(options.ranks);
      for (std::size_t rank = 0; rank < options.ranks; ++rank) {
        const std::size_t device = rank % shot.together();
        shot.devices.emplace_back(shot.plan(), device, 1);
        shot.devices.back().reserve(runtime::arena_bytes(
            shot.plan(), shot.program, device, element_bytes_of<Number>(), kBufferAlignment));
      }
    }
  }

  [[nodiscard]] MeasuredProfile measured() {
    auto begin = ProfileClock::now();
    embedding();
    if (options_.ranks > 1) traffic();
    // The first round touches memory for the first time and counts only where there is no other.
    for (std::int64_t round = 0; round <= options_.rounds; ++round) {
      auto round_begin = ProfileClock::now();
      for (std::size_t i = 0; i < shots_.size(); ++i) {
        const auto asked = ProfileClock::now();
        options_.before_each(round, i);
        const auto waited = ProfileClock::now() - asked;
        begin += waited;
        round_begin += waited;
        measure(shots_[i]);
      }
      if (round == 0 && options_.rounds > 1) forget_units();
      const auto now = ProfileClock::now();
      if ((round > 0 || options_.rounds == 1) &&
          now - begin + (now - round_begin) > options_.budget) {
        break;
      }
    }
    for (const Shot& shot : shots_) unit_rows(shot);
    std::ranges::stable_sort(rows_, {},
                             [](const ProfileRow& row) { return std::pair(row.kind, row.pass); });
    return {std::move(rows_), core_share()};
  }

 private:
  struct Shot {
    explicit Shot(ProfilePlan made)
        : profile(std::move(made)),
          program(runtime::make_program(profile.plan)),
          data(profile_data(profile.plan)),
          seconds(profile.plan.schedule.front().order.size()) {}
    [[nodiscard]] const Plan& plan() const { return profile.plan; }
    /// Devices that wait for each other: of a plan.
    [[nodiscard]] std::size_t together() const { return plan().placement.size(); }

    ProfilePlan profile;
    runtime::Program program;
    runtime::StepData data;
    std::vector<BasicDevice<Math>> devices;    ///< one a rank
    std::vector<std::vector<double>> seconds;  ///< by unit, of all rounds and ranks
    std::vector<double> passed;                ///< in all units of a round and rank
  };

  void forget_units() {
    for (Shot& shot : shots_) {
      for (auto& unit : shot.seconds) unit.clear();
      shot.passed.clear();
    }
    computed_ = passed_ = 0;
  }

  void measure(Shot& shot) {
    const std::size_t units = shot.seconds.size();
    std::vector<std::vector<double>> found(options_.ranks);
    std::vector<double> passed(options_.ranks);
    const std::size_t devices = shot.together();
    std::deque<runtime::Rendezvous> plans;
    for (std::size_t i = 0; i < options_.ranks / devices; ++i) {
      plans.emplace_back(devices, shot.plan().max_in_flight);
    }
    runtime::Rendezvous together(options_.ranks, 1);
    device_threads_.run([&](std::size_t rank) {
      runtime::ThreadTransport start(together, rank);
      StampedTransport link(plans[rank / devices], rank % devices);
      link.stamps.reserve(units + 2);
      link.clock.reserve(units + 2);
      const runtime::MemoryObserver observer;
      runtime::ErasedTransport through(link);
      runtime::DeviceRun<BasicDevice<Math>, runtime::AnyTransport> run(
          shot.plan(), shot.program, shot.data, rank % devices, shot.devices[rank], through,
          observer);
      double none = 0;
      start.all_reduce(profile_process_group(options_.ranks, rank), std::span(&none, 1),
                       runtime::Reduction::sum);
      try {
        (void)run.run();
      } catch (const std::exception& error) {
        plans[rank / devices].abort(error.what());
        throw;
      }
      // Devices that work together wait for each other, which is no computing but takes as long.
      for (std::size_t unit = 0; unit < units; ++unit) {
        found[rank].push_back(devices == 1
                                  ? profile_seconds(link.stamps[unit + 1] - link.stamps[unit])
                                  : profile_seconds(link.clock[unit + 1] - link.clock[unit]));
      }
      passed[rank] = profile_seconds(link.clock[units] - link.clock.front());
    });
    for (const auto& rank : found) {
      for (std::size_t unit = 0; unit < units; ++unit) shot.seconds[unit].push_back(rank[unit]);
    }
    shot.passed.insert(shot.passed.end(), passed.begin(), passed.end());
    if (devices > 1) return;
    passed_ += std::accumulate(passed.begin(), passed.end(), 0.0);
    for (const auto& rank : found) {
      computed_ += std::accumulate(rank.begin(), rank.end(), 0.0);
    }
  }

  [[nodiscard]] double core_share() const { return std::min(1.0, computed_ / passed_); }

  /// Medians leave out rounds in which the host was slow or busy with something else. What it takes
  /// of every round, seldom from the same units, is spread over all of them.
  void unit_rows(const Shot& shot) {
    const std::vector<Unit>& order = shot.plan().schedule.front().order;
    std::vector<double> seconds;
    for (const auto& unit : shot.seconds) seconds.push_back(median(unit));
    const double longer =
        median(shot.passed) / std::accumulate(seconds.begin(), seconds.end(), 0.0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto row = profile_row(shot.profile, order[i], seconds[i] * longer,
                                   shot.devices.front().static_bytes(), embedding_);
      if (row) rows_.push_back(*row);
    }
  }

  /// Looks up and adds up the tokens of every pack, so that a first stage's F and B can be told
  /// from its layers.
  void embedding() {
    for (const Shot& shot : shots_) list_embeddings(shot.plan(), embedding_);
    for (auto& [key, seconds] : embedding_) {
      const auto [pass, tokens] = key;
      seconds = on_all_ranks([&, pass = pass, tokens = tokens](std::size_t) {
        Math math;
        std::vector<Number> table(static_cast<std::size_t>(model_.vocab * model_.hidden));
        std::vector<Number> out(static_cast<std::size_t>(tokens.value * model_.hidden));
        std::vector<std::int32_t> drawn;
        Random random(2);
        for (std::int64_t i = 0; i < tokens.value; ++i) {
          drawn.push_back(static_cast<std::int32_t>(random.between(0, model_.vocab - 1)));
        }
        return timed([&] {
          if (pass == Pass::forward) {
            math.embedding_forward(out, table, drawn, model_.vocab, model_.hidden);
          } else {
            math.embedding_backward(table, out, drawn, model_.vocab, model_.hidden);
          }
        });
      });
      ProfileRow row;
      row.kind = ProfileKind::embedding;
      row.pass = pass;
      row.tokens = tokens;
      row.seconds = std::max(seconds, 1e-9);
      rows_.push_back(row);
    }
  }

  static constexpr std::size_t kRepetitions = 9;

  /// The median time of some calls.
  template <class Call>
  [[nodiscard]] static double timed(const Call& call) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= kRepetitions; ++i) {
      const auto begin = ProfileClock::now();
      call();
      if (i > 0) seconds.push_back(profile_seconds(ProfileClock::now() - begin));
    }
    return median(std::move(seconds));
  }

  /// The median over ranks of work(rank) on all of them at the same time.
  template <class Work>
  [[nodiscard]] double on_all_ranks(const Work& work) {
    std::vector<double> seconds(options_.ranks);
    device_threads_.run([&](std::size_t rank) { seconds[rank] = work(rank); });
    return median(seconds);
  }

  void traffic() {
    for (const std::int64_t bytes : {4096, 65'536, 262'144, 1'048'576, 4'194'304}) {
      traffic_row(ProfileKind::p2p, Bytes{bytes}, ping_pong(Bytes{bytes}));
      const auto ranks = static_cast<std::int64_t>(options_.ranks);
      traffic_row(
          ProfileKind::reduce, Bytes{bytes * (ranks - 1) / ranks},
          together(Bytes{bytes}, [](auto& link, const runtime::ProcessGroup& process_group,
                                    std::span<Number> values, std::span<Number>, std::int64_t tag) {
            link.queue_sum(process_group, tag, values);
            link.await_sum(process_group, tag);
          }));
      traffic_row(ProfileKind::exchange, Bytes{bytes * (ranks - 1)},
                  together(Bytes{bytes}, [](auto& link, const runtime::ProcessGroup& process_group,
                                            std::span<Number> values, std::span<Number> others,
                                            std::int64_t) {
                    for (std::size_t step = 1; step < process_group.members.size(); ++step) {
                      link.ring(process_group, step - 1, std::as_bytes(values),
                                std::as_writable_bytes(others));
                    }
                  }));
      // A gather and a sum of as many whole rows, each with the rows put in another order.
      const double both = together(
          Bytes{bytes}, [](auto& link, const runtime::ProcessGroup& process_group,
                           std::span<Number> values, std::span<Number> others, std::int64_t) {
            const std::size_t members = process_group.members.size();
            const std::size_t part = values.size() / members, first = process_group.self * part;
            const std::span<Number> all = values.first(part * members);
            link.all_gather(process_group, all, first, first + part);
            std::ranges::copy(all, others.begin());
            std::ranges::copy(others.first(all.size()), all.begin());
            link.reduce_scatter(process_group, all, first, first + part);
          });
      // Where layers are split, they are measured in units.
      if (options_.tensor_parallel == 1) {
        traffic_row(ProfileKind::tensor, Bytes{bytes * (ranks - 1) / ranks}, both / 2);
      }
    }
  }

  void traffic_row(ProfileKind kind, Bytes bytes, double seconds) {
    ProfileRow row;
    row.kind = kind;
    row.ranks = static_cast<std::int64_t>(options_.ranks);
    row.bytes = bytes;
    row.seconds = std::max(seconds, 1e-9);
    rows_.push_back(row);
  }

  /// Half the time there and back between ranks 2i and 2i + 1, all pairs at once.
  [[nodiscard]] double ping_pong(Bytes bytes) {
    runtime::Rendezvous rendezvous(options_.ranks, 1);
    const std::size_t paired = options_.ranks / 2 * 2;
    std::vector<double> seconds(options_.ranks);
    device_threads_.run([&](std::size_t rank) {
      if (rank < paired) {
        runtime::ThreadTransport link(rendezvous, rank);
        std::vector<std::byte> memory(2 * static_cast<std::size_t>(bytes.value));
        seconds[rank] =
            there_and_back(link, rank, memory, [&](const auto& call) { return timed(call); });
      }
      rendezvous.leave(rank);
    });
    seconds.resize(paired);
    return median(seconds) / 2;
  }

  template <class Call>
  [[nodiscard]] double together(Bytes bytes, const Call& call) {
    runtime::Rendezvous rendezvous(options_.ranks, 1);
    return on_all_ranks([&](std::size_t rank) {
      runtime::ThreadTransport link(rendezvous, rank);
      const runtime::ProcessGroup process_group = profile_process_group(options_.ranks, rank);
      std::vector<Number> values(static_cast<std::size_t>(bytes.value / kElement));
      std::vector<Number> others(values.size());
      std::int64_t tag = 0;
      return timed([&] { call(link, process_group, std::span(values), std::span(others), tag++); });
    });
  }

  ProfileOptions options_;
  ModelShape model_;
  runtime::DeviceThreads device_threads_;
  std::vector<Shot> shots_;
  EmbeddingTimes embedding_;
  /// Seconds of all units, rounds and ranks: in which their threads computed, and that passed.
  double computed_ = 0, passed_ = 0;
  std::vector<ProfileRow> rows_;
};

}  // namespace detail

/// Measures layers, embedding, head and optimizer of a model of this shape, and messages, sums and
/// exchanges between threads (with two or more ranks), for `fit_cost`. Layers, head and optimizer
/// are units of small plans that go through the executor, on all ranks at the same time; each row
/// holds the median over rounds and ranks of the time in which the rank's thread computed, longer
/// by the factor by which the median time of its plan is above the sum of its units' medians: what
/// the host and other programs always take is spread evenly, what they take of some rounds is left
/// out. F and B of a group of all ranks take what passes while they run, waits for each other among
/// it; they are not measured where layers are split. Only 1, 2 and 4 of the model's layers
/// are built. Throws InvalidInput where an option is
/// out of range or the model cannot be executed.
template <Mathematics Math>
[[nodiscard]] MeasuredProfile measure_profile(const ModelShape& model,
                                              const ProfileOptions& options) {
  return detail::ProfileRun<Math>(model, options).measured();
}

}  // namespace slimpack::cpu
