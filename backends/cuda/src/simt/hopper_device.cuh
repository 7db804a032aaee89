// SPDX-License-Identifier: Apache-2.0
// Instructions of hopper.hpp on the device (PTX ISA). What each means is said in
// hopper_emulated.hpp. Only sm_90a has them; other targets compile to a trap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "simt/simt.hpp"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLIMPACK_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define SLIMPACK_HOPPER_ASM(...) __trap()
#endif

namespace slimpack::cuda::simt {

/// A CUtensorMap: the host writes it, kernels take it as a __grid_constant__ parameter.
struct alignas(128) TileMap {
  std::uint64_t opaque[16];
};

SLIMPACK_DEVICE void barrier_init(std::uint32_t barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
SLIMPACK_DEVICE void barrier_init_fence() {
  SLIMPACK_HOPPER_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}
SLIMPACK_DEVICE void barrier_arrive(std::uint32_t barrier) {
  SLIMPACK_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
SLIMPACK_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  SLIMPACK_HOPPER_ASM("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                      "r"(bytes) : "memory");
}
SLIMPACK_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  SLIMPACK_HOPPER_ASM(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity) : "memory");
}

SLIMPACK_DEVICE void prefetch_map(const TileMap& map) {
  SLIMPACK_HOPPER_ASM("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
SLIMPACK_DEVICE void load_tile(std::uint32_t to, const TileMap& map, std::uint32_t barrier, int col,
                               int row) {
  SLIMPACK_HOPPER_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(barrier) : "memory");
}

SLIMPACK_DEVICE void async_proxy_fence() {
  SLIMPACK_HOPPER_ASM("fence.proxy.async.shared::cta;" :: : "memory");
}

template <int kRegisters>
SLIMPACK_DEVICE void registers_increase() {
  SLIMPACK_HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
SLIMPACK_DEVICE void registers_decrease() {
  SLIMPACK_HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

SLIMPACK_DEVICE void product_fence() {
  SLIMPACK_HOPPER_ASM("wgmma.fence.sync.aligned;" :: : "memory");
}
SLIMPACK_DEVICE void product_commit() {
  SLIMPACK_HOPPER_ASM("wgmma.commit_group.sync.aligned;" :: : "memory");
}
template <int kLeft>
SLIMPACK_DEVICE void product_wait() {
  SLIMPACK_HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
template <std::size_t kSize>
SLIMPACK_DEVICE void products_arrived(std::array<float, kSize>& registers) {
  SLIMPACK_UNROLL
  for (std::size_t at = 0; at < kSize; ++at) asm volatile("" : "+f"(registers[at])::"memory");
}

template <int kCols>
SLIMPACK_DEVICE void multiply_shared(std::array<float, kCols / 2>& d, std::uint64_t a,
                                     std::uint64_t b, bool add);
template <int kCols>
SLIMPACK_DEVICE void multiply_registers(std::array<float, kCols / 2>& d,
                                        const std::array<std::uint32_t, 4>& a, std::uint64_t b,
                                        bool add);

template <>
SLIMPACK_DEVICE void multiply_shared<64>(std::array<float, 32>& d, std::uint64_t a, std::uint64_t b,
                                         bool add) {
  SLIMPACK_HOPPER_ASM(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n"
      "}" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
template <>
SLIMPACK_DEVICE void multiply_registers<64>(std::array<float, 32>& d,
                                            const std::array<std::uint32_t, 4>& a, std::uint64_t b,
                                            bool add) {
  SLIMPACK_HOPPER_ASM(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n"
      "}" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
      "r"(add ? 1 : 0));
}
template <>
SLIMPACK_DEVICE void multiply_shared<128>(std::array<float, 64>& d, std::uint64_t a,
                                          std::uint64_t b, bool add) {
  SLIMPACK_HOPPER_ASM(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;\n"
      "}" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
      "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
      "+f"(d[63]) : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
template <>
SLIMPACK_DEVICE void multiply_registers<128>(std::array<float, 64>& d,
                                             const std::array<std::uint32_t, 4>& a, std::uint64_t b,
                                             bool add) {
  SLIMPACK_HOPPER_ASM(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n"
      "}" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
      "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
      "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
      "+f"(d[63]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));
}

}  // namespace slimpack::cuda::simt

#undef SLIMPACK_HOPPER_ASM
