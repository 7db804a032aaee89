// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt, and of our own device memory, that matrix products use, in the memory of
// the host: the tests of a device run here too, and every call is held to what cuBLASLt documents.
#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "cuda/host/host_blas.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

namespace {

using slimpack::cuda::Bf16;
using slimpack::cuda::to_bf16;
using slimpack::cuda::to_float;

/// What a descriptor's memory holds, by a name that a stale or moved descriptor does not have.
template <class Opaque>
struct Descriptor {
  const void* self;
};
struct Product : Descriptor<cublasLtMatmulDescOpaque_t> {
  std::int32_t transpose_a, transpose_b, multiprocessors;
};
struct Layout : Descriptor<cublasLtMatrixLayoutOpaque_t> {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t distance;
};
struct Preference : Descriptor<cublasLtMatmulPreferenceOpaque_t> {
  std::uint64_t workspace;
  std::uint32_t reductions, alignment[4];
};
static_assert(sizeof(Product) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

template <class Kept, class Opaque>
Kept kept(const Opaque* opaque) {
  Kept value;
  std::memcpy(&value, opaque, sizeof(value));
  return value;
}
template <class Kept, class Opaque>
void keep(Opaque* opaque, Kept value) {
  value.self = opaque;
  std::memcpy(opaque, &value, sizeof(value));
}
template <class Kept, class Opaque>
bool stands(const Opaque* opaque) {
  return kept<Kept>(opaque).self == opaque;
}

constexpr std::size_t kWorkspace = 512;

/// Where an algorithm has its place among those that were proposed, and the columns and the inner
/// size of the product that it was proposed for.
constexpr std::size_t kPlace = 4, kColumns = 5, kInner = 6;

/// The milliseconds that a product took, by the place of its algorithm: the third is the fastest,
/// the second refuses to run.
constexpr float kTimes[] = {8, 1, 2, 5};
float passed_ms = 0;

double element(const void* data, const Layout& layout, std::uint64_t row, std::uint64_t column) {
  const auto i = static_cast<std::size_t>(row) +
                 static_cast<std::size_t>(column) * static_cast<std::size_t>(layout.distance);
  if (layout.type == CUDA_R_32F) return static_cast<double>(static_cast<const float*>(data)[i]);
  return static_cast<double>(to_float(static_cast<const Bf16*>(data)[i]));
}

/// Columns one after the other, transposed or not: k runs along them.
std::vector<double> factor(const void* data, const Layout& layout, bool along_columns) {
  std::vector<double> values;
  const std::uint64_t outer = along_columns ? layout.columns : layout.rows;
  const std::uint64_t inner = along_columns ? layout.rows : layout.columns;
  values.reserve(static_cast<std::size_t>(outer * inner));
  for (std::uint64_t i = 0; i < outer; ++i) {
    for (std::uint64_t k = 0; k < inner; ++k) {
      values.push_back(along_columns ? element(data, layout, k, i) : element(data, layout, i, k));
    }
  }
  return values;
}

/// What a product sums over, by its left factor.
std::uint64_t inner_of(const Product& product, const Layout& a) {
  return product.transpose_a == CUBLAS_OP_T ? a.rows : a.columns;
}

bool aligned(const void* data, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

}  // namespace

namespace slimpack::test {
std::array<std::int64_t, 4> products_of_algorithm{};
std::size_t most_allocated = std::numeric_limits<std::size_t>::max();
bool takes_other_rows = true;
}  // namespace slimpack::test

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = static_cast<cublasLtHandle_t>(std::malloc(1));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  std::free(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "refused by the host's stand-in";
}
std::size_t cublasLtGetVersion() {
  return 1;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, std::size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  keep(product, Product{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  Product held = kept<Product>(product);
  std::int32_t* const field = attribute == CUBLASLT_MATMUL_DESC_TRANSA   ? &held.transpose_a
                              : attribute == CUBLASLT_MATMUL_DESC_TRANSB ? &held.transpose_b
                              : attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET
                                  ? &held.multiprocessors
                                  : nullptr;
  if (field == nullptr || size != sizeof(*field)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field, value, size);
  keep(product, held);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t,
                                                 cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t columns, std::int64_t distance) {
  if (rows < 1 || columns < 1 || distance < static_cast<std::int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Layout held{};
  held.type = type;
  held.rows = rows;
  held.columns = columns;
  held.distance = distance;
  keep(layout, held);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     std::size_t) {
  Preference held{};
  held.reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::ranges::fill(held.alignment, 256U);
  keep(preference, held);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  Preference held = kept<Preference>(preference);
  const auto take = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    keep(preference, held);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(held.workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(held.reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(held.alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(held.alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(held.alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(held.alignment[3]);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

/// The algorithm it finds remembers the alignment that it was promised.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  const Preference held = kept<Preference>(preference);
  *found = 0;
  if (!stands<Product>(product) || !stands<Layout>(a) || !stands<Layout>(b) || !stands<Layout>(c) ||
      !stands<Layout>(d) || !stands<Preference>(preference) ||
      (held.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *found = std::min<int>(most, std::size(kTimes));
  for (int i = 0; i < *found; ++i) {
    cublasLtMatmulHeuristicResult_t& result = results[i];
    result = {};
    result.state = CUBLAS_STATUS_SUCCESS;
    result.workspaceSize = std::min<std::size_t>(held.workspace, kWorkspace);
    std::ranges::copy(held.alignment, result.algo.data);
    result.algo.data[kPlace] = static_cast<std::uint64_t>(i);
    result.algo.data[kColumns] = kept<Layout>(d).columns;
    result.algo.data[kInner] = inner_of(kept<Product>(product), kept<Layout>(a));
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  const bool same = kept<Layout>(d).columns == algorithm->data[kColumns] &&
                    inner_of(kept<Product>(product), kept<Layout>(a)) == algorithm->data[kInner];
  return same || slimpack::test::takes_other_rows ? CUBLAS_STATUS_SUCCESS
                                                  : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t) {
  if (!stands<Product>(product) || !stands<Layout>(a_layout) || !stands<Layout>(b_layout) ||
      !stands<Layout>(c_layout) || !stands<Layout>(d_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* const matrices[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i) {
    if (algorithm->data[i] == 0 || !aligned(matrices[i], algorithm->data[i])) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const std::uint64_t place = algorithm->data[kPlace];
  if (place == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!slimpack::test::takes_other_rows &&
      (kept<Layout>(d_layout).columns != algorithm->data[kColumns] ||
       inner_of(kept<Product>(product), kept<Layout>(a_layout)) != algorithm->data[kInner])) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  slimpack::test::products_of_algorithm[place] += 1;
  passed_ms += kTimes[place];
  const Product call = kept<Product>(product);
  const auto left = kept<Layout>(a_layout), right = kept<Layout>(b_layout);
  const auto from = kept<Layout>(c_layout), to = kept<Layout>(d_layout);
  const bool a_turned = call.transpose_a == CUBLAS_OP_T, b_turned = call.transpose_b == CUBLAS_OP_T;
  const std::uint64_t m = a_turned ? left.columns : left.rows;
  const std::uint64_t inner = a_turned ? left.rows : left.columns;
  const std::uint64_t n = b_turned ? right.rows : right.columns;
  if (inner != (b_turned ? right.columns : right.rows) || to.rows != m || to.columns != n ||
      from.rows != m || from.columns != n || from.type != to.type || left.type != CUDA_R_16BF ||
      right.type != CUDA_R_16BF) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (workspace_bytes > 0) std::memset(workspace, 0x7f, workspace_bytes);  // that it may be used
  const double scale = static_cast<double>(*static_cast<const float*>(alpha));
  const double share = static_cast<double>(*static_cast<const float*>(beta));
  const std::vector<double> a_values = factor(a, left, a_turned);
  const std::vector<double> b_values = factor(b, right, !b_turned);
  for (std::uint64_t column = 0; column < n; ++column) {
    for (std::uint64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (std::uint64_t k = 0; k < inner; ++k) {
        sum += a_values[static_cast<std::size_t>(row * inner + k)] *
               b_values[static_cast<std::size_t>(column * inner + k)];
      }
      sum *= scale;
      if (share != 0) sum += share * element(c, from, row, column);
      const auto i = static_cast<std::size_t>(row) +
                     static_cast<std::size_t>(column) * static_cast<std::size_t>(to.distance);
      if (to.type == CUDA_R_32F) {
        static_cast<float*>(d)[i] = static_cast<float>(sum);
      } else {
        static_cast<Bf16*>(d)[i] = to_bf16(static_cast<float>(sum));
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace slimpack::cuda {

void StreamView::synchronize() const {}

// An event keeps when it was recorded in the stand-in's time.
Event::Event(EventUse) : event_(reinterpret_cast<CUevent_st*>(new float(0))) {}
Event::~Event() {
  delete reinterpret_cast<float*>(event_);
}
void Event::record(StreamView) {
  *reinterpret_cast<float*>(event_) = passed_ms;
}
float Event::milliseconds_since(const Event& begin) const {
  return *reinterpret_cast<float*>(event_) - *reinterpret_cast<float*>(begin.event_);
}
bool wait_until(const Event&, std::chrono::steady_clock::time_point) {
  return true;
}

Stream::Stream(StreamPriority) {}
Stream::~Stream() = default;

namespace detail {
void* device_allocate(std::size_t bytes) {
  if (bytes > test::most_allocated) throw CudaError("no room");
  constexpr std::size_t kAlignment = 256;
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}
void device_free(void* memory) noexcept {
  std::free(memory);
}
void copy_to_device(void* to, const void* from, std::size_t bytes, StreamView) {
  std::memcpy(to, from, bytes);
}
void copy_to_host(void* to, const void* from, std::size_t bytes, StreamView) {
  std::memcpy(to, from, bytes);
}
void fill_bytes(void* to, int value, std::size_t bytes, StreamView) {
  std::memset(to, value, bytes);
}
}  // namespace detail

DeviceProperties device_properties() {
  return {"the host", 9, 0, 132, 0, 0};
}

}  // namespace slimpack::cuda
