// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/detail/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

namespace {

/// A header apart from where it ends, and the data's bytes.
struct File {
  runtime::SafetensorsHeader header;
  std::string data;
  std::vector<double> values;  ///< of all tensors that can be read
  friend bool operator==(const File& a, const File& b) {
    return a.header == b.header && a.data == b.data;
  }
};

File read_tensors(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  File file{runtime::parse_safetensors(bytes, "fuzz"), {}, {}};
  const auto data_begin = static_cast<std::size_t>(file.header.data_begin);
  file.data = text.substr(data_begin);
  std::int64_t end = 0;
  for (const runtime::TensorEntry& tensor : file.header.tensors) {
    fuzz::expect(tensor.begin == end && tensor.bytes >= 0, "tensors follow each other");
    end += tensor.bytes;
    for (const runtime::ElementType type :
         {runtime::ElementType::f64, runtime::ElementType::f32, runtime::ElementType::f16,
          runtime::ElementType::bf16}) {
      if (tensor.type != runtime::to_string(type)) continue;
      fuzz::expect(tensor.elements() * runtime::element_bytes(type) == tensor.bytes,
                   "a size for the shape");
      file.values.resize(static_cast<std::size_t>(tensor.elements()));
      runtime::load_elements(std::span(file.values),
                             bytes.subspan(data_begin + static_cast<std::size_t>(tensor.begin),
                                           static_cast<std::size_t>(tensor.bytes)),
                             type);
    }
  }
  fuzz::expect(static_cast<std::size_t>(end) == file.data.size(), "the tensors fill the file");
  file.header.data_begin = 0;
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(data, size, read_tensors, [](const File& file) {
    return runtime::safetensors_header(file.header) + file.data;
  });
}
