// SPDX-License-Identifier: Apache-2.0
// A place where a test hears of every simulation, whoever starts it.
#pragma once

/// Called where a plan is priced (`prices`, 1), where devices get their orders by simulation
/// (`orders`, how many devices) and where a plan is simulated (`figures`, how many devices). A test
/// that counts from outside defines the macro before its first include; otherwise it is nothing.
#ifndef SLIMPACK_ON_SIMULATION
#define SLIMPACK_ON_SIMULATION(kind, amount) static_cast<void>(0)
#endif
