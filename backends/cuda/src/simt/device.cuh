// SPDX-License-Identifier: Apache-2.0
// Instructions of simt.hpp on the device (PTX ISA). What each means is said in emulated.hpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "slimpack_cuda/bf16.hpp"

#define SLIMPACK_DEVICE __device__ __forceinline__
#define SLIMPACK_HOST_DEVICE __host__ __device__ __forceinline__
#define SLIMPACK_UNROLL _Pragma("unroll")
#define SLIMPACK_ROLLED _Pragma("unroll 1")

namespace slimpack::cuda::simt {

SLIMPACK_DEVICE unsigned thread_index() {
  return threadIdx.x;
}
SLIMPACK_DEVICE unsigned block_index() {
  return blockIdx.x;
}
SLIMPACK_DEVICE unsigned block_threads() {
  return blockDim.x;
}
SLIMPACK_DEVICE unsigned grid_blocks() {
  return gridDim.x;
}
SLIMPACK_DEVICE unsigned lane_index() {
  return threadIdx.x % 32;
}

SLIMPACK_DEVICE std::byte* shared_memory() {
  extern __shared__ __align__(1024) unsigned char slimpack_shared[];
  return reinterpret_cast<std::byte*>(slimpack_shared);
}
SLIMPACK_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

SLIMPACK_DEVICE void sync_block() {
  __syncthreads();
}
SLIMPACK_DEVICE void sync_threads(unsigned barrier, unsigned count) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
SLIMPACK_DEVICE void arrive_threads(unsigned barrier, unsigned count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
SLIMPACK_DEVICE void sync_warp() {
  __syncwarp();
}

template <class Number>
SLIMPACK_DEVICE Number shuffle_xor(Number value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(mask));
}
template <class Number>
SLIMPACK_DEVICE Number shuffle(Number value, unsigned from) {
  return __shfl_sync(0xffffffffU, value, static_cast<int>(from));
}

SLIMPACK_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SLIMPACK_DEVICE float log2_fast(float x) {
  return __log2f(x);
}
SLIMPACK_DEVICE float reciprocal_root(float x) {
  return rsqrtf(x);
}

SLIMPACK_DEVICE float multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

SLIMPACK_DEVICE float maximum(float a, float b) {
  return fmaxf(a, b);
}

SLIMPACK_DEVICE std::array<std::uint32_t, 4> load_16(const void* from) {
  const uint4 words = *static_cast<const uint4*>(from);
  return {words.x, words.y, words.z, words.w};
}
SLIMPACK_DEVICE std::array<std::uint32_t, 2> load_8(const void* from) {
  const uint2 words = *static_cast<const uint2*>(from);
  return {words.x, words.y};
}
// In PTX, for the compiler takes stores of vectors apart and does not always find them again.
SLIMPACK_DEVICE void store_16(void* to, const std::array<std::uint32_t, 4>& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
SLIMPACK_DEVICE void store_8(void* to, const std::array<std::uint32_t, 2>& words) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "r"(words[0]), "r"(words[1])
               : "memory");
}

namespace detail {
template <class Vector>
concept OneAccess = sizeof(Vector) == 4 || sizeof(Vector) == 8 || sizeof(Vector) == 16;
template <class Vector>
using WordsOf = std::array<std::uint32_t, sizeof(Vector) / 4>;
}  // namespace detail

template <detail::OneAccess Vector>
SLIMPACK_DEVICE Vector load_vector(const void* from) {
  if constexpr (sizeof(Vector) == 16) {
    return std::bit_cast<Vector>(load_16(from));
  } else if constexpr (sizeof(Vector) == 8) {
    return std::bit_cast<Vector>(load_8(from));
  } else {
    return *static_cast<const Vector*>(from);
  }
}
template <detail::OneAccess Vector>
SLIMPACK_DEVICE void store_vector(void* to, const Vector& value) {
  const auto words = std::bit_cast<detail::WordsOf<Vector>>(value);
  if constexpr (sizeof(Vector) == 16) {
    store_16(to, words);
  } else if constexpr (sizeof(Vector) == 8) {
    store_8(to, words);
  } else {
    *static_cast<std::uint32_t*>(to) = words[0];
  }
}
template <detail::OneAccess Vector>
SLIMPACK_DEVICE Vector load_shared(std::uint32_t from) {
  return load_vector<Vector>(__cvta_shared_to_generic(from));
}
template <detail::OneAccess Vector>
SLIMPACK_DEVICE void store_shared(std::uint32_t to, const Vector& value) {
  const auto words = std::bit_cast<detail::WordsOf<Vector>>(value);
  if constexpr (sizeof(Vector) == 16) {
    *static_cast<uint4*>(__cvta_shared_to_generic(to)) =
        make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (sizeof(Vector) == 8) {
    *static_cast<uint2*>(__cvta_shared_to_generic(to)) = make_uint2(words[0], words[1]);
  } else {
    *static_cast<std::uint32_t*>(__cvta_shared_to_generic(to)) = words[0];
  }
}

SLIMPACK_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

SLIMPACK_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <std::size_t kWords>
SLIMPACK_DEVICE void keep_words(std::array<std::uint32_t, kWords>& words) {
  SLIMPACK_UNROLL
  for (std::size_t i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i]));
}

SLIMPACK_DEVICE void copy_async_16(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
SLIMPACK_DEVICE void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
SLIMPACK_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

SLIMPACK_DEVICE void load_matrices(std::array<std::uint32_t, 4>& out, std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row)
               : "memory");
}
SLIMPACK_DEVICE void load_matrices_transposed(std::array<std::uint32_t, 4>& out,
                                              std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row)
               : "memory");
}

SLIMPACK_DEVICE void multiply_16x8x16(std::array<float, 4>& d,
                                      const std::array<std::uint32_t, 4>& a, std::uint32_t b0,
                                      std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace slimpack::cuda::simt
