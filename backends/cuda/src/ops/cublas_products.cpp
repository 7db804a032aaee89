// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/products.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {
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
  std::int64_t taken = -1;  ///< rows that the algorithm was last found to take
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

/// Sets the layouts of `choice` to a product's.
void lay_out(Choice& choice, const GemmKey& key) {
  const ColumnProduct product = column_product(key.product, key.shape);
  initialise(choice.a, CUDA_R_16BF, product.a_rows(), product.a_columns(), product.lda);
  initialise(choice.b, CUDA_R_16BF, product.b_rows(), product.b_columns(), product.ldb);
  initialise(choice.d, key.single ? CUDA_R_32F : CUDA_R_16BF, product.m, product.n, product.ldd);
}

std::string text_of(const GemmKey& key) {
  constexpr const char* kNames[] = {"forward", "input gradient", "weight gradient"};
  return std::string(kNames[static_cast<int>(key.product)]) + " of " +
         std::to_string(key.shape.rows) + " rows, " + std::to_string(key.shape.inputs) +
         " inputs, " + std::to_string(key.shape.outputs) + " outputs";
}

/// Sets the descriptors of `choice`. Gives at most `most` algorithms, the one first that cuBLASLt
/// thinks the fastest.
std::vector<cublasLtMatmulHeuristicResult_t> propose(Choice& choice, cublasLtHandle_t handle,
                                                     const GemmKey& key, std::int64_t workspace,
                                                     int multiprocessors, int most) {
  const ColumnProduct product = column_product(key.product, key.shape);
  SLIMPACK_CUBLAS_CHECK(cublasLtMatmulDescInit(&choice.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(&choice.product, CUBLASLT_MATMUL_DESC_TRANSA,
      product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&choice.product, CUBLASLT_MATMUL_DESC_TRANSB,
      product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (multiprocessors > 0) {
    set(&choice.product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
        static_cast<std::int32_t>(multiprocessors));
  }
  lay_out(choice, key);

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
  std::vector<cublasLtMatmulHeuristicResult_t> proposed(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &choice.product, &choice.a, &choice.b, &choice.d,
                                     &choice.d, &preference, most, proposed.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    throw CudaError("gemm: cuBLASLt has no algorithm for the " + text_of(key));
  }
  SLIMPACK_CUBLAS_CHECK(status);
  SLIMPACK_CUBLAS_CHECK(proposed.front().state);
  proposed.resize(static_cast<std::size_t>(found));
  return proposed;
}

constexpr std::size_t kTimings = 5;  ///< of a candidate, behind one that warms it up
constexpr std::chrono::minutes kHangTimeouts{2};

[[nodiscard]] std::int64_t result_bytes(const GemmKey& key) {
  const ColumnProduct product = column_product(key.product, key.shape);
  return product.m * product.n *
         static_cast<std::int64_t>(key.single ? sizeof(float) : sizeof(Bf16));
}

class CublasProducts : public Products {
 public:
  CublasProducts(DeviceSpan<std::byte> workspace, int multiprocessors, GemmChoices* timed)
      : workspace_(workspace), multiprocessors_(multiprocessors), timed_(timed) {
    cublasLtHandle_t handle = nullptr;
    SLIMPACK_CUBLAS_CHECK(cublasLtCreate(&handle));
    handle_.reset(handle);
  }

  void run(const GemmKey& key, void* d, const void* addend, const Bf16* left, const Bf16* right,
           StreamView stream) override {
    const Call call{key, d, addend, left, right, stream};
    const GemmKey like = choices_.contains(key) ? key : key_of_choice(key);
    Choice* choice = &choice_of(like, call);
    lay_out(*choice, key);
    // What cuBLASLt proposes for somewhat more rows it need not take for these.
    if (like != key && choice->taken != key.shape.rows) {
      if (takes(*choice)) {
        choice->taken = key.shape.rows;
      } else {
        choice = &choice_of(key, call);
        lay_out(*choice, key);
      }
    }
    SLIMPACK_CUBLAS_CHECK(multiply(*choice, call));
  }

  [[nodiscard]] std::int64_t choices() const noexcept override {
    return static_cast<std::int64_t>(choices_.size());
  }

 private:
  /// One product as `run` was given it.
  struct Call {
    const GemmKey& key;
    void* d;
    const void* addend;
    const Bf16* left;
    const Bf16* right;
    StreamView stream;
  };

  /// Whether the algorithm computes the product that is laid out, in the workspace there is.
  [[nodiscard]] bool takes(Choice& choice) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle_.get(), &choice.product, &choice.a, &choice.b, &choice.d,
                                   &choice.d, &choice.algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<std::size_t>(workspace_.size);
  }

  [[nodiscard]] cublasStatus_t multiply(Choice& choice, const Call& call) const {
    const float one = 1, beta = call.key.adds ? 1 : 0;
    return cublasLtMatmul(handle_.get(), &choice.product, &one, call.right, &choice.a, call.left,
                          &choice.b, &beta, call.addend, &choice.d, call.d, &choice.d,
                          &choice.algorithm, workspace_.data,
                          static_cast<std::size_t>(workspace_.size), call.stream.get());
  }

  /// What `like` runs; chosen now if it has not come up, and where algorithms are timed by `call`.
  [[nodiscard]] Choice& choice_of(const GemmKey& like, const Call& call) {
    const auto [found, is_new] = choices_.try_emplace(like);
    if (is_new) {
      try {
        choose(found->second, like, call);
      } catch (...) {
        choices_.erase(found);
        throw;
      }
    }
    return found->second;
  }

  void choose(Choice& choice, const GemmKey& like, const Call& call) {
    const auto proposed = propose(choice, handle_.get(), like, workspace_.size, multiprocessors_,
                                  timed_ == nullptr ? 1 : timed_->candidates());
    std::size_t chosen = 0;
    if (timed_ != nullptr) {
      const auto kept = timed_->find(multiprocessors_, like);
      if (kept) {
        chosen = *kept;
      } else if (timed_->times()) {
        chosen = timed_->keep(multiprocessors_, like, fastest(choice, call, proposed));
      }
      require(timed_->times() || chosen < proposed.size(),
              "gemm: the choice for the " + text_of(like) + " must be one of the " +
                  std::to_string(proposed.size()) + " that cuBLASLt proposes, counted from 0",
              static_cast<std::int64_t>(chosen));
    }
    // Another device of the process may have been proposed more.
    choice.algorithm = proposed[std::min(chosen, proposed.size() - 1)].algo;
  }

  [[nodiscard]] std::size_t fastest(
      Choice& choice, Call call,
      const std::vector<cublasLtMatmulHeuristicResult_t>& proposed) const {
    std::optional<DeviceBuffer<std::byte>> room;
    try {
      room.emplace(result_bytes(call.key));
    } catch (const CudaError&) {
      return 0;  // the first, as without times
    }
    // What is added up where it stands must be added once, so results of timings go elsewhere.
    call.d = room->span().data;
    if (!call.key.adds) call.addend = call.d;
    lay_out(choice, call.key);
    std::vector<double> times;
    for (const cublasLtMatmulHeuristicResult_t& candidate : proposed) {
      times.push_back(std::numeric_limits<double>::infinity());
      if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
      choice.algorithm = candidate.algo;
      if (!takes(choice)) continue;
      if (const auto time = median_time(choice, call)) times.back() = *time;
    }
    return fastest_candidate(times);
  }

  /// Milliseconds; nothing where the algorithm does not take the call.
  [[nodiscard]] std::optional<double> median_time(Choice& choice, const Call& call) const {
    std::array<Event, kTimings + 1> ends{Event(EventUse::time), Event(EventUse::time),
                                         Event(EventUse::time), Event(EventUse::time),
                                         Event(EventUse::time), Event(EventUse::time)};
    for (Event& end : ends) {
      if (multiply(choice, call) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
      end.record(call.stream);
    }
    if (!wait_until(ends.back(), std::chrono::steady_clock::now() + kHangTimeouts)) {
      throw CudaError("gemm: the " + text_of(call.key) + " was not timed within two minutes");
    }
    std::array<double, kTimings> times{};
    for (std::size_t i = 0; i < kTimings; ++i) {
      times[i] = static_cast<double>(ends[i + 1].milliseconds_since(ends[i]));
    }
    std::ranges::nth_element(times, times.begin() + kTimings / 2);
    return times[kTimings / 2];
  }

  Handle handle_;
  DeviceSpan<std::byte> workspace_;
  int multiprocessors_;
  GemmChoices* timed_;
  std::map<GemmKey, Choice> choices_;
};

}  // namespace

std::unique_ptr<Products> make_products(DeviceSpan<std::byte> workspace, int multiprocessors,
                                        GemmChoices* timed) {
  return std::make_unique<CublasProducts>(workspace, multiprocessors, timed);
}

}  // namespace slimpack::cuda::detail

namespace slimpack::cuda {

std::int64_t gemm_library_version() {
  return static_cast<std::int64_t>(cublasLtGetVersion());
}

}  // namespace slimpack::cuda
