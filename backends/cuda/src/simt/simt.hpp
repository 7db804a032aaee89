// SPDX-License-Identifier: Apache-2.0
// The instructions that kernels are written in. Compiled by nvcc they are the device's; by a host
// compiler those of an emulator (emulator.hpp) that runs the same kernels on the CPU.
#pragma once

#if defined(__CUDACC__)
#include "simt/device.cuh"
#else
#include "simt/emulated.hpp"
#endif
