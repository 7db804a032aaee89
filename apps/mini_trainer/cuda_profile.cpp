// SPDX-License-Identifier: Apache-2.0
#include "cuda_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/profile_plans.hpp"
#include "slimpack_cpu/profile_rows.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/row_tables.hpp"
#include "slimpack_cuda/rows.hpp"
#include "steps.hpp"
#include "turns.hpp"

namespace slimpack::trainer {
namespace {

/// Where layers are split, collectives of more bytes than this are measured in units.
constexpr Bytes kSmallTensor{65'536};

using cpu::detail::mean;
using cpu::detail::median;
using cpu::detail::profile_process_group;

constexpr std::size_t kRounds = 7, kRepetitions = 9;
constexpr std::chrono::seconds kBudget{3};  ///< after which no round of a plan begins
constexpr std::chrono::minutes kHangTimeouts{2};

/// What a rank measures with, on its thread.
struct Bench {
  cuda::Stream compute;
  cuda::RankStreams streams{compute.view()};
  cuda::Event begin{cuda::EventUse::time}, end{cuda::EventUse::time};

  /// The median of some calls, which queue work on the compute stream.
  template <class Call>
  [[nodiscard]] double timed(const Call& call) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= kRepetitions; ++i) {
      begin.record(compute.view());
      call();
      end.record(compute.view());
      require(cuda::wait_until(end, std::chrono::steady_clock::now() + kHangTimeouts),
              "--profile: a GPU has not ended its work within two minutes");
      if (i > 0) seconds.push_back(static_cast<double>(end.milliseconds_since(begin)) / 1e3);
    }
    return median(std::move(seconds));
  }
};

class ProfileOnCuda {
 public:
  ProfileOnCuda(ModelShape model, Tokens context, CudaThreadRanks& ranks,
                std::size_t tensor_parallel,
                std::function<void(std::int64_t, std::size_t)> before_each)
      : model_(std::move(model)),
        ranks_(ranks),
        tensor_parallel_(tensor_parallel),
        before_each_(std::move(before_each)),
        benches_(ranks.size()) {
    model_.bytes_per_element = CudaDevice::element_sizes().element;
    plans_ = cpu::profile_plans(model_, context);
    if (tensor_parallel > 1) {
      plans_.push_back(
          cpu::split_plan(model_, context, static_cast<std::int32_t>(tensor_parallel)));
    }
    ranks_.device_threads().run(
        [&](std::size_t rank) { benches_[rank] = std::make_unique<Bench>(); });
  }
  ~ProfileOnCuda() {
    ranks_.device_threads().run([&](std::size_t rank) { benches_[rank].reset(); });
  }
  ProfileOnCuda(const ProfileOnCuda&) = delete;
  ProfileOnCuda& operator=(const ProfileOnCuda&) = delete;

  [[nodiscard]] CudaProfile measured() {
    embedding();
    if (ranks_.size() > 1) traffic();
    for (std::size_t i = 0; i < plans_.size(); ++i) unit_rows(i);
    if (alone_ > 0) profile_.loaded_over_alone = loaded_ / alone_;
    std::ranges::stable_sort(profile_.rows, {},
                             [](const ProfileRow& row) { return std::pair(row.kind, row.pass); });
    return std::move(profile_);
  }

 private:
  using Seconds = std::vector<std::vector<double>>;  ///< by unit, of all rounds and ranks

  /// The devices of one plan, which hold weights, and what they run.
  class Shot {
   public:
    Shot(const Plan& plan, CudaThreadRanks& ranks) : plan_(plan), ranks_(ranks) {
      ranks_.device_threads().run([&](std::size_t rank) {
        devices_[rank] =
            CudaDevice(plan, rank % devices_a_stage(), 1, {}, ranks_.rank_options(rank));
        streams_[rank] = std::make_unique<cuda::RankStreams>(devices_[rank].stream());
        if (rank == 0) held_ = devices_[rank].static_bytes();
      });
    }
    ~Shot() {
      ranks_.device_threads().run([&](std::size_t rank) {
        streams_[rank].reset();
        devices_[rank] = CudaDevice();
      });
    }
    Shot(const Shot&) = delete;
    Shot& operator=(const Shot&) = delete;

    [[nodiscard]] const StaticBytes& held() const noexcept { return held_; }
    [[nodiscard]] std::size_t devices_a_stage() const {
      return static_cast<std::size_t>(plan_.parallel.tp);
    }

    /// Runs the plan once on the first `ranks` ranks at the same time: times of units, by rank.
    [[nodiscard]] std::vector<std::vector<UnitTime>> run(std::size_t ranks) {
      std::vector<std::vector<UnitTime>> found(ranks);
      const std::size_t split = devices_a_stage();
      std::deque<cuda::StreamRendezvous> stages;
      for (std::size_t i = 0; i < ranks / split; ++i) {
        stages.emplace_back(split, plan_.max_in_flight);
      }
      runtime::Rendezvous together(ranks_.size(), 1);
      ranks_.device_threads().run([&](std::size_t rank) {
        if (rank >= ranks) return together.leave(rank);
        runtime::ThreadTransport start(together, rank);
        cuda::StreamRendezvous& stage = stages[rank / split];
        cuda::StreamTransport link(stage, rank % split, cuda::StreamMover(*streams_[rank]));
        const runtime::MemoryObserver observer;
        runtime::DeviceRun<CudaDevice, cuda::StreamTransport> run(
            plan_, program_, data_, rank % split, devices_[rank], link, observer);
        double none = 0;
        start.all_reduce(cpu::detail::profile_process_group(ranks, rank), std::span(&none, 1),
                         runtime::Reduction::sum);
        try {
          (void)run.run();
        } catch (const std::exception& error) {
          stage.abort(error.what());
          throw;
        }
        found[rank] = devices_[rank].times();
        stage.leave(rank % split);
        together.leave(rank);
      });
      return found;
    }

   private:
    const Plan& plan_;
    CudaThreadRanks& ranks_;
    runtime::Program program_ = runtime::make_program(plan_);
    runtime::StepData data_ = cpu::detail::profile_data(plan_);
    std::vector<CudaDevice> devices_{ranks_.size()};
    std::vector<std::unique_ptr<cuda::RankStreams>> streams_{ranks_.size()};
    StaticBytes held_;
  };

  /// What units of the plan take on so many ranks at the same time.
  [[nodiscard]] Seconds measure(Shot& shot, std::size_t number, std::size_t ranks) {
    Seconds seconds(plans_[number].plan.schedule.front().order.size());
    const auto begin = std::chrono::steady_clock::now();
    // The first round looks for algorithms and touches memory for the first time.
    for (std::size_t round = 0; round <= kRounds; ++round) {
      if (ranks == ranks_.size()) before_each_(static_cast<std::int64_t>(round), number);
      const auto found = shot.run(ranks);
      if (round == 0) continue;
      for (const auto& times : found) {
        for (std::size_t unit = 0; unit < times.size(); ++unit) {
          const Nanos took = times[unit].end - times[unit].begin;
          seconds[unit].push_back(static_cast<double>(took.value) * 1e-9);
        }
      }
      if (std::chrono::steady_clock::now() - begin > kBudget) break;
    }
    return seconds;
  }

  /// One plan at a time: its devices hold weights.
  void unit_rows(std::size_t number) {
    const cpu::ProfilePlan& profile = plans_[number];
    Shot shot(profile.plan, ranks_);
    const bool compared = ranks_.size() > 1 && shot.devices_a_stage() == 1;
    if (compared) {
      for (const auto& unit : measure(shot, number, 1)) alone_ += mean(unit);
    }
    const Seconds seconds = measure(shot, number, ranks_.size());
    const std::vector<Unit>& order = profile.plan.schedule.front().order;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (compared) loaded_ += mean(seconds[i]);
      const auto row =
          cpu::detail::profile_row(profile, order[i], mean(seconds[i]), shot.held(), embedding_);
      if (row) profile_.rows.push_back(*row);
    }
  }

  /// The median over ranks of work(bench, rank) on all of them at the same time.
  template <class Work>
  [[nodiscard]] double on_all_ranks(const Work& work) {
    std::vector<double> seconds(ranks_.size());
    ranks_.device_threads().run(
        [&](std::size_t rank) { seconds[rank] = work(*benches_[rank], rank); });
    return median(seconds);
  }

  /// Looks up and adds up the tokens of every pack, so that a first stage's F and B can be told
  /// from its layers.
  void embedding() {
    for (const cpu::ProfilePlan& profile : plans_) {
      cpu::detail::list_embeddings(profile.plan, embedding_);
    }
    for (auto& entry : embedding_) {
      const Pass pass = entry.first.first;
      const Tokens tokens = entry.first.second;
      entry.second = on_all_ranks(
          [&](Bench& bench, std::size_t) { return embedding_seconds(bench, pass, tokens.value); });
      ProfileRow row;
      row.kind = ProfileKind::embedding;
      row.pass = pass;
      row.tokens = tokens;
      row.seconds = std::max(entry.second, 1e-9);
      profile_.rows.push_back(row);
    }
  }

  [[nodiscard]] double embedding_seconds(Bench& bench, Pass pass, std::int64_t rows) const {
    const cuda::StreamView stream = bench.compute.view();
    std::vector<std::int32_t> tokens;
    Random random(2);
    for (std::int64_t i = 0; i < rows; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.between(0, model_.vocab - 1)));
    }
    const auto on_device = [&](const std::vector<std::int32_t>& values) {
      cuda::DeviceBuffer<std::int32_t> buffer(static_cast<std::int64_t>(values.size()));
      cuda::upload(buffer.span(), std::span<const std::int32_t>(values), stream);
      stream.synchronize();  // the values are the caller's
      return buffer;
    };
    const cuda::DeviceBuffer<cuda::Bf16> matrix(rows * model_.hidden);
    cuda::fill_zeros(matrix.span(), stream);
    if (pass == Pass::forward) {
      const cuda::DeviceBuffer<cuda::Bf16> table(model_.vocab * model_.hidden);
      const auto drawn = on_device(tokens);
      return bench.timed([&] {
        cuda::embedding_forward(matrix.span(), table.span(), drawn.span(), model_.vocab,
                                model_.hidden, stream);
      });
    }
    const cuda::TokenRows order = cuda::token_rows(tokens, model_.vocab);
    const auto distinct = on_device(order.tokens), begin = on_device(order.begin),
               places = on_device(order.rows);
    const cuda::DeviceBuffer<float> gradient(model_.vocab * model_.hidden);
    cuda::fill_zeros(gradient.span(), stream);
    return bench.timed([&] {
      cuda::embedding_backward(gradient.span(), matrix.span(),
                               {distinct.span(), begin.span(), places.span()}, model_.vocab,
                               model_.hidden, stream);
    });
  }

  void traffic() {
    const auto ranks = static_cast<std::int64_t>(ranks_.size());
    for (const std::int64_t bytes : {65'536, 262'144, 1'048'576, 4'194'304, 16'777'216}) {
      traffic_row(ProfileKind::p2p, Bytes{bytes}, ping_pong(bytes));
      traffic_row(ProfileKind::reduce, Bytes{bytes * (ranks - 1) / ranks},
                  together(bytes, [](auto& link, const runtime::ProcessGroup& process_group,
                                     auto values, auto, std::int64_t tag) {
                    link.queue_scatter(
                        process_group, tag, values,
                        runtime::ShardLayout{values.size(), process_group.members.size()});
                    link.await_sum(process_group, tag);
                  }));
      traffic_row(ProfileKind::exchange, Bytes{bytes * (ranks - 1)},
                  together(bytes, [](auto& link, const runtime::ProcessGroup& process_group,
                                     auto values, auto others, std::int64_t) {
                    for (std::size_t step = 1; step < process_group.members.size(); ++step) {
                      link.ring(process_group, step - 1, std::as_bytes(values),
                                std::as_writable_bytes(others));
                    }
                  }));
      // Where layers are split, larger ones are measured in units.
      if (tensor_parallel_ == 1 || Bytes{bytes} <= kSmallTensor) tensor(bytes);
    }
  }

  /// A collective between tensor-parallel devices as layers have it: whole rows are gathered and
  /// put in another order, or put in another order and summed. Half of what both take.
  void tensor(std::int64_t bytes) {
    const auto ranks = static_cast<std::int64_t>(ranks_.size());
    const std::int64_t h = model_.hidden, row = h * static_cast<std::int64_t>(sizeof(cuda::Bf16));
    const std::int64_t part = std::max<std::int64_t>(bytes / row / ranks, 1), rows = part * ranks;
    cuda::StreamRendezvous rendezvous(ranks_.size(), 1);
    const double both = on_all_ranks([&](Bench& bench, std::size_t rank) {
      const cuda::StreamView stream = bench.compute.view();
      cuda::StreamTransport link(rendezvous, rank, cuda::StreamMover(bench.streams));
      const runtime::ProcessGroup process_group = profile_process_group(ranks_.size(), rank);
      const cuda::DeviceBuffer<cuda::Bf16> by_device(rows * h), by_token(rows * h);
      cuda::fill_zeros(by_device.span(), stream);
      std::vector<std::int32_t> places;  // neighbouring tokens are on different devices
      for (std::int64_t i = 0; i < rows; ++i) {
        places.push_back(static_cast<std::int32_t>(i % ranks * part + i / ranks));
      }
      const cuda::DeviceBuffer<std::int32_t> table(rows);
      cuda::upload(table.span(), std::span<const std::int32_t>(places), stream);
      stream.synchronize();
      const std::span<cuda::Bf16> all(by_device.span().data, static_cast<std::size_t>(rows * h));
      const auto own = static_cast<std::size_t>(part * h);
      const double seconds = bench.timed([&] {
        link.all_gather(process_group, all, rank * own, (rank + 1) * own);
        cuda::gather_rows(by_token.span(), by_device.span(), table.span(), {rows, h}, stream);
        cuda::scatter_rows(by_device.span(), by_token.span(), table.span(), {rows, h}, stream);
        link.reduce_scatter(process_group, all, rank * own, (rank + 1) * own);
      });
      rendezvous.leave(rank);
      return seconds;
    });
    traffic_row(ProfileKind::tensor, Bytes{part * (ranks - 1) * row}, both / 2);
  }

  void traffic_row(ProfileKind kind, Bytes bytes, double seconds) {
    ProfileRow row;
    row.kind = kind;
    row.ranks = static_cast<std::int64_t>(ranks_.size());
    row.bytes = bytes;
    row.seconds = std::max(seconds, 1e-9);
    profile_.rows.push_back(row);
  }

  /// Half the time there and back between ranks 2i and 2i + 1, all pairs at once.
  [[nodiscard]] double ping_pong(std::int64_t bytes) {
    cuda::StreamRendezvous rendezvous(ranks_.size(), 1);
    const std::size_t paired = ranks_.size() / 2 * 2;
    std::vector<double> seconds(ranks_.size());
    ranks_.device_threads().run([&](std::size_t rank) {
      if (rank < paired) {
        Bench& bench = *benches_[rank];
        cuda::StreamTransport link(rendezvous, rank, cuda::StreamMover(bench.streams));
        const cuda::DeviceBuffer<std::byte> memory(2 * bytes);
        seconds[rank] = cpu::detail::there_and_back(
            link, rank, std::span(memory.span().data, static_cast<std::size_t>(2 * bytes)),
            [&](const auto& call) { return bench.timed(call); });
      }
      rendezvous.leave(rank);
    });
    seconds.resize(paired);
    return median(seconds) / 2;
  }

  template <class Call>
  [[nodiscard]] double together(std::int64_t bytes, const Call& call) {
    cuda::StreamRendezvous rendezvous(ranks_.size(), 1);
    return on_all_ranks([&](Bench& bench, std::size_t rank) {
      cuda::StreamTransport link(rendezvous, rank, cuda::StreamMover(bench.streams));
      const runtime::ProcessGroup process_group = profile_process_group(ranks_.size(), rank);
      const auto count = bytes / static_cast<std::int64_t>(sizeof(float));
      const cuda::DeviceBuffer<float> memory(2 * count);
      cuda::fill_zeros(memory.span(), bench.compute.view());
      const std::span<float> all(memory.span().data, static_cast<std::size_t>(2 * count));
      std::int64_t tag = 0;
      const double seconds = bench.timed([&] {
        call(link, process_group, all.first(all.size() / 2), all.subspan(all.size() / 2), tag++);
      });
      rendezvous.leave(rank);
      return seconds;
    });
  }

  ModelShape model_;
  CudaThreadRanks& ranks_;
  std::size_t tensor_parallel_;
  std::function<void(std::int64_t, std::size_t)> before_each_;
  std::vector<cpu::ProfilePlan> plans_;
  std::vector<std::unique_ptr<Bench>> benches_;
  cpu::detail::EmbeddingTimes embedding_;
  double alone_ = 0, loaded_ = 0;
  CudaProfile profile_;
};

}  // namespace

CudaProfile measure_cuda_profile(const ModelShape& model, Tokens context, CudaThreadRanks& ranks,
                                 std::size_t tensor_parallel,
                                 std::function<void(std::int64_t, std::size_t)> before_each) {
  return ProfileOnCuda(model, context, ranks, tensor_parallel, std::move(before_each)).measured();
}

int profile_on_cuda(const Options& options, CudaThreadRanks& ranks) {
  const ModelShape model = model_of(options, CudaDevice::element_sizes().element);
  check_writable(options.profile);
  const CudaProfile profile = measure_cuda_profile(
      model, options.context, ranks, static_cast<std::size_t>(options.tp), profile_turns(options));
  std::ostringstream text;
  write_profile(text, {{measured_shape(model), ranks.device()}, profile.rows});
  write_file(options.profile, std::move(text).str());
  fmt::print("{}: {} measurements on {} ranks", options.profile, profile.rows.size(), ranks.size());
  if (ranks.size() > 1) {
    fmt::print(", {:.2f} times as long as on one rank alone", profile.loaded_over_alone);
  }
  fmt::print("; next: slimpack calibrate {} -o cost.json\n", options.profile);
  return 0;
}

}  // namespace slimpack::trainer
