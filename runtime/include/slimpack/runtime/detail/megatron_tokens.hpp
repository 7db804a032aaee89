// SPDX-License-Identifier: Apache-2.0
// The tokens of a Megatron indexed dataset: the pair of an index (`.idx`) and its data (`.bin`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/idx.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::runtime {

/// `path` without the ending `.idx` or `.bin`, if it has one of them.
[[nodiscard]] inline std::string megatron_prefix(std::string_view path) {
  if (path.ends_with(".idx") || path.ends_with(".bin")) path.remove_suffix(4);
  return std::string(path);
}

/// Opens PREFIX.idx and PREFIX.bin, given by the prefix or by the name of either file. Both are
/// mapped, so that data larger than the memory can be read; a document's tokens are those of its
/// sequences, one after the other. Throws InvalidInput: either file cannot be opened, a fault in
/// the index, floating-point tokens, a sequence that is not within the data. O(sequences).
[[nodiscard]] inline TokenSource open_megatron_tokens(const std::string& path) {
  const std::string prefix = megatron_prefix(path);
  const std::string index_path = prefix + ".idx";
  const FileBytes index_file = FileBytes::open(index_path);
  const MegatronIndex index(index_file.bytes(), index_path);
  if (!detail::is_whole(index.type())) {
    refuse_byte(index_path, 17, "tokens must be integers (dtype code 1 .. 5 or 8)",
                std::to_string(static_cast<int>(index.type())));
  }
  TokenStore store;
  store.name = prefix + ".bin";
  store.blocks.push_back({index.type(), FileBytes::open(store.name)});
  store.runs.reserve(index.sequences());
  store.first_run.reserve(index.documents() + 1);
  for (std::size_t document = 0; document < index.documents(); ++document) {
    const std::size_t end = index.first_sequence(document + 1);
    for (std::size_t sequence = index.first_sequence(document); sequence < end; ++sequence) {
      store.runs.push_back(
          {0, static_cast<std::int32_t>(index.length(sequence).value), index.pointer(sequence)});
    }
    store.end_document();
  }
  return TokenSource(std::move(store));
}

}  // namespace slimpack::runtime
