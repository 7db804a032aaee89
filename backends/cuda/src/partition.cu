// SPDX-License-Identifier: Apache-2.0
// Parts of a card by the driver's green contexts, which the runtime of CUDA 13.0 does not have.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <utility>

#include "check.hpp"
#include "ops/capability.hpp"
#include "ops/launch.hpp"
#include "ops/partition_size.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {
namespace {

/// A function of the driver, found at run time: a program must start without a driver too.
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  SLIMPACK_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw CudaError(std::string("the driver has no ") + name +
                    ": partitions of a card need one of CUDA 12.4 or newer");
  }
  return reinterpret_cast<Function>(function);
}

struct Driver {
  template <class Function>
  static Function find(const char* name) {
    return driver_function<Function>(name, 12040);
  }
  PFN_cuGetErrorString_v6000 error_string = find<PFN_cuGetErrorString_v6000>("cuGetErrorString");
  PFN_cuDeviceGet_v2000 device = find<PFN_cuDeviceGet_v2000>("cuDeviceGet");
  PFN_cuCtxGetCurrent_v4000 get_current = find<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent");
  PFN_cuCtxSetCurrent_v4000 set_current = find<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent");
  PFN_cuDeviceGetDevResource_v12040 resource =
      find<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource");
  PFN_cuDevSmResourceSplitByCount_v12040 split =
      find<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount");
  PFN_cuDevResourceGenerateDesc_v12040 describe =
      find<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc");
  PFN_cuGreenCtxCreate_v12040 create = find<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate");
  PFN_cuGreenCtxDestroy_v12040 destroy = find<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy");
  PFN_cuCtxFromGreenCtx_v12040 context = find<PFN_cuCtxFromGreenCtx_v12040>("cuCtxFromGreenCtx");

  [[nodiscard]] std::string text(CUresult result) const {
    const char* words = nullptr;
    if (error_string(result, &words) == CUDA_SUCCESS && words != nullptr) return words;
    return "error " + std::to_string(static_cast<int>(result));
  }
  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) throw CudaError(std::string(call) + " failed: " + text(result));
  }
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

}  // namespace

struct Partition::State {
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  int multiprocessors = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (green == nullptr) return;
    CUcontext current = nullptr;
    if (driver().get_current(&current) == CUDA_SUCCESS && current == context) {
      (void)driver().set_current(nullptr);  // the runtime's next call takes the whole device
      detail::forget_shared_memory();
      detail::set_partition_size(0);
    }
    const CUresult result = driver().destroy(green);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) {
      std::fprintf(stderr, "slimpack: cuGreenCtxDestroy failed: %s\n",
                   driver().text(result).c_str());
    }
  }
};

Partition::Partition(std::unique_ptr<State> state) : state_(std::move(state)) {}
Partition::Partition(Partition&&) noexcept = default;
Partition& Partition::operator=(Partition&&) noexcept = default;
Partition::~Partition() = default;
int Partition::multiprocessors() const noexcept {
  return state_->multiprocessors;
}
void Partition::make_current() const {
  // Streams made while a green context is current belong to it.
  driver().check(driver().set_current(state_->context), "cuCtxSetCurrent");
  detail::forget_shared_memory();
  detail::set_partition_size(state_->multiprocessors);
}

std::vector<Partition> split_device(int count, int multiprocessors) {
  const Driver& call = driver();
  int number = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&number));
  SLIMPACK_CUDA_CHECK(cudaFree(nullptr));  // green contexts share the primary context, made here
  CUdevice device = 0;
  call.check(call.device(&device, number), "cuDeviceGet");
  CUdevResource whole{};
  call.check(call.resource(device, &whole, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  // Compute capability 9.0 and newer gives eights, older devices fours.
  cudaDeviceProp found{};
  SLIMPACK_CUDA_CHECK(cudaGetDeviceProperties(&found, number));
  const int granularity = found.major >= 9 ? 8 : 4;
  const int each = detail::partition_size(
      count, multiprocessors, static_cast<int>(whole.sm.smCount), granularity, granularity);
  std::vector<CUdevResource> groups(static_cast<std::size_t>(count));
  auto made = static_cast<unsigned>(count);
  CUdevResource rest{};
  call.check(call.split(groups.data(), &made, &whole, &rest, 0, static_cast<unsigned>(each)),
             "cuDevSmResourceSplitByCount");
  require(made == static_cast<unsigned>(count),
          "split_device: the device has too few multiprocessors for so many partitions",
          static_cast<std::int64_t>(whole.sm.smCount));
  std::vector<Partition> parts;
  for (CUdevResource& group : groups) {
    auto state = std::make_unique<Partition::State>();
    CUdevResourceDesc description{};
    call.check(call.describe(&description, &group, 1), "cuDevResourceGenerateDesc");
    call.check(call.create(&state->green, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
               "cuGreenCtxCreate");
    call.check(call.context(&state->context, state->green), "cuCtxFromGreenCtx");
    state->multiprocessors = static_cast<int>(group.sm.smCount);
    parts.push_back(Partition(std::move(state)));
  }
  return parts;
}

}  // namespace slimpack::cuda
