// SPDX-License-Identifier: Apache-2.0
// Document lengths from a file of any supported form, told by its name.
#pragma once

#include <string>
#include <string_view>

#include "slimpack/io/detail/jsonl_lengths.hpp"
#include "slimpack/io/detail/npy_lengths.hpp"
#include "slimpack/io/idx.hpp"
#include "slimpack/io/text_lengths.hpp"

namespace slimpack {

/// `.idx` a Megatron indexed dataset, `.npy` a NumPy array, `.jsonl` JSON lines, any other name
/// text, `-` text from standard input. Throws InvalidInput.
[[nodiscard]] inline LengthSet read_lengths(const std::string& path) {
  const std::string_view name = path;
  if (name.ends_with(".idx")) return read_idx_lengths(path);
  if (name.ends_with(".npy")) return read_npy_lengths(path);
  if (name.ends_with(".jsonl")) return read_jsonl_lengths(path);
  return read_text_lengths(path);
}

}  // namespace slimpack
