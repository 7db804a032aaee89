// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/arena.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;
using namespace slimpack::cpu;

namespace {

std::int64_t rounded_up(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

TEST_CASE("arena: buffers are aligned, never overlap, and leave nothing behind") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    BufferArena arena(Bytes{200'000});
    std::vector<std::pair<Buffer, unsigned char>> held;
    std::int64_t sum = 0;
    for (int round = 0; round < 400; ++round) {
      if (held.empty() || random.chance(11, 20)) {
        const std::int64_t bytes = random.chance(1, 10) ? 0 : random.between(1, 5000);
        if (arena.held().value + rounded_up(bytes) > 100'000) continue;
        const auto mark = static_cast<unsigned char>(random.below(256));
        held.emplace_back(Buffer(arena, Bytes{bytes}), mark);
        const auto span = held.back().first.bytes();
        REQUIRE(span.size() == static_cast<std::size_t>(bytes));
        if (bytes > 0) {
          CHECK(reinterpret_cast<std::uintptr_t>(span.data()) % kBufferAlignment == 0);
          std::memset(span.data(), mark, span.size());
        }
        sum += rounded_up(bytes);
      } else {
        const auto i = static_cast<std::size_t>(random.below(held.size()));
        const auto span = held[i].first.bytes();
        CHECK(std::all_of(span.begin(), span.end(), [&](std::byte value) {
          return std::to_integer<unsigned char>(value) == held[i].second;
        }));
        sum -= rounded_up(static_cast<std::int64_t>(span.size()));
        std::swap(held[i], held.back());
        held.pop_back();
      }
      CHECK(arena.held() == Bytes{sum});
      CHECK(arena.held() <= arena.reached());
      CHECK(arena.reached() <= arena.capacity());
    }
    held.clear();
    CHECK(arena.held() == Bytes{});
    CHECK_NOTHROW(Buffer(arena, arena.capacity()));  // all gaps have become one
  }
}

TEST_CASE("arena: the smallest gap that holds a buffer is taken, the lowest of equals") {
  BufferArena arena(Bytes{64 * 20});
  std::vector<Buffer> all;
  for (int i = 0; i < 10; ++i) all.emplace_back(arena, Bytes{128});
  const std::byte* base = all[0].bytes().data();
  const auto place = [&](const Buffer& buffer) { return (buffer.bytes().data() - base) / 64; };
  const auto free = [&](std::size_t i) { Buffer(std::move(all[i])); };
  free(1);  // [2, 4)
  free(3);  // [6, 8)
  free(4);  // and [8, 10): one gap [6, 10)
  free(7);  // [14, 16)
  const Buffer two(arena, Bytes{100});
  CHECK(place(two) == 2);
  const Buffer next(arena, Bytes{65});
  CHECK(place(next) == 14);
  const Buffer last(arena, Bytes{64 * 4});
  CHECK(place(last) == 6);
}

TEST_CASE("arena: no room is told with what is needed and what there is") {
  BufferArena arena(Bytes{640});
  const Buffer first(arena, Bytes{64});
  auto second = std::make_unique<Buffer>(arena, Bytes{64});
  const Buffer third(arena, Bytes{64});
  second.reset();
  CHECK_THROWS_WITH_AS(Buffer(arena, Bytes{449}),
                       "the arena of 640 bytes has no room for 449: available are 512 bytes in 2 "
                       "gaps, the largest of 448",
                       runtime::ExecutionError);
  CHECK_NOTHROW(Buffer(arena, Bytes{448}));
  CHECK_THROWS_WITH_AS(BufferArena(Bytes{-1}), "BufferPlaces: capacity must be >= 0, got -1",
                       InvalidInput);
}

TEST_CASE("arena: a moved buffer is given back once; a copied owner has an arena of its own") {
  BufferArena arena(Bytes{256});
  {
    Buffer buffer(arena, Bytes{100});
    Buffer moved(std::move(buffer));
    Buffer heap(Bytes{10});
    heap = std::move(moved);
    CHECK(heap.bytes().size() == 100);
    CHECK(arena.held() == Bytes{128});
  }
  CHECK(arena.held() == Bytes{});
  ArenaOwner owner;
  CHECK(owner.get() == nullptr);
  owner.reserve(Bytes{100});
  const BufferArena* before = owner.get();
  owner.reserve(Bytes{90});
  CHECK(owner.get() == before);
  owner.reserve(Bytes{1000});
  CHECK(owner.get()->capacity() == Bytes{1024});
  owner.reserve(Bytes{1025});  // grows by a half at least
  CHECK(owner.get()->capacity() == Bytes{1536});
  const ArenaOwner copy(owner);
  CHECK(copy.get() != owner.get());
  CHECK(copy.get()->capacity() == Bytes{1536});
}

TEST_CASE("arena: touching its memory, more of it than there is too, leaves all places free") {
  BufferArena arena(Bytes{100'000});
  for (const std::int64_t bytes : {0, 1, 5000, 4000, 1'000'000}) arena.touch(Bytes{bytes});
  CHECK(arena.reached() == Bytes{});
  CHECK_NOTHROW(Buffer(arena, arena.capacity()));
}
