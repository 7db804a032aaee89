// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/transport.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/runtime/thread_transport.hpp"

using namespace slimpack;

TEST_CASE(
    "ShardLayout: pieces follow each other and are parted among members, all but the last evenly") {
  for (std::size_t members = 1; members <= 7; ++members) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{100}, std::size_t{1000}}) {
      for (const std::size_t size : {0U, 1U, 8U, 55U, 56U, 57U, 999U, 4000U}) {
        CAPTURE(members);
        CAPTURE(most);
        CAPTURE(size);
        std::size_t i = 0;
        const auto pieces = runtime::ShardLayout{size, members, most}.pieces();
        for (const runtime::ShardPiece& piece : pieces) {
          CHECK(piece.begin == i);
          CHECK(piece.end - piece.begin <= std::max(most, members * runtime::ShardLayout::kWhole));
          CHECK(piece.part % runtime::ShardLayout::kWhole == 0);
          if (&piece != &pieces.back()) CHECK(piece.even(members));
          for (std::size_t member = 0; member < members; ++member) {
            const auto [first, last] = piece.of(member);
            CHECK(first == i);
            CHECK(last - first <= piece.part);
            i = last;
          }
          CHECK(i == piece.end);
        }
        CHECK(i == size);
      }
    }
  }
  CHECK(runtime::ShardLayout{std::size_t{1} << 30U, 8}.pieces().size() == 128);
}

TEST_CASE("ThreadTransport: scattered sums give members their parts, and gathering all of them") {
  for (std::size_t members = 1; members <= 4; ++members) {
    CAPTURE(members);
    const runtime::ShardLayout shard_layout{333, members, 100};
    std::vector<std::vector<float>> values(members), scattered(members);
    for (std::size_t member = 0; member < members; ++member) {
      Random random(member);
      for (std::size_t i = 0; i < shard_layout.size; ++i) {
        values[member].push_back(static_cast<float>(random.unit()));
      }
    }
    std::vector<float> sum = values[0];
    for (std::size_t member = 1; member < members; ++member) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[member][i];
    }
    runtime::Rendezvous rendezvous(members, 1);
    {
      std::vector<std::jthread> threads;
      for (std::size_t member = 0; member < members; ++member) {
        threads.emplace_back([&, member] {
          runtime::ThreadTransport link(rendezvous, member);
          runtime::ProcessGroup all{{}, member};
          for (std::size_t other = 0; other < members; ++other) all.members.push_back(other);
          link.queue_scatter(all, 5, std::span(values[member]), shard_layout);
          link.await_sum(all, 5);
          scattered[member] = values[member];
          link.gather_parts(all, std::span(values[member]), shard_layout);
          rendezvous.leave(member);
        });
      }
    }
    CHECK(rendezvous.leftover().empty());
    for (std::size_t member = 0; member < members; ++member) {
      CHECK(values[member] == sum);
      for (const runtime::ShardPiece& piece : shard_layout.pieces()) {
        const auto [first, last] = piece.of(member);
        for (std::size_t i = first; i < last; ++i) CHECK(scattered[member][i] == sum[i]);
      }
    }
  }
}

TEST_CASE("ThreadTransport: deals of other elements or members are refused") {
  runtime::Rendezvous rendezvous(2, 1);
  runtime::ThreadTransport link(rendezvous, 0);
  std::vector<float> values(16);
  const runtime::ProcessGroup both{{0, 1}, 0};
  CHECK_THROWS_WITH_AS(
      link.queue_scatter(both, 1, std::span(values), runtime::ShardLayout{15, 2, 100}),
      "transport: a shard layout must be of the elements for the members, got 15", InvalidInput);
  CHECK_THROWS_AS(link.gather_parts(both, std::span(values), runtime::ShardLayout{16, 3, 100}),
                  InvalidInput);
}
