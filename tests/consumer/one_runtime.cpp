// SPDX-License-Identifier: Apache-2.0
// The runtime and its backend for the CPU, as one_header.cpp shows planning.
#include <iostream>
#include <slimpack/runtime/learning_rate.hpp>
#include <slimpack_cpu/arena.hpp>
int main() {
  const slimpack::runtime::LearningRate rate{.peak = 1e-3, .warmup = 10, .steps = 100};
  std::cout << "a rate of " << slimpack::runtime::learning_rate(rate, 20) << '\n';
}
