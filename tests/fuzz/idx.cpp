// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/idx.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

namespace {

/// An index with all that it says, so that it can be written again.
struct Index {
  int type = 0;
  std::vector<std::int64_t> lengths, pointers, documents;
  std::vector<int> modes;
  LengthSet set;
  friend bool operator==(const Index&, const Index&) = default;
};

Index read_index(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  const MegatronIndex view(bytes, "fuzz");
  Index index;
  index.type = static_cast<int>(view.type());
  for (std::size_t i = 0; i < view.sequences(); ++i) {
    index.lengths.push_back(view.length(i).value);
    index.pointers.push_back(view.pointer(i));
    if (view.has_modes()) index.modes.push_back(view.mode(i));
  }
  for (std::size_t i = 0; i <= view.documents(); ++i) {
    index.documents.push_back(static_cast<std::int64_t>(view.first_sequence(i)));
  }
  index.set = parse_idx_lengths(bytes, "fuzz");
  fuzz::expect(index.set.documents.size() == view.documents(), "a length for each document");
  return index;
}

void append(std::string& text, std::int64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) {
    text +=
        static_cast<char>(static_cast<unsigned char>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
}

std::string write_index(const Index& index) {
  std::string text("MMIDIDX\0\0", 9);
  append(text, 1, 8);
  append(text, index.type, 1);
  append(text, static_cast<std::int64_t>(index.lengths.size()), 8);
  append(text, static_cast<std::int64_t>(index.documents.size()), 8);
  for (const std::int64_t length : index.lengths) append(text, length, 4);
  for (const std::int64_t pointer : index.pointers) append(text, pointer, 8);
  for (const std::int64_t document : index.documents) append(text, document, 8);
  for (const int mode : index.modes) append(text, mode, 1);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(data, size, read_index, write_index);
}
