// SPDX-License-Identifier: Apache-2.0
// Plain C++ that links the CUDA backend: says which device there is, or why there is none.
#include <iostream>
#include <slimpack_cuda/device.hpp>
#include <slimpack_cuda/gemm.hpp>
int main() {
  std::cout << "cuBLASLt " << slimpack::cuda::gemm_library_version() << ", ";
  if (const auto why = slimpack::cuda::why_no_device()) {
    std::cout << *why << '\n';
  } else {
    std::cout << slimpack::cuda::device_properties().name << '\n';
  }
}
