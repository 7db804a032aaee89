// SPDX-License-Identifier: Apache-2.0
// The safetensors format: named tensors behind a JSON header, read whole or by range.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/runtime/element_type.hpp"

namespace slimpack::runtime {

/// A tensor of a file. `type` is the format's name of the element type; `begin` counts from the
/// first byte after the header.
struct TensorEntry {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;  ///< empty for a single number
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;

  /// Product of the shape.
  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

/// What a header says. Tensors stand in the order of their data, which they fill without gap.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  ///< byte of the file at which data begin
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;

  /// Bytes of all tensors.
  [[nodiscard]] std::int64_t data_bytes() const noexcept {
    return tensors.empty() ? 0 : tensors.back().begin + tensors.back().bytes;
  }
};

/// Reads and checks the header of a whole file: its length, JSON, types, shapes, and that the
/// tensors fill the rest of the file one after the other. Throws InvalidInput naming file, tensor,
/// rule and value. O(bytes of the header).
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                                  const std::string& name);

/// The first bytes of a file with these tensors, data following, which begin at a multiple of 8.
/// `begin` and `bytes` of the entries are those of consecutive tensors. O(tensors).
[[nodiscard]] std::string safetensors_header(const SafetensorsHeader& header);

namespace detail {

inline constexpr std::int64_t kLongestHeader = 100'000'000;

struct StoredType {
  std::string_view name;
  std::int64_t bytes;
};
inline constexpr std::array<StoredType, 16> kStoredTypes{{{"F64", 8},
                                                          {"F32", 4},
                                                          {"F16", 2},
                                                          {"BF16", 2},
                                                          {"F8_E4M3", 1},
                                                          {"F8_E5M2", 1},
                                                          {"F8_E8M0", 1},
                                                          {"BOOL", 1},
                                                          {"U8", 1},
                                                          {"I8", 1},
                                                          {"U16", 2},
                                                          {"I16", 2},
                                                          {"U32", 4},
                                                          {"I32", 4},
                                                          {"U64", 8},
                                                          {"I64", 8}}};

/// Bytes of an element. Throws InvalidInput for a type that the format does not name.
[[nodiscard]] inline std::int64_t stored_bytes(const JsonReader& dtype) {
  for (const StoredType& type : kStoredTypes) {
    if (dtype.text() == type.name) return type.bytes;
  }
  dtype.refuse("must be a type of whole bytes that the format names");
}

[[nodiscard]] inline TensorEntry read_entry(const std::string& name, const JsonReader& value) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  TensorEntry entry;
  entry.name = name;
  const JsonReader dtype = value.at("dtype");
  entry.type = dtype.text();
  std::int64_t bytes = stored_bytes(dtype);
  const JsonReader shape = value.at("shape");
  bool empty = false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t size = shape.item(i).integer(0, kMost);
    entry.shape.push_back(size);
    empty = empty || size == 0;
    if (size != 0 && bytes > kMost / size) shape.fail("the tensor must have fewer than 2^63 bytes");
    bytes *= size == 0 ? 1 : size;
  }
  entry.bytes = empty ? 0 : bytes;
  const JsonReader offsets = value.at("data_offsets");
  if (offsets.size() != 2) offsets.refuse("must be the first byte and the one after the last");
  entry.begin = offsets.item(0).integer(0, kMost);
  const std::int64_t end = offsets.item(1).integer(0, kMost);
  if (end < entry.begin || end - entry.begin != entry.bytes) {
    offsets.fail("dtype and shape need " + std::to_string(entry.bytes) + " bytes, found " +
                 std::to_string(entry.begin) + " .. " + std::to_string(end));
  }
  return entry;
}

/// The tensors in the order of their data, without overlap or gap, up to the end of the file.
inline void check_places(std::vector<TensorEntry>& tensors, std::int64_t rest,
                         const std::string& name) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  std::int64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != end) {
      throw InvalidInput(name + ": " + tensor.name + ": its data must begin where those before " +
                         "end, at " + std::to_string(end) + ", found " +
                         std::to_string(tensor.begin));
    }
    if (tensor.bytes > rest - end) {
      throw InvalidInput(name + ": " + tensor.name + ": its data must end within the " +
                         std::to_string(rest) + " bytes after the header, found " +
                         std::to_string(tensor.begin) + " .. " +
                         std::to_string(tensor.begin + tensor.bytes));
    }
    end += tensor.bytes;
  }
  if (end != rest) {
    throw InvalidInput(name + ": the tensors must fill the " + std::to_string(rest) +
                       " bytes after the header, found " + std::to_string(end));
  }
}

}  // namespace detail

inline SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                           const std::string& name) {
  constexpr std::size_t kStart = 8;
  if (file.size() < kStart) {
    refuse_byte(name, file.size(), "truncated: a safetensors file begins with 8 bytes",
                std::to_string(file.size()));
  }
  const auto size = load_little<std::uint64_t>(file, 0);
  if (size > static_cast<std::uint64_t>(detail::kLongestHeader)) {
    refuse_byte(name, 0,
                "the header must have at most " + std::to_string(detail::kLongestHeader) + " bytes",
                std::to_string(size));
  }
  if (size > file.size() - kStart) {
    refuse_byte(name, 0, "truncated: the header must end within the file",
                std::to_string(size) + " of " + std::to_string(file.size() - kStart));
  }
  const auto length = static_cast<std::size_t>(size);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kStart, length);
  if (!text.starts_with('{')) {
    refuse_byte(name, kStart, "the header must begin with '{'", in_quotes(text.substr(0, 1)));
  }
  const nlohmann::json document = parse_json(text, name);
  const JsonReader reader(document, name);
  SafetensorsHeader header;
  header.data_begin = static_cast<std::int64_t>(kStart + length);
  for (const auto& [key, unused] : document.items()) {
    static_cast<void>(unused);
    const JsonReader value = reader.at(key);
    if (key == "__metadata__") {
      for (const auto& [word, inner] : document.at(key).items()) {
        static_cast<void>(inner);
        header.metadata.emplace(word, value.at(word).text());
      }
    } else {
      header.tensors.push_back(detail::read_entry(key, value));
    }
  }
  detail::check_places(header.tensors, static_cast<std::int64_t>(file.size() - kStart - length),
                       name);
  return header;
}

inline std::string safetensors_header(const SafetensorsHeader& header) {
  JsonWriter out;
  out.begin_object(JsonLayout::flat);
  if (!header.metadata.empty()) {
    out.key("__metadata__").begin_object();
    for (const auto& [key, value] : header.metadata) out.key(key).text(value);
    out.end_object();
  }
  for (const TensorEntry& tensor : header.tensors) {
    out.key(tensor.name).begin_object().key("dtype").text(tensor.type).key("shape").begin_array();
    for (const std::int64_t size : tensor.shape) out.number(size);
    out.end_array().key("data_offsets").begin_array().number(tensor.begin);
    out.number(tensor.begin + tensor.bytes).end_array().end_object();
  }
  std::string text = out.end_object().take();
  while (text.size() % 8 != 0) text += ' ';
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(static_cast<unsigned char>(std::uint64_t{text.size()} >> shift));
  }
  return bytes + text;
}

/// A file of tensors, mapped into memory. Thread-safe once open.
class SafetensorsFile {
 public:
  /// Throws InvalidInput as parse_safetensors does, and where the file cannot be read.
  [[nodiscard]] static SafetensorsFile open(const std::string& path) {
    return SafetensorsFile(path);
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const SafetensorsHeader& header() const noexcept { return header_; }

  /// The tensor of that name, if the file has it. O(log tensors).
  [[nodiscard]] const TensorEntry* find(std::string_view name) const {
    const auto place = by_name_.find(name);
    return place == by_name_.end() ? nullptr : &header_.tensors[place->second];
  }

  /// Tensor `name` if it has this shape and floating-point elements that can be read. Throws
  /// InvalidInput naming file, tensor, rule and what was found.
  const TensorEntry& require_tensor(std::string_view name,
                                    std::span<const std::int64_t> shape) const;

  /// Elements [first, first + values.size()) of a tensor, counted along its rows. Throws
  /// InvalidInput where there is no such tensor or range. O(values).
  template <StoredValue Value>
  void read(std::string_view name, std::int64_t first, std::span<Value> values) const;

 private:
  explicit SafetensorsFile(const std::string& path)
      : path_(path), file_(FileBytes::open(path)), header_(parse_safetensors(file_.bytes(), path)) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      by_name_.emplace(header_.tensors[i].name, i);
    }
  }
  [[nodiscard]] ElementType element_type(const TensorEntry& tensor) const {
    if (const auto type = from_string<ElementType>(tensor.type)) return *type;
    throw InvalidInput(path_ + ": " + tensor.name +
                       ": dtype must be F64, F32, F16 or BF16, found " + tensor.type);
  }
  [[nodiscard]] const TensorEntry& entry_of(std::string_view name) const {
    const TensorEntry* tensor = find(name);
    if (tensor == nullptr) {
      throw InvalidInput(path_ + ": the tensor '" + std::string(name) + "' is missing");
    }
    return *tensor;
  }

  std::string path_;
  FileBytes file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

namespace detail {

[[nodiscard]] inline std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

}  // namespace detail

inline const TensorEntry& SafetensorsFile::require_tensor(
    std::string_view name, std::span<const std::int64_t> shape) const {
  const TensorEntry& tensor = entry_of(name);
  static_cast<void>(element_type(tensor));
  if (!std::ranges::equal(tensor.shape, shape)) {
    throw InvalidInput(path_ + ": " + tensor.name + ": shape must be " + detail::shape_text(shape) +
                       ", found " + detail::shape_text(tensor.shape));
  }
  return tensor;
}

template <StoredValue Value>
void SafetensorsFile::read(std::string_view name, std::int64_t first,
                           std::span<Value> values) const {
  const TensorEntry& tensor = entry_of(name);
  const ElementType type = element_type(tensor);
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t elements = tensor.elements();
  if (first < 0 || first > elements || count > elements - first) {
    throw InvalidInput(path_ + ": " + tensor.name + ": elements " + std::to_string(first) + " .. " +
                       std::to_string(first + count) + " are not within its " +
                       std::to_string(elements));
  }
  const std::int64_t width = element_bytes(type);
  load_elements(values,
                file_.bytes().subspan(
                    static_cast<std::size_t>(header_.data_begin + tensor.begin + first * width),
                    static_cast<std::size_t>(count * width)),
                type);
}

}  // namespace slimpack::runtime
