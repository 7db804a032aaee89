// SPDX-License-Identifier: Apache-2.0
// Collectives of tensor-parallel devices beside products: what runs when, and that nothing is used
// before it is there or again too early.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"

namespace overlap_test {

using namespace slimpack;
using cuda::Bf16;
using cuda::DeviceBuffer;
using cuda::DeviceSpan;
using cuda::EmulatedTiming;

namespace {

constexpr std::size_t kRanks = 2;
constexpr std::int64_t kHidden = 8;

enum class Missing { nothing, end };

/// What devices of a test share, and have seen.
struct Shared {
  std::vector<std::unique_ptr<cuda::RankStreams>> streams{kRanks};
  /// By rank: the first number that what was queued last on the compute stream makes.
  std::vector<const Bf16*> product{kRanks};
  std::vector<int> beside = std::vector<int>(kRanks);  ///< ended while it had not run
};

[[nodiscard]] bool is_written(const Bf16& value) {
  const float number = cuda::to_float(value);
  return number == number;
}

/// A transport that lets all lanes run up to where a collective ends, and looks whether what the
/// compute stream was given since it began has run for it.
template <Missing kMissing>
class WatchedLink : public cuda::StreamTransport {
 public:
  WatchedLink(cuda::StreamTransport link, Shared& shared, std::size_t rank)
      : cuda::StreamTransport(std::move(link)), shared_(&shared), rank_(rank) {}
  void end_collective() {
    if constexpr (kMissing == Missing::end) return;
    for (const auto& streams : shared_->streams) {
      streams->lane(runtime::Lane::collectives).synchronize();
    }
    const Bf16* product = shared_->product[rank_];
    if (product != nullptr && !is_written(*product)) ++shared_->beside[rank_];
    cuda::StreamTransport::end_collective();
  }

 private:
  Shared* shared_;
  std::size_t rank_;
};

/// Rows of a unit that two devices own by turns, in groups of at most so many of each.
struct Rows {
  explicit Rows(std::int64_t rows, std::int64_t most) {
    for (std::int64_t row = 0; row < rows; ++row) {
      owners.push_back(static_cast<std::int32_t>(row % static_cast<std::int64_t>(kRanks)));
    }
    for (std::int64_t rank = 0; rank < static_cast<std::int64_t>(kRanks); ++rank) {
      groups.push_back(cuda::row_groups(owners, {rank, kRanks}, most));
    }
  }
  std::vector<std::int32_t> owners;
  std::vector<cuda::RowGroups> groups;
};

Bf16 value(std::int64_t row, std::size_t rank = 0) {
  return cuda::to_bf16(static_cast<float>(row + 1) + (rank == 0 ? 0.0F : 100.0F));
}

/// What a device does with its stream, on a thread of its own.
template <Missing kMissing, class Work>
std::vector<int> on_devices(const Rows& rows, const Work& work) {
  Shared shared;
  runtime::DeviceThreads device_threads(kRanks);
  cuda::StreamRendezvous rendezvous(kRanks, 1);
  std::vector<std::unique_ptr<cuda::Stream>> compute(kRanks);
  device_threads.run([&](std::size_t rank) {
    compute[rank] = std::make_unique<cuda::Stream>();
    shared.streams[rank] = std::make_unique<cuda::RankStreams>(compute[rank]->view());
  });
  device_threads.run([&](std::size_t rank) {
    const cuda::StreamView stream = compute[rank]->view();
    WatchedLink<kMissing> link(
        cuda::StreamTransport(rendezvous, rank, cuda::StreamMover(*shared.streams[rank])), shared,
        rank);
    const cuda::RowGroups& groups = rows.groups[rank];
    const DeviceBuffer<std::int32_t> places(static_cast<std::int64_t>(groups.places.size()));
    cuda::upload(places.span(), std::span<const std::int32_t>(groups.places), stream);
    const DeviceBuffer<Bf16> by_device(groups.most_padded() * kHidden);
    const DeviceBuffer<Bf16> by_token(groups.most_rows() * kHidden);
    const runtime::ProcessGroup process_group{{0, 1}, rank};
    cuda::TensorUnit<WatchedLink<kMissing>> tensor(process_group, groups,
                                                   {by_device.span(), by_token.span()},
                                                   places.span(), kHidden, link, stream);
    work(rank, tensor, stream, shared);
    stream.synchronize();
    rendezvous.leave(rank);
  });
  return shared.beside;
}

/// What a device has of rows in its memory.
DeviceBuffer<Bf16> uploaded(const std::vector<Bf16>& values, cuda::StreamView stream) {
  DeviceBuffer<Bf16> memory(static_cast<std::int64_t>(values.size()));
  cuda::upload(memory.span(), std::span<const Bf16>(values), stream);
  stream.synchronize();
  return memory;
}

/// Gathers all rows, group by group; whether each device has got them, and what was seen.
template <Missing kMissing = Missing::nothing>
std::pair<bool, std::vector<int>> gather(const Rows& rows) {
  std::vector<int> right(kRanks);
  const auto beside = on_devices<kMissing>(
      rows, [&](std::size_t rank, auto& tensor, cuda::StreamView stream, Shared& shared) {
        const std::vector<cuda::RowGroup>& groups = rows.groups[rank].groups;
        std::vector<Bf16> mine, all;
        for (std::size_t row = 0; row < rows.owners.size(); ++row) {
          all.insert(all.end(), kHidden, value(static_cast<std::int64_t>(row)));
          if (rows.owners[row] == static_cast<std::int32_t>(rank)) {
            mine.insert(mine.end(), kHidden, all.back());
          }
        }
        const DeviceBuffer<Bf16> own = uploaded(mine, stream);
        const DeviceBuffer<Bf16> made(static_cast<std::int64_t>(all.size()));
        tensor.gather_each(
            groups.size(), [&](std::size_t g) -> const cuda::RowGroup& { return groups[g]; },
            [&](std::size_t g, DeviceSpan<Bf16> place) {
              cuda::copy(place, rows_at(own.span(), groups[g].first_own, groups[g].own, kHidden),
                         stream);
            },
            [&](std::size_t g, DeviceSpan<const Bf16> whole) {
              const auto into = rows_at(made.span(), groups[g].first, groups[g].rows, kHidden);
              cuda::copy(into, whole, stream);
              shared.product[rank] = into.data;
            });
        right[rank] = cuda::download(made.span(), stream) == all ? 1 : 0;
      });
  return {right == std::vector<int>(kRanks, 1), beside};
}

/// The same of sums; what a device brings is 100 apart.
template <Missing kMissing = Missing::nothing>
std::pair<bool, std::vector<int>> sum(const Rows& rows) {
  std::vector<int> right(kRanks);
  const auto beside = on_devices<kMissing>(
      rows, [&](std::size_t rank, auto& tensor, cuda::StreamView stream, Shared& shared) {
        const std::vector<cuda::RowGroup>& groups = rows.groups[rank].groups;
        std::vector<Bf16> parts, sums;
        for (std::size_t row = 0; row < rows.owners.size(); ++row) {
          const auto number = static_cast<std::int64_t>(row);
          parts.insert(parts.end(), kHidden, value(number, rank));
          if (rows.owners[row] != static_cast<std::int32_t>(rank)) continue;
          sums.insert(
              sums.end(), kHidden,
              cuda::to_bf16(cuda::to_float(value(number, 0)) + cuda::to_float(value(number, 1))));
        }
        const DeviceBuffer<Bf16> part = uploaded(parts, stream);
        const DeviceBuffer<Bf16> made(static_cast<std::int64_t>(sums.size()));
        const DeviceBuffer<Bf16> products(static_cast<std::int64_t>(parts.size()));
        tensor.sum_each(
            groups.size(), [&](std::size_t g) -> const cuda::RowGroup& { return groups[g]; },
            [&](std::size_t g, DeviceSpan<Bf16> place) {
              const auto from = rows_at(part.span(), groups[g].first, groups[g].rows, kHidden);
              const auto into = rows_at(products.span(), groups[g].first, groups[g].rows, kHidden);
              cuda::copy(place, from, stream);
              cuda::copy(into, from, stream);
              shared.product[rank] = into.data;
            },
            [&](std::size_t g, DeviceSpan<const Bf16> sums_of_own) {
              cuda::copy(rows_at(made.span(), groups[g].first_own, groups[g].own, kHidden),
                         sums_of_own, stream);
            });
        right[rank] = cuda::download(made.span(), stream) == sums ? 1 : 0;
      });
  return {right == std::vector<int>(kRanks, 1), beside};
}

/// A transport that notes the kinds of its tensor-parallel collectives.
class NotingLink : public cuda::StreamTransport {
 public:
  NotingLink(cuda::StreamTransport link, std::string& kinds)
      : cuda::StreamTransport(std::move(link)), kinds_(&kinds) {}
  template <class Element>
  void begin_all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                        std::size_t first, std::size_t last) {
    *kinds_ += 'g';
    cuda::StreamTransport::begin_all_gather(process_group, values, first, last);
  }
  template <class Element>
  void begin_reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                            std::size_t first, std::size_t last) {
    *kinds_ += 's';
    cuda::StreamTransport::begin_reduce_scatter(process_group, values, first, last);
  }

 private:
  std::string* kinds_;
};

cuda::RankOptions in_pieces_of(std::int64_t rows) {
  cuda::RankOptions options = test::plain_path();
  options.smallest_piece = rows;
  return options;
}

/// A text so many times.
std::string times(std::size_t count, const std::string& text) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("TensorUnit: the rows of a group travel while products of another have not run") {
  const cuda::ScopedEmulation mode({.timing = EmulatedTiming::late});
  for (const std::int64_t rows : {1, 5, 8, 24, 37}) {
    CAPTURE(rows);
    const Rows unit(rows, 4);
    const auto groups = static_cast<int>(unit.groups.front().groups.size());
    // The first gather has no product to run beside, nor the last sum.
    const auto gathered = gather(unit), summed = sum(unit);
    CHECK(gathered.first);
    CHECK(gathered.second == std::vector<int>(kRanks, groups - 1));
    CHECK(summed.first);
    CHECK(summed.second == std::vector<int>(kRanks, groups - 1));
  }
}

TEST_CASE("TensorUnit: rows are right whenever streams run") {
  for (const EmulatedTiming timing : {EmulatedTiming::at_once, EmulatedTiming::late}) {
    const cuda::ScopedEmulation mode({.timing = timing});
    for (std::int64_t rows = 1; rows < 30; rows += 4) {
      for (const std::int64_t most : {1, 3, 16}) {
        CHECK(gather(Rows(rows, most)).first);
        CHECK(sum(Rows(rows, most)).first);
      }
    }
  }
}

TEST_CASE("TensorUnit: rows that are used before they have come are wrong where work runs late") {
  const cuda::ScopedEmulation mode({.timing = EmulatedTiming::late});
  CHECK_FALSE(gather<Missing::end>(Rows(24, 4)).first);
  CHECK_FALSE(sum<Missing::end>(Rows(24, 4)).first);
}

TEST_CASE("most_of_piece: four pieces, none of few rows, and no more than there is room for") {
  CHECK(cuda::most_of_piece(4096, Tokens{4096}, 2, 1024) == 1024);
  CHECK(cuda::most_of_piece(8192, Tokens{4096}, 2, 1024) == 2048);
  CHECK(cuda::most_of_piece(9000, Tokens{4096}, 2, 1024) == 2048);
  CHECK(cuda::most_of_piece(1000, Tokens{4096}, 2, 1024) == 512);
  CHECK(cuda::most_of_piece(1000, Tokens{4096}, 8, 1024) == 250);
  CHECK(cuda::most_of_piece(100, Tokens{4096}, 8, 1024) == 128);
  CHECK(cuda::most_of_piece(0, Tokens{4096}, 2, 1) == 1);
}

TEST_CASE("ranks: every collective of a layer passes all groups before the next one begins") {
  test::RandomPlanOptions options = test::tensor_parallel_plans(2);
  options.dp = options.pp = 1;
  options.chunks = 1;
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    options.weights = apart;
    Plan plan = test::rank_plan(790, options);
    plan.memory.head_tile = Tokens{1000};
    const std::int64_t smallest = 4;
    test::RankDevices devices = test::rank_devices(plan, 1, {}, in_pieces_of(smallest));
    std::vector<std::string> kinds(devices.size());
    std::vector<std::unique_ptr<cuda::RankStreams>> streams;
    for (cuda::RankDevice& device : devices) {
      streams.push_back(std::make_unique<cuda::RankStreams>(device.stream()));
    }
    runtime::DeviceThreads device_threads(devices.size());
    const runtime::Program program = runtime::make_program(plan);
    (void)runtime::run_step_with<NotingLink>(
        device_threads, plan, program, test::random_data(plan, 1), std::span(devices),
        [&](cuda::StreamRendezvous& rendezvous, std::size_t device) {
          return NotingLink(
              cuda::StreamTransport(rendezvous, device, cuda::StreamMover(*streams[device])),
              kinds[device]);
        });
    std::string expected;
    for (const Unit& unit : plan.schedule.front().order) {
      if (unit.kind == UnitKind::head) expected += "s";  // what it gathers comes at once
      const bool forward = unit.kind == UnitKind::forward, weight = unit.kind == UnitKind::weight;
      if (!forward && !weight && unit.kind != UnitKind::backward) continue;
      const MicroPack& pack = plan.micropacks[index(unit.pack)];
      std::vector<std::int32_t> owners;
      for (const Slice& slice : pack.slices) {
        for (std::int64_t x = slice.begin.value; x < slice.end.value; ++x) {
          owners.push_back(
              static_cast<std::int32_t>(TensorRows{0, 2}.owner(slice.sample, Tokens{x})));
        }
      }
      const bool with = pack.pass == Pass::backward && pack.weights == WeightGradients::with;
      const std::int64_t most = with || weight ? 1000
                                               : cuda::most_of_piece(cuda::largest_share(owners, 2),
                                                                     Tokens{1000}, 2, smallest);
      const std::size_t n = cuda::row_groups(owners, {0, 2}, most).groups.size();
      const std::string g = times(n, "g"), s = times(n, "s");
      const auto layers = static_cast<std::size_t>(plan.model.layers);
      if (forward) expected += s + times(layers, g + s + g + s);
      if (weight) expected += times(layers * n, "gggg");
      if (forward || weight) continue;
      const bool again = pack.recompute == Recompute::layer || pack.recompute == Recompute::full;
      expected += times(layers, (again ? g + s + g : std::string()) + g + (with ? g : "") + s + g +
                                    (with ? g : "") + s) +
                  g;
    }
    CHECK(expected.find("ssgg") != std::string::npos);  // there are several groups
    CHECK(kinds[0] == expected);
    CHECK(kinds[1] == kinds[0]);
  }
}

TEST_CASE("ranks: pieces of products change no bit where gradients of weights are not apart") {
  for (std::uint64_t seed = 800; seed < 806; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4);
    options.weights = false;
    const Plan plan = test::rank_plan(seed, options);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices whole = test::rank_devices(plan, seed);
    const double loss = test::run_ranks(plan, data, std::span(whole)).loss;
    for (const EmulatedTiming timing : {EmulatedTiming::at_once, EmulatedTiming::late}) {
      const cuda::ScopedEmulation mode({.timing = timing});
      test::RankDevices pieces = test::rank_devices(plan, seed, {}, in_pieces_of(3));
      CHECK(test::run_ranks(plan, data, std::span(pieces)).loss == loss);
      CHECK(test::state_of(pieces) == test::state_of(whole));
    }
  }
}

TEST_CASE("ranks: pieces of products where gradients of weights are apart, beside the oracle") {
  for (std::uint64_t seed = 810; seed < 816; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::tensor_parallel_plans(seed % 2 == 0 ? 2 : 4);
    options.weights = true;
    const Plan plan = test::rank_plan(seed, options);
    const test::RankCheck found = test::check_ranks(plan, seed, {}, in_pieces_of(3));
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
  }
}

}  // namespace overlap_test
