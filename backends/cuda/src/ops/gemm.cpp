// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/gemm.hpp"

#include <cublasLt.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "slimpack/core/error.hpp"

namespace slimpack::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " +
                  cublasLtGetStatusString(status));
}
#define SLIMPACK_CUBLAS_CHECK(call) check_blas((call), #call, __FILE__, __LINE__)

void log_failure(cublasStatus_t status, const char* what) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "slimpack: %s failed: %s\n", what, cublasLtGetStatusString(status));
}

struct HandleCloser {
  void operator()(cublasLtHandle_t handle) const noexcept {
    log_failure(cublasLtDestroy(handle), "cublasLtDestroy");
  }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, HandleCloser>;

/// Descriptors of one product with the algorithm that runs it. cuBLASLt initialises them in place;
/// they need no destruction, and nothing says that they could be moved.
struct Choice {
  Choice() = default;
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, d{};
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;
};

template <class Value>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, Value value) {
  SLIMPACK_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)));
}
template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         Value value) {
  SLIMPACK_CUBLAS_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

void initialise(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, std::int64_t rows,
                std::int64_t columns, std::int64_t distance) {
  SLIMPACK_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(rows),
                                                 static_cast<std::uint64_t>(columns), distance));
}

std::string text_of(const GemmKey& key) {
  constexpr const char* kNames[] = {"forward", "input gradient", "weight gradient"};
  return std::string(kNames[static_cast<int>(key.product)]) + " of " +
         std::to_string(key.shape.rows) + " rows, " + std::to_string(key.shape.inputs) +
         " inputs, " + std::to_string(key.shape.outputs) + " outputs";
}

void choose(Choice& choice, cublasLtHandle_t handle, const GemmKey& key, std::int64_t workspace,
            int multiprocessors) {
  const ColumnProduct product = column_product(key.product, key.shape);
  const cudaDataType result = key.single ? CUDA_R_32F : CUDA_R_16BF;
  SLIMPACK_CUBLAS_CHECK(cublasLtMatmulDescInit(&choice.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(&choice.product, CUBLASLT_MATMUL_DESC_TRANSA,
      product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&choice.product, CUBLASLT_MATMUL_DESC_TRANSB,
      product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (multiprocessors > 0) {
    set(&choice.product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
        static_cast<std::int32_t>(multiprocessors));
  }
  initialise(choice.a, CUDA_R_16BF, product.a_rows(), product.a_columns(), product.lda);
  initialise(choice.b, CUDA_R_16BF, product.b_rows(), product.b_columns(), product.ldb);
  initialise(choice.d, result, product.m, product.n, product.ldd);

  cublasLtMatmulPreferenceOpaque_t preference{};
  SLIMPACK_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace));
  // A sum over k that is split must be put together in a fixed order and in fp32.
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(&preference, attribute, static_cast<std::uint32_t>(key.aligned));
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &choice.product, &choice.a, &choice.b, &choice.d,
                                     &choice.d, &preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    throw CudaError("gemm: cuBLASLt has no algorithm for the " + text_of(key));
  }
  SLIMPACK_CUBLAS_CHECK(status);
  SLIMPACK_CUBLAS_CHECK(best.state);
  choice.algorithm = best.algo;
  choice.workspace = best.workspaceSize;
}

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

void require_size(std::int64_t size, std::int64_t rows, std::int64_t columns, const char* rule) {
  require(size == rows * columns, rule, size);
}

}  // namespace

struct Gemm::State {
  Handle handle;
  DeviceSpan<std::byte> workspace;
  int multiprocessors = 0;
  int major = 0, minor = 0;
  std::map<GemmKey, Choice> choices;

  void require_supported(const LinearShape& shape) const {
    if (const auto why = why_not(shape, major, minor)) throw InvalidInput(*why);
  }

  /// d = left * right, plus `addend` if there is one, of d's type and shape.
  template <class Result>
  void run(LinearProduct product, const LinearShape& shape, Result* d, const Result* addend,
           const Bf16* left, const Bf16* right, StreamView stream) {
    const void* const c = addend != nullptr ? addend : d;
    const GemmKey key{product, shape, std::is_same_v<Result, float>, addend != nullptr,
                      common_alignment({address(d), address(c), address(left), address(right)})};
    const auto [found, is_new] = choices.try_emplace(key);
    Choice& choice = found->second;
    if (is_new) {
      try {
        choose(choice, handle.get(), key, workspace.size, multiprocessors);
      } catch (...) {
        choices.erase(found);
        throw;
      }
    }
    const float one = 1, beta = addend != nullptr ? 1 : 0;
    SLIMPACK_CUBLAS_CHECK(cublasLtMatmul(
        handle.get(), &choice.product, &one, right, &choice.a, left, &choice.b, &beta, c, &choice.d,
        d, &choice.d, &choice.algorithm, workspace.data, choice.workspace, stream.get()));
  }

  template <class Result>
  void forward(DeviceSpan<Result> out, const DeviceSpan<const Result>* addend,
               DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight, const LinearShape& shape,
               StreamView stream) {
    require_supported(shape);
    require_size(out.size, shape.rows, shape.outputs, "gemm: out is not rows * outputs");
    require_size(in.size, shape.rows, shape.inputs, "gemm: in is not rows * inputs");
    require_size(weight.size, shape.outputs, shape.inputs, "gemm: weight is not outputs * inputs");
    if (addend != nullptr) {
      require_size(addend->size, shape.rows, shape.outputs, "gemm: addend is not rows * outputs");
    }
    if (shape.rows == 0) return;
    run(LinearProduct::forward, shape, out.data, addend != nullptr ? addend->data : nullptr,
        in.data, weight.data, stream);
  }

  template <class Result>
  void input_gradient(DeviceSpan<Result> din, DeviceSpan<const Bf16> dout,
                      DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                      StreamView stream) {
    require_supported(shape);
    require_size(din.size, shape.rows, shape.inputs, "gemm: din is not rows * inputs");
    require_size(dout.size, shape.rows, shape.outputs, "gemm: dout is not rows * outputs");
    require_size(weight.size, shape.outputs, shape.inputs, "gemm: weight is not outputs * inputs");
    if (shape.rows == 0) return;
    const Result* const addend = into == Into::add ? din.data : nullptr;
    run(LinearProduct::input_gradient, shape, din.data, addend, dout.data, weight.data, stream);
  }
};

Gemm::Gemm(DeviceSpan<std::byte> workspace, int multiprocessors) {
  require(workspace.size >= 0, "Gemm: the workspace's size must be >= 0", workspace.size);
  require(address(workspace.data) % 256 == 0, "Gemm: the workspace must be aligned to 256 bytes");
  require(multiprocessors >= 0, "Gemm: multiprocessors must be >= 0", multiprocessors);
  const DeviceProperties device = device_properties();
  require(multiprocessors <= device.multiprocessors,
          "Gemm: the device has fewer multiprocessors than asked for", multiprocessors);
  cublasLtHandle_t handle = nullptr;
  SLIMPACK_CUBLAS_CHECK(cublasLtCreate(&handle));
  state_.reset(
      new State{Handle(handle), workspace, multiprocessors, device.major, device.minor, {}});
}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::forward(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                   const LinearShape& shape, StreamView stream) {
  state_->forward<Bf16>(out, nullptr, in, weight, shape, stream);
}
void Gemm::forward(DeviceSpan<float> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                   const LinearShape& shape, StreamView stream) {
  state_->forward<float>(out, nullptr, in, weight, shape, stream);
}
void Gemm::forward_add(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> addend,
                       DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                       const LinearShape& shape, StreamView stream) {
  state_->forward<Bf16>(out, &addend, in, weight, shape, stream);
}

void Gemm::input_gradient(DeviceSpan<Bf16> din, DeviceSpan<const Bf16> dout,
                          DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                          StreamView stream) {
  state_->input_gradient(din, dout, weight, shape, into, stream);
}
void Gemm::input_gradient(DeviceSpan<float> din, DeviceSpan<const Bf16> dout,
                          DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                          StreamView stream) {
  state_->input_gradient(din, dout, weight, shape, into, stream);
}

void Gemm::weight_gradient(DeviceSpan<float> dweight, DeviceSpan<const Bf16> dout,
                           DeviceSpan<const Bf16> in, const LinearShape& shape, Into into,
                           StreamView stream) {
  state_->require_supported(shape);
  require_size(dweight.size, shape.outputs, shape.inputs, "gemm: dweight is not outputs * inputs");
  require_size(dout.size, shape.rows, shape.outputs, "gemm: dout is not rows * outputs");
  require_size(in.size, shape.rows, shape.inputs, "gemm: in is not rows * inputs");
  if (shape.rows == 0) {  // an empty sum, which cuBLASLt does not take
    if (into == Into::overwrite) {
      detail::fill_bytes(dweight.data, 0, static_cast<std::size_t>(dweight.size) * sizeof(float),
                         stream);
    }
    return;
  }
  const float* const addend = into == Into::add ? dweight.data : nullptr;
  state_->run(LinearProduct::weight_gradient, shape, dweight.data, addend, dout.data, in.data,
              stream);
}

std::int64_t Gemm::choices() const noexcept {
  return static_cast<std::int64_t>(state_->choices.size());
}

std::int64_t gemm_library_version() {
  return static_cast<std::int64_t>(cublasLtGetVersion());
}

}  // namespace slimpack::cuda
