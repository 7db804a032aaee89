// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/hopper_probe.cuh"
#include "simt/hopper.hpp"

namespace hopper_test {

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

std::vector<Bf16> small_integers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Bf16> values(count);
  for (Bf16& value : values) value = to_bf16(static_cast<float>(random() % 17) - 8.0F);
  return values;
}

}  // namespace

TEST_CASE("Hopper: boxes and products against plain loops") {
  constexpr unsigned kListed = 101;  // rows of b; TMA fills the others with zeros
  const auto a = small_integers(64 * 64, 1), b = small_integers(kListed * 64, 2),
             v = small_integers(64 * 128, 3);
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    std::vector<Bf16> box(64 * 64);
    std::vector<float> keys(64 * 128, NAN), values(64 * 128, NAN);
    emulate({1, 128, kernels::kHopperProbeShared}, timing, [&] {
      kernels::hopper_probe(box.data(), keys.data(), values.data(), {a.data(), 64, 64},
                            {b.data(), kListed, 64}, {v.data(), 64, 128}, a.data());
    });
    for (unsigned row = 0; row < 64; ++row) {
      for (unsigned col = 0; col < 64; ++col) {
        const unsigned chunk = col / 8 ^ row % 8;
        CHECK(box[row * 64 + chunk * 8 + col % 8] == a[row * 64 + col]);
      }
      for (unsigned col = 0; col < 128; ++col) {
        float by_key = 0, by_value = 0;
        for (unsigned k = 0; k < 64; ++k) {
          const float left = to_float(a[row * 64 + k]);
          by_key += col < kListed ? left * to_float(b[col * 64 + k]) : 0.0F;
          by_value += left * to_float(v[k * 128 + col]);
        }
        CHECK(keys[row * 128 + col] == by_key);
        CHECK(values[row * 128 + col] == by_value);
      }
    }
  }
}

TEST_CASE("Hopper: sums that nobody waited for are NaN, and what they read must stay") {
  const auto part = [](bool wait, bool spoil) {
    return [wait, spoil] {
      std::memset(shared_memory(), 0, 16384);
      sync_block();
      std::array<float, 32> d{};
      std::array<std::uint32_t, 4> a{};
      product_fence();
      multiply_registers<64>(d, a, matrix_descriptor(0, 0), true);
      product_commit();
      if (spoil) a[1] = 7;
      if (wait) product_wait<0>();
      CHECK(std::isnan(d[5]) != wait);
      product_wait<0>();
    };
  };
  CHECK(failure({1, 128, 16384}, Timing::late, part(true, false)).empty());
  CHECK(failure({1, 128, 16384}, Timing::late, part(false, false)).empty());
  CHECK(failure({1, 128, 16384}, Timing::late, part(false, true)).find("registers were written") !=
        std::string::npos);
  CHECK(failure({1, 128, 16384}, Timing::late, [] {
          std::array<float, 32> d{};
          multiply_shared<64>(d, matrix_descriptor(0, 0), matrix_descriptor(0, 0), true);
        }).find("without a fence") != std::string::npos);
}

TEST_CASE("Hopper: what threads write is read by products and TMA behind a fence and a barrier") {
  const std::vector<Bf16> source(64 * 64, to_bf16(1.0F));
  const auto kernel = [&source](bool fence, bool barrier, bool copies) {
    return [&source, fence, barrier, copies] {
      const std::uint32_t mbarrier = 16384;
      if (thread_index() == 0) barrier_init(mbarrier, 1);
      for (std::uint32_t at = 16 * thread_index(); at < 16384; at += 16 * 128) {
        store_shared(at, std::array<std::uint32_t, 4>{});
      }
      if (fence) async_proxy_fence();
      if (barrier) sync_block();
      if (copies) {
        if (thread_index() != 0) return;
        barrier_expect(mbarrier, kBoxBytes);
        load_tile(0, {source.data(), 64, 64}, mbarrier, 0, 0);
        barrier_arrive(mbarrier);
        return barrier_wait(mbarrier, 0);
      }
      std::array<float, 32> d{};
      product_fence();
      multiply_shared<64>(d, matrix_descriptor(0, 0), matrix_descriptor(8192, 0), true);
      product_commit();
      product_wait<0>();
    };
  };
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    for (const bool copies : {false, true}) {
      const auto said = [&](bool fence, bool barrier) {
        return failure({1, 128, 16400}, timing, kernel(fence, barrier, copies));
      };
      CHECK(said(true, true).empty());
      CHECK(said(false, true).find("without a fence since") != std::string::npos);
      CHECK(said(true, false).find("without a barrier since") != std::string::npos);
    }
  }
}

TEST_CASE("Hopper: a barrier's phase ends with the last arrival and the last byte") {
  const auto source = small_integers(64 * 64, 4);
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    emulate({1, 64, 16384}, timing, [&] {
      const std::uint32_t barrier = 8192;
      if (thread_index() == 0) {
        barrier_init(barrier, 2);
        barrier_init_fence();
      }
      sync_block();
      const auto* first = reinterpret_cast<const Bf16*>(shared_memory());
      for (std::uint32_t phase = 0; phase < 3; ++phase) {
        if (thread_index() == 0) {
          barrier_expect(barrier, kBoxBytes);
          load_tile(0, {source.data(), 64, 64}, barrier, 0, static_cast<int>(phase));
          CHECK((first[0] == source[phase * 64]) == (timing == Timing::at_once));
          barrier_arrive(barrier);
        } else if (thread_index() == 40) {
          barrier_arrive(barrier);
        }
        barrier_wait(barrier, phase % 2);
        CHECK(first[0] == source[phase * 64]);
        sync_block();
      }
    });
  }
  CHECK(failure({1, 32, 64}, Timing::late, [] {
          if (thread_index() == 0) barrier_init(0, 33);
          sync_block();
          barrier_arrive(0);
          barrier_wait(0, 0);
        }).find("stands still: thread 0 in barrier_wait") != std::string::npos);
}

}  // namespace hopper_test
