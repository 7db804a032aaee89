// SPDX-License-Identifier: Apache-2.0
// Instructions of hopper.hpp on the emulator. Products happen only when they are waited for, copies
// as Timing says.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "simt/simt.hpp"
#include "slimpack_cuda/bf16.hpp"

namespace slimpack::cuda::simt {

/// A matrix in device memory that TMA reads by boxes of 64 rows and 64 columns; zeros around it.
struct TileMap {
  const Bf16* base = nullptr;
  std::int64_t rows = 0, cols = 0;
};

namespace detail {

struct TransactionBarrier {
  unsigned expected = 0, pending = 0;
  std::int64_t bytes = 0;
  std::uint64_t phase = 0;

  void settle() {
    if (pending > 0 || bytes != 0) return;
    pending = expected;
    ++phase;
  }
};
using TransactionBarriers = std::map<std::uint32_t, TransactionBarrier>;

inline TransactionBarrier& transaction_barrier(std::uint32_t barrier) {
  auto& barriers = Emulator::now().of_block<TransactionBarriers>();
  const auto found = barriers.find(barrier);
  if (found == barriers.end()) Emulator::now().fail("a barrier is used that was not initialised");
  return found->second;
}
/// The scheduler sees that this thread changed something.
inline void note_progress() {
  Emulator::now().wait_until([] { return true; }, "");
}

}  // namespace detail

/// A barrier of 8 bytes in shared memory whose phase ends when `count` threads have arrived and all
/// expected bytes are there.
inline void barrier_init(std::uint32_t barrier, unsigned count) {
  (void)Emulator::now().shared(barrier, 8);
  if (barrier % 8 != 0) Emulator::now().fail("a barrier is not aligned to 8 bytes");
  Emulator::now().of_block<detail::TransactionBarriers>()[barrier] = {count, count, 0, 0};
}
/// Makes initialised barriers known to TMA; other threads need a sync_block after it.
inline void barrier_init_fence() {}
inline void barrier_arrive(std::uint32_t barrier) {
  auto& state = detail::transaction_barrier(barrier);
  if (state.pending == 0) Emulator::now().fail("too many threads arrive at a barrier");
  Emulator::now().note_barrier();
  --state.pending;
  state.settle();
  detail::note_progress();
}
/// `bytes` more end this phase.
inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  detail::transaction_barrier(barrier).bytes += bytes;
}
/// Waits for the end of the phase of this parity; the first one has 0, and the one before it has
/// ended.
inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  (void)detail::transaction_barrier(barrier);
  Emulator::now().wait_until(
      [&] { return (detail::transaction_barrier(barrier).phase & 1U) != parity; }, "barrier_wait");
}

inline void prefetch_map(const TileMap&) {}
/// Copies the box at (row, col) into a panel's rows at `to`, then counts its 8192 bytes at
/// `barrier`. One thread calls it.
inline void load_tile(std::uint32_t to, const TileMap& map, std::uint32_t barrier, int col,
                      int row) {
  Emulator& emulator = Emulator::now();
  constexpr std::uint32_t kRowBytes = 128, kRows = 64;
  if (to % 1024 != 0) emulator.fail("a box does not begin at a multiple of 1024 bytes");
  std::byte* into = emulator.shared(to, kRowBytes * kRows);
  emulator.check_proxy(to, kRowBytes * kRows, "a copy by TMA");
  auto* barriers = &emulator.of_block<detail::TransactionBarriers>();
  (void)detail::transaction_barrier(barrier);
  emulator.in_background([into, map, barriers, barrier, col, row] {
    for (std::uint32_t r = 0; r < kRows; ++r) {
      for (std::uint32_t c = 0; c < kRowBytes / 2; ++c) {
        const std::int64_t y = row + static_cast<std::int64_t>(r),
                           x = col + static_cast<std::int64_t>(c);
        const bool inside = y >= 0 && y < map.rows && x >= 0 && x < map.cols;
        const Bf16 value = inside ? map.base[y * map.cols + x] : Bf16{};
        const std::uint32_t i = r * kRowBytes + c * 2;
        std::memcpy(into + (i ^ ((i >> 7U & 7U) << 4U)), &value, 2);
      }
    }
    detail::TransactionBarrier& state = barriers->at(barrier);
    state.bytes -= kRowBytes * kRows;
    state.settle();
  });
}

/// Between this thread's own writes to shared memory and their reads by TMA or products.
inline void async_proxy_fence() {
  if (!Emulator::fences_lost()) Emulator::now().note_fence();
}

template <int kRegisters>
void registers_increase() {}
template <int kRegisters>
void registers_decrease() {}

namespace detail {

constexpr unsigned kWarpgroup = 128;

/// What the threads of a warpgroup bring to a product.
struct ProductPart {
  float* d;
  const std::uint32_t* a;
  std::uint64_t a_descriptor, b_descriptor;
  bool add;
};
struct Product {
  std::array<ProductPart, kWarpgroup> parts{};
  std::array<std::array<std::uint32_t, 4>, kWarpgroup> a{};  ///< when it was issued
  unsigned cols = 0;
  bool transposed = false;
};
/// Sums that are under way: their registers hold NaN until the last product of them has been
/// waited for.
struct Sums {
  std::array<float*, kWarpgroup> d{};
  unsigned cols = 0, products = 0;
  std::vector<float> values;  ///< 64 rows
};
struct Warpgroup {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::uint64_t committed = 0;
  std::deque<std::vector<Sums>> results;  ///< of the groups computed, as far as complete
  std::map<float*, Sums> sums;            ///< under way, by the address of the first thread's
};
using Warpgroups = std::map<unsigned, Warpgroup>;
struct ProductState {
  std::uint64_t committed = 0, waited = 0;
  bool fenced = false;
};

inline unsigned warpgroup_begin() {
  return thread_index() / kWarpgroup * kWarpgroup;
}
inline Warpgroup& warpgroup() {
  return Emulator::now().of_block<Warpgroups>()[warpgroup_begin()];
}

/// Row and column of a thread's number `at` of a 64-row fragment of sums.
inline std::array<unsigned, 2> sum_at(unsigned thread, unsigned i) {
  const unsigned lane = thread % 32;
  return {thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

/// Takes the numbers of a thread out of its registers, which hold NaN from then on.
inline void take_sums(Sums& sums, unsigned thread) {
  for (unsigned i = 0; i < sums.cols / 2; ++i) {
    const auto [row, col] = sum_at(thread, i);
    sums.values[row * sums.cols + col] =
        std::exchange(sums.d[thread][i], std::numeric_limits<float>::quiet_NaN());
  }
}
inline void give_sums(const Sums& sums, unsigned thread) {
  for (unsigned i = 0; i < sums.cols / 2; ++i) {
    const auto [row, col] = sum_at(thread, i);
    sums.d[thread][i] = sums.values[row * sums.cols + col];
  }
}

/// Number (outer, inner) of a matrix of swizzled panels: `inner` runs along rows of 128 bytes.
inline float matrix_at(std::uint64_t descriptor, unsigned outer, unsigned inner) {
  Emulator& emulator = Emulator::now();
  if (descriptor >> 62U != 1) emulator.fail("a descriptor is not of 128-byte swizzling");
  const auto field = [&](unsigned bit) {
    return static_cast<std::uint32_t>(descriptor >> bit & 0x3fffU) << 4U;
  };
  const std::uint32_t plain =
      field(0) + outer % 8 * 128 + outer / 8 * field(32) + inner % 64 * 2 + inner / 64 * field(16);
  const std::uint32_t address = plain ^ ((plain >> 7U & 7U) << 4U);
  emulator.check_proxy(address, 2, "a product");
  Bf16 value;
  std::memcpy(&value, emulator.shared(address / 4 * 4, 4) + address % 4, 2);
  return to_float(value);
}

inline void compute(const Product& product, Sums& sums) {
  Emulator& emulator = Emulator::now();
  constexpr unsigned kRows = 64, kDepth = 16;
  const ProductPart& part = product.parts[0];
  std::vector<float> a(kRows * kDepth), b(kDepth * product.cols);
  for (unsigned thread = 0; part.a != nullptr && thread < kWarpgroup; ++thread) {
    const unsigned lane = thread % 32;
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t pair = product.parts[thread].a[i];
      if (pair != product.a[thread][i]) emulator.fail("a product's registers were written to");
      const unsigned row = thread / 32 * 16 + lane / 4 + i % 2 * 8;
      const unsigned col = lane % 4 * 2 + i / 2 * 8;
      a[row * kDepth + col] = to_float(Bf16{static_cast<std::uint16_t>(pair & 0xffffU)});
      a[row * kDepth + col + 1] = to_float(Bf16{static_cast<std::uint16_t>(pair >> 16U)});
    }
  }
  for (unsigned row = 0; part.a == nullptr && row < kRows; ++row) {
    for (unsigned k = 0; k < kDepth; ++k) {
      a[row * kDepth + k] = matrix_at(part.a_descriptor, row, k);
    }
  }
  for (unsigned k = 0; k < kDepth; ++k) {
    for (unsigned col = 0; col < product.cols; ++col) {
      b[k * product.cols + col] = product.transposed ? matrix_at(part.b_descriptor, k, col)
                                                     : matrix_at(part.b_descriptor, col, k);
    }
  }
  if (!part.add) std::fill(sums.values.begin(), sums.values.end(), 0.0F);
  for (unsigned row = 0; row < kRows; ++row) {
    float* into = sums.values.data() + row * product.cols;
    for (unsigned k = 0; k < kDepth; ++k) {
      const float left = a[row * kDepth + k];
      const float* right = b.data() + k * product.cols;
      for (unsigned col = 0; col < product.cols; ++col) into[col] += left * right[col];
    }
  }
}

inline void issue(unsigned cols, bool transposed, const ProductPart& mine, const char* name) {
  Emulator& emulator = Emulator::now();
  if (!emulator.of_thread<ProductState>().fenced) {
    emulator.fail("a product without a fence after the last wait");
  }
  (void)emulator.together(warpgroup_begin(), kWarpgroup, name, mine, [&](const ProductPart* parts) {
    Warpgroup& group = warpgroup();
    Product product;
    product.cols = cols, product.transposed = transposed;
    for (unsigned thread = 0; thread < kWarpgroup; ++thread) {
      product.parts[thread] = parts[thread];
      if (parts[thread].a != nullptr) {
        std::copy_n(parts[thread].a, 4, product.a[thread].begin());
      }
      if (parts[thread].a_descriptor != parts[0].a_descriptor ||
          parts[thread].b_descriptor != parts[0].b_descriptor ||
          parts[thread].add != parts[0].add) {
        Emulator::now().fail("the threads of a product bring different descriptors");
      }
    }
    const auto [sums, fresh] = group.sums.try_emplace(parts[0].d);
    if (fresh) {
      sums->second.cols = cols;
      sums->second.values.resize(64U * cols);
      for (unsigned thread = 0; thread < kWarpgroup; ++thread) {
        sums->second.d[thread] = parts[thread].d;
        take_sums(sums->second, thread);
      }
    }
    ++sums->second.products;
    group.open.push_back(std::move(product));
  });
}

}  // namespace detail

/// To be called before the first product after a wait, or after registers of products were written
/// to.
inline void product_fence() {
  Emulator::now().of_thread<detail::ProductState>().fenced = true;
}
/// Ends a group of this warpgroup's products.
inline void product_commit() {
  detail::Warpgroup& group = detail::warpgroup();
  auto& state = Emulator::now().of_thread<detail::ProductState>();
  if (state.committed++ < group.committed) return;  // another thread has done it
  ++group.committed;
  group.groups.push_back(std::exchange(group.open, {}));
}
/// Waits until at most `kLeft` of the groups that were ended are under way.
template <int kLeft>
void product_wait() {
  detail::Warpgroup& group = detail::warpgroup();
  auto& state = Emulator::now().of_thread<detail::ProductState>();
  state.fenced = false;
  for (; state.waited + kLeft < state.committed; ++state.waited) {
    if (group.results.size() <= state.waited) {  // the first thread computes for all
      std::vector<detail::Sums>& results = group.results.emplace_back();
      for (const detail::Product& product : group.groups[state.waited]) {
        const auto at = group.sums.find(product.parts[0].d);
        detail::compute(product, at->second);
        if (--at->second.products > 0) continue;
        results.push_back(std::move(at->second));
        group.sums.erase(at);
      }
      group.groups[state.waited].clear();
    }
    for (const detail::Sums& sums : group.results[state.waited]) {
      detail::give_sums(sums, thread_index() % detail::kWarpgroup);
    }
  }
}
/// Tells the compiler that these registers change here: after a wait, before the first use.
template <std::size_t kSize>
void products_arrived(std::array<float, kSize>&) {}

/// A product of a warpgroup: d[64 x kCols] = a[64 x 16] * transpose(b[kCols x 16]), added to d
/// where `add`. Both lie in panels, descriptors at their first row and column. Warp w has rows 16
/// w.. of d, in which kCols / 8 fragments of multiply_16x8x16 follow each other.
template <int kCols>
void multiply_shared(std::array<float, kCols / 2>& d, std::uint64_t a, std::uint64_t b, bool add) {
  detail::issue(kCols, false, {d.data(), nullptr, a, b, add}, "multiply_shared");
}
/// The same of a in registers, as multiply_16x8x16 has it, and b[16 x kCols] whose columns are
/// those of panels. `a` must stay where it is and as it is until the product has been waited for.
template <int kCols>
void multiply_registers(std::array<float, kCols / 2>& d, const std::array<std::uint32_t, 4>& a,
                        std::uint64_t b, bool add) {
  detail::issue(kCols, true, {d.data(), a.data(), 0, b, add}, "multiply_registers");
}

}  // namespace slimpack::cuda::simt
