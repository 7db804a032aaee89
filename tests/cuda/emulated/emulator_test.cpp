// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "simt/simt.hpp"

namespace emulator_test {

using namespace slimpack::cuda;
using namespace slimpack::cuda::simt;

namespace {
std::string failure(Grid grid, Timing timing, const std::function<void()>& kernel) {
  try {
    emulate(grid, timing, kernel);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("emulate: every thread of every block runs") {
  std::vector<int> seen(3 * 64);
  emulate({3, 64, 0}, Timing::late, [&] { ++seen[block_index() * 64 + thread_index()]; });
  CHECK(seen == std::vector<int>(3 * 64, 1));
}

TEST_CASE("emulate: a barrier holds until all have come") {
  std::array<int, 96> order{};
  int next = 0;
  emulate({1, 96, 0}, Timing::late, [&] {
    order[thread_index()] = next++;
    sync_block();
    CHECK(next >= 96);
  });
}

TEST_CASE("emulate: shuffles pass values between lanes") {
  emulate({1, 64, 0}, Timing::late, [] {
    const unsigned lane = lane_index();
    CHECK(shuffle_xor(lane, 3) == (lane ^ 3U));
    CHECK(shuffle(thread_index(), 5) == thread_index() / 32 * 32 + 5);
  });
}

TEST_CASE("emulate: threads that wait for ever are reported") {
  CHECK(failure({1, 64, 0}, Timing::late, [] {
          if (thread_index() < 32) sync_block();
        }).find("stands still: thread 0 in sync_block") != std::string::npos);
  CHECK(failure({1, 32, 0}, Timing::late, [] {
          if (thread_index() == 0) {
            sync_warp();
          } else {
            (void)shuffle(1, 0);
          }
        }).find("threads meet in") != std::string::npos);
}

TEST_CASE("emulate: an asynchronous copy that nobody waits for has not happened") {
  alignas(16) const std::array<std::uint32_t, 4> source{1, 2, 3, 4};
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    emulate({1, 32, 64}, timing, [&] {
      if (thread_index() > 0) return;
      const auto* shared = reinterpret_cast<const std::uint32_t*>(shared_memory());
      copy_async_16(16, source.data(), true);
      copy_async_commit();
      CHECK((shared[4] == 1) == (timing == Timing::at_once));
      copy_async_wait<0>();
      CHECK(shared[4] == 1);
      CHECK(shared[7] == 4);
    });
  }
}

TEST_CASE("emulate: an access past shared memory is reported") {
  alignas(16) const std::array<std::uint32_t, 4> source{};
  CHECK(failure({1, 32, 64}, Timing::late, [&] {
          copy_async_16(64, source.data(), true);
        }).find("leaves shared memory") != std::string::npos);
}

TEST_CASE("multiply_16x8x16: a product of matrices, fragments as loaded") {
  // a by load_matrices and b by load_matrices_transposed from rows of shared memory.
  const auto a_at = [](unsigned row, unsigned col) {
    return to_bf16(float(row) - 0.5F * float(col));
  };
  const auto b_at = [](unsigned row, unsigned col) { return to_bf16(float(row * col % 7) - 2.0F); };
  emulate({1, 32, 1024}, Timing::late, [&] {
    const unsigned lane = lane_index();
    auto* a = reinterpret_cast<Bf16*>(shared_memory());
    Bf16* b = a + 16 * 16;
    for (unsigned i = lane; i < 256; i += 32) a[i] = a_at(i / 16, i % 16);
    for (unsigned i = lane; i < 128; i += 32) b[i] = b_at(i / 8, i % 8);
    sync_warp();
    std::array<std::uint32_t, 4> left{}, right{};
    load_matrices(left, shared_address(a + (lane % 16) * 16 + lane / 16 * 8));
    load_matrices_transposed(right, shared_address(b + (lane % 16) * 8));
    std::array<float, 4> d{};
    multiply_16x8x16(d, left, right[0], right[1]);
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned row = lane / 4 + 8 * (e / 2), col = 2 * (lane % 4) + e % 2;
      float expected = 0;
      for (unsigned k = 0; k < 16; ++k) expected += to_float(a_at(row, k)) * to_float(b_at(k, col));
      CHECK(d[e] == expected);
    }
  });
}

}  // namespace emulator_test
