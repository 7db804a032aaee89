// SPDX-License-Identifier: Apache-2.0
// The matrix products of linear layers by cuBLASLt: bf16 factors, fp32 sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/gemm_choices.hpp"
#include "slimpack_cuda/gemm_layout.hpp"

namespace slimpack::cuda {

/// What becomes of the elements that a product is written to.
enum class Into : std::uint8_t { overwrite, add };

/// What cuBLASLt recommends for Hopper. With less, some algorithms cannot be chosen.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20U;

/// A cuBLASLt handle, a workspace and the algorithms chosen so far. An algorithm is looked for when
/// a key_of_choice comes up for the first time (host work, some 10 to 100 us, and its kernel may
/// have to be loaded) and kept: the same product always runs the same algorithm, none of which
/// depends on the order in which blocks end. On one kind of device and one version of cuBLASLt
/// equal inputs give equal bits. A row's bits do depend on the number of rows, by which algorithms
/// are chosen, of eight numbers an octave. The first that cuBLASLt proposes is taken; with
/// GemmChoices that time, the fastest of several: each is warmed up and timed when the product
/// comes up for the first time, on its operands and into memory that is taken for as long; where
/// there is none left, the first stays.
///
/// Not to be used by two threads at a time. All calls share the workspace: they must be on one
/// stream, or ordered by events.
///
/// Products throw InvalidInput where why_not has a sentence or a span is not of its matrix's size,
/// CudaError where cuBLASLt fails; no output may overlap an input. They neither allocate device
/// memory nor synchronize, but to time a product. A sum is rounded to bf16 once, after what is
/// added; where a product is added to bf16 in place, cuBLASLt may round the product before, too.
///
/// Of cuBLASLt's fused epilogues Llama needs only the addition: there is none for SwiGLU or for
/// RMSNorm, and Llama's linear layers have no bias.
class Gemm {
 public:
  /// Products on the current device. The workspace, aligned to 256 bytes, must outlive the object.
  /// With `multiprocessors` > 0 algorithms are chosen for a part of the card of that size. `timed`
  /// may be null; the emulated library has one algorithm, which it keeps where others would time.
  /// Throws InvalidInput,
  /// CudaError.
  explicit Gemm(DeviceSpan<std::byte> workspace, int multiprocessors = 0,
                GemmChoices* timed = nullptr);
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  /// out = in * transpose(weight).
  void forward(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
               const LinearShape& shape, StreamView stream);
  void forward(DeviceSpan<float> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
               const LinearShape& shape, StreamView stream);
  /// out = addend + in * transpose(weight): a layer's output onto the residual stream. `addend` may
  /// be `out` itself.
  void forward_add(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> addend, DeviceSpan<const Bf16> in,
                   DeviceSpan<const Bf16> weight, const LinearShape& shape, StreamView stream);

  /// din = dout * weight.
  void input_gradient(DeviceSpan<Bf16> din, DeviceSpan<const Bf16> dout,
                      DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                      StreamView stream);
  void input_gradient(DeviceSpan<float> din, DeviceSpan<const Bf16> dout,
                      DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                      StreamView stream);

  /// dweight = transpose(dout) * in, in fp32. Of no rows it is zero.
  void weight_gradient(DeviceSpan<float> dweight, DeviceSpan<const Bf16> dout,
                       DeviceSpan<const Bf16> in, const LinearShape& shape, Into into,
                       StreamView stream);

  /// Algorithms kept.
  [[nodiscard]] std::int64_t choices() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Version of the cuBLASLt that is linked, for example 130100.
[[nodiscard]] std::int64_t gemm_library_version();

}  // namespace slimpack::cuda
