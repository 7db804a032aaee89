// SPDX-License-Identifier: Apache-2.0
// Instructions of simt.hpp on the emulator. Layouts of fragments are those of the PTX manual.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "simt/emulator.hpp"
#include "slimpack_cuda/bf16.hpp"

#define SLIMPACK_DEVICE inline
#define SLIMPACK_HOST_DEVICE inline
#define SLIMPACK_UNROLL
#define SLIMPACK_ROLLED

namespace slimpack::cuda::simt {

inline unsigned thread_index() {
  return Emulator::now().thread();
}
inline unsigned block_index() {
  return Emulator::now().block();
}
inline unsigned block_threads() {
  return Emulator::now().grid().threads;
}
inline unsigned grid_blocks() {
  return Emulator::now().grid().blocks;
}
inline unsigned lane_index() {
  return thread_index() % 32;
}

inline std::byte* shared_memory() {
  return Emulator::now().shared();
}
inline std::uint32_t shared_address(const void* pointer) {
  return Emulator::now().address_of(pointer);
}

inline void sync_block() {
  Emulator& emulator = Emulator::now();
  emulator.barrier(0, emulator.grid().threads, true, "sync_block");
}
/// Barrier 1..15 of `count` threads, a multiple of 32.
inline void sync_threads(unsigned barrier, unsigned count) {
  Emulator::now().barrier(barrier, count, true, "sync_threads");
}
inline void arrive_threads(unsigned barrier, unsigned count) {
  Emulator::now().barrier(barrier, count, false, "arrive_threads");
}

namespace detail {
inline unsigned warp_begin() {
  return thread_index() / 32 * 32;
}
template <class Slot, class Work>
Slot in_warp(const char* name, const Slot& mine, const Work& work) {
  return Emulator::now().together(warp_begin(), 32, name, mine, work);
}
}  // namespace detail

inline void sync_warp() {
  Emulator::now().note_barrier();
  (void)detail::in_warp("sync_warp", 0, [](int*) {});
}
template <class Number>
Number shuffle_xor(Number value, unsigned mask) {
  return detail::in_warp("shuffle_xor", value, [mask](Number* values) {
    std::array<Number, 32> before;
    std::copy_n(values, 32, before.begin());
    for (unsigned lane = 0; lane < 32; ++lane) values[lane] = before[lane ^ mask];
  });
}
/// The value of lane `from`, which may differ by lane.
template <class Number>
Number shuffle(Number value, unsigned from) {
  struct Slot {
    Number value;
    unsigned from;
  };
  return detail::in_warp("shuffle", Slot{value, from},
                         [](Slot* slots) {
                           std::array<Number, 32> before;
                           for (unsigned lane = 0; lane < 32; ++lane)
                             before[lane] = slots[lane].value;
                           for (unsigned lane = 0; lane < 32; ++lane)
                             slots[lane].value = before[slots[lane].from % 32];
                         })
      .value;
}

/// 2^x, to about 2 ulp on the device.
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float log2_fast(float x) {
  return std::log2(x);
}
inline float reciprocal_root(float x) {
  return 1.0F / std::sqrt(x);
}

/// a * b + c, rounded once.
inline float multiply_add(float a, float b, float c) {
  return std::fma(a, b, c);
}

/// The larger one; of a number and a NaN the number.
inline float maximum(float a, float b) {
  return std::fmax(a, b);
}

namespace detail {
template <class Vector>
concept OneAccess = sizeof(Vector) == 4 || sizeof(Vector) == 8 || sizeof(Vector) == 16;

inline void check_aligned(const void* address, std::size_t bytes, const char* what) {
  if (std::bit_cast<std::uintptr_t>(address) % bytes != 0) {
    Emulator::now().fail(std::string("a vector is ") + what + " an address that is not aligned");
  }
}
}  // namespace detail

/// All bytes of a vector by one access; its address must be a multiple of its size.
template <detail::OneAccess Vector>
Vector load_vector(const void* from) {
  detail::check_aligned(from, sizeof(Vector), "loaded from");
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
/// The same to global memory.
template <detail::OneAccess Vector>
void store_vector(void* to, const Vector& value) {
  detail::check_aligned(to, sizeof(Vector), "stored to");
  if (Emulator::now().is_shared(to)) {
    Emulator::now().fail("a store to global memory goes to shared memory");
  }
  std::memcpy(to, &value, sizeof value);
}
/// The same in shared memory.
template <detail::OneAccess Vector>
Vector load_shared(std::uint32_t from) {
  return load_vector<Vector>(Emulator::now().shared(from, sizeof(Vector)));
}
template <detail::OneAccess Vector>
void store_shared(std::uint32_t to, const Vector& value) {
  std::byte* into = Emulator::now().shared(to, sizeof(Vector));
  Emulator::now().note_store(to, sizeof(Vector));
  detail::check_aligned(into, sizeof(Vector), "stored to");
  std::memcpy(into, &value, sizeof value);
}

/// Two numbers rounded to bf16, the first in the lower half.
inline std::uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16U;
}

/// 1 / x, to about 1 ulp on the device, which takes results below the normal numbers for zero.
inline float reciprocal_fast(float x) {
  return 1.0F / x;
}

/// One access of 16 bytes, or of 8, to memory aligned to as many; stores are to global memory.
inline std::array<std::uint32_t, 4> load_16(const void* from) {
  return load_vector<std::array<std::uint32_t, 4>>(from);
}
inline std::array<std::uint32_t, 2> load_8(const void* from) {
  return load_vector<std::array<std::uint32_t, 2>>(from);
}
inline void store_16(void* to, const std::array<std::uint32_t, 4>& words) {
  store_vector(to, words);
}
inline void store_8(void* to, const std::array<std::uint32_t, 2>& words) {
  store_vector(to, words);
}

/// Says that words may have changed. The device's compiler then keeps them as they are, and not
/// what it has made of them, in registers.
template <std::size_t kWords>
void keep_words(std::array<std::uint32_t, kWords>&) {}

namespace detail {
struct CopyQueue {
  std::vector<std::vector<std::function<void()>>> groups{1};
};
}  // namespace detail

/// Starts a copy of 16 bytes to shared memory, of zeros where `valid` is false. Both must be
/// aligned to 16 bytes.
inline void copy_async_16(std::uint32_t to, const void* from, bool valid) {
  Emulator& emulator = Emulator::now();
  if (to % 16 != 0 || (valid && std::bit_cast<std::uintptr_t>(from) % 16 != 0)) {
    emulator.fail("an asynchronous copy is not aligned to 16 bytes");
  }
  std::byte* into = emulator.shared(to, 16);
  auto copy = [into, from, valid] {
    if (valid) {
      std::memcpy(into, from, 16);
    } else {
      std::memset(into, 0, 16);
    }
  };
  if (emulator.timing() == Timing::at_once) {
    copy();
  } else {
    emulator.of_thread<detail::CopyQueue>().groups.back().push_back(copy);
  }
}
/// Ends a group of this thread's copies.
inline void copy_async_commit() {
  Emulator::now().of_thread<detail::CopyQueue>().groups.emplace_back();
}
/// Waits until at most `kLeft` of the groups that this thread ended are under way.
template <int kLeft>
void copy_async_wait() {
  auto& groups = Emulator::now().of_thread<detail::CopyQueue>().groups;
  while (groups.size() > static_cast<std::size_t>(kLeft) + 1) {
    for (const auto& copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
}

/// Four 8 x 8 matrices of 16-bit numbers: lane 8 i + r brings the shared address of row r of matrix
/// i; every lane gets, of matrix i, the numbers 2 (lane % 4) and + 1 of row lane / 4.
inline void load_matrices(std::array<std::uint32_t, 4>& out, std::uint32_t row) {
  union Slot {
    std::uint32_t row;
    std::array<std::uint32_t, 4> out;
  };
  Slot mine{};
  mine.row = row;
  out = detail::in_warp("load_matrices", mine, [](Slot* slots) {
          std::array<std::array<std::byte, 16>, 32> rows;
          for (unsigned lane = 0; lane < 32; ++lane) {
            if (slots[lane].row % 16 != 0) Emulator::now().fail("a matrix row is not aligned");
            std::memcpy(rows[lane].data(), Emulator::now().shared(slots[lane].row, 16), 16);
          }
          for (unsigned lane = 0; lane < 32; ++lane) {
            for (unsigned i = 0; i < 4; ++i) {
              std::memcpy(&slots[lane].out[i], rows[8 * i + lane / 4].data() + 4 * (lane % 4), 4);
            }
          }
        }).out;
}
/// The same of transposed matrices: every lane gets numbers lane / 4 of rows 2 (lane % 4) and + 1.
inline void load_matrices_transposed(std::array<std::uint32_t, 4>& out, std::uint32_t row) {
  union Slot {
    std::uint32_t row;
    std::array<std::uint32_t, 4> out;
  };
  Slot mine{};
  mine.row = row;
  out = detail::in_warp("load_matrices_transposed", mine, [](Slot* slots) {
          std::array<std::array<std::uint16_t, 8>, 32> rows;
          for (unsigned lane = 0; lane < 32; ++lane) {
            if (slots[lane].row % 16 != 0) Emulator::now().fail("a matrix row is not aligned");
            std::memcpy(rows[lane].data(), Emulator::now().shared(slots[lane].row, 16), 16);
          }
          for (unsigned lane = 0; lane < 32; ++lane) {
            for (unsigned i = 0; i < 4; ++i) {
              const unsigned k = 8 * i + 2 * (lane % 4);
              slots[lane].out[i] =
                  rows[k][lane / 4] | static_cast<std::uint32_t>(rows[k + 1][lane / 4]) << 16U;
            }
          }
        }).out;
}

/// d[16 x 8] += a[16 x 16] * b[16 x 8] in bf16 with fp32 sums. With g = lane / 4 and t = lane % 4 a
/// lane holds of d rows g and g + 8, columns 2t and 2t + 1 (d[0..1], d[2..3]); of a rows g, g + 8,
/// g, g + 8, columns 2t.., 2t.., 2t + 8.., 2t + 8..; of b column g, rows 2t.. and 2t + 8...
inline void multiply_16x8x16(std::array<float, 4>& d, const std::array<std::uint32_t, 4>& a,
                             std::uint32_t b0, std::uint32_t b1) {
  struct Slot {
    std::array<float, 4> d;
    std::array<std::uint32_t, 4> a;
    std::array<std::uint32_t, 2> b;
  };
  d = detail::in_warp("multiply_16x8x16", Slot{d, a, {b0, b1}}, [](Slot* slots) {
        std::array<std::array<float, 16>, 16> left;
        std::array<std::array<float, 8>, 16> right;
        const auto half = [](std::uint32_t pair, unsigned i) {
          return to_float(Bf16{static_cast<std::uint16_t>(i == 0 ? pair & 0xffffU : pair >> 16U)});
        };
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned g = lane / 4, t = lane % 4;
          for (unsigned e = 0; e < 2; ++e) {
            left[g][2 * t + e] = half(slots[lane].a[0], e);
            left[g + 8][2 * t + e] = half(slots[lane].a[1], e);
            left[g][2 * t + 8 + e] = half(slots[lane].a[2], e);
            left[g + 8][2 * t + 8 + e] = half(slots[lane].a[3], e);
            right[2 * t + e][g] = half(slots[lane].b[0], e);
            right[2 * t + 8 + e][g] = half(slots[lane].b[1], e);
          }
        }
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned g = lane / 4, t = lane % 4;
          for (unsigned e = 0; e < 4; ++e) {
            const unsigned row = g + 8 * (e / 2), col = 2 * t + e % 2;
            float sum = slots[lane].d[e];
            for (unsigned k = 0; k < 16; ++k) sum += left[row][k] * right[k][col];
            slots[lane].d[e] = sum;
          }
        }
      }).d;
}

}  // namespace slimpack::cuda::simt
