// SPDX-License-Identifier: Apache-2.0
// Document lengths from a NumPy array file (`.npy`, format 1.0 or 2.0).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/text_lengths.hpp"

namespace slimpack {

/// A one-dimensional array of little-endian integers of 4 or 8 bytes, signed or not; every element
/// is the length of a document. The order flag means nothing in one dimension.
/// Throws InvalidInput naming byte offset, rule and value found. O(elements).
[[nodiscard]] LengthSet parse_npy_lengths(std::span<const std::byte> bytes,
                                          const std::string& name);

/// The same for a file, mapped into memory.
[[nodiscard]] inline LengthSet read_npy_lengths(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return parse_npy_lengths(file.bytes(), path);
}

namespace detail {

/// Reads the header of an array file: a Python dictionary with the keys descr, fortran_order and
/// shape, as NumPy writes it.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, std::size_t offset, const std::string& name)
      : text_(text), offset_(offset), name_(name) {
    expect('{');
    while (!accept('}')) {
      read_entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_blanks();
    if (at_ != text_.size()) refuse("the header must end after its dictionary");
    if (!type_ || !fortran_ || !count_) {
      refuse("the header must have the keys 'descr', 'fortran_order' and 'shape'");
    }
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return *count_; }
  [[nodiscard]] bool is_signed() const noexcept { return type_->at(1) == 'i'; }
  [[nodiscard]] std::size_t width() const noexcept { return type_->at(2) == '4' ? 4 : 8; }

 private:
  void read_entry() {
    const std::string key = read_string();
    expect(':');
    if (key == "descr" && !type_) {
      type_ = read_string();
      if (*type_ != "<i4" && *type_ != "<i8" && *type_ != "<u4" && *type_ != "<u8") {
        refuse_byte(name_, offset_ + at_, "descr must be '<i4', '<i8', '<u4' or '<u8'",
                    in_quotes(*type_));
      }
    } else if (key == "fortran_order" && !fortran_) {
      fortran_ = read_boolean();
    } else if (key == "shape" && !count_) {
      expect('(');
      const std::uint64_t count = read_count();
      expect(',');
      if (!accept(')')) refuse("shape must have one dimension");
      count_ = count;
    } else {
      refuse_byte(name_, offset_ + at_,
                  "the header must have the keys 'descr', 'fortran_order' and 'shape' once each",
                  in_quotes(key));
    }
  }

  std::string read_string() {
    skip_blanks();
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse("the header must have a quoted string here");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) refuse("the header's string must end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return std::string(inside);
  }

  bool read_boolean() {
    skip_blanks();
    const std::string_view rest = text_.substr(at_);
    const bool yes = rest.starts_with("True");
    if (!yes && !rest.starts_with("False")) refuse("fortran_order must be True or False");
    at_ += yes ? 4 : 5;
    return yes;
  }

  std::uint64_t read_count() {
    skip_blanks();
    if (peek() == ')') refuse("shape must have one dimension");
    std::uint64_t value = 0;
    const std::size_t first = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      const auto digit = static_cast<std::uint64_t>(peek() - '0');
      if (value > (static_cast<std::uint64_t>(kLongestLength) - digit) / 10) {
        refuse("shape must fit in 63 bits");
      }
      value = 10 * value + digit;
    }
    if (at_ == first) refuse("shape must be a count");
    return value;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(char wanted) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) refuse(std::string("the header must have '") + wanted + "' here");
  }
  [[noreturn]] void refuse(std::string_view rule) const {
    refuse_byte(name_, offset_ + at_, rule, in_quotes(text_.substr(at_)));
  }

  std::string_view text_;
  std::size_t offset_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::optional<std::string> type_;
  std::optional<bool> fortran_;
  std::optional<std::uint64_t> count_;
};

/// Element at `offset` where it is positive and fits in 63 bits.
[[nodiscard]] inline std::optional<std::int64_t> npy_length(std::span<const std::byte> bytes,
                                                            std::size_t offset, bool is_signed,
                                                            std::size_t width) noexcept {
  std::int64_t value = 0;
  if (width == 4) {
    value = is_signed ? std::int64_t{load_little<std::int32_t>(bytes, offset)}
                      : std::int64_t{load_little<std::uint32_t>(bytes, offset)};
  } else {
    // An unsigned value beyond 63 bits turns negative, and is refused as such.
    value = load_little<std::int64_t>(bytes, offset);
  }
  if (value < 1) return std::nullopt;
  return value;
}

}  // namespace detail

inline LengthSet parse_npy_lengths(std::span<const std::byte> bytes, const std::string& name) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto need = [&](std::size_t size, std::string_view what) {
    if (bytes.size() < size) {
      refuse_byte(name, bytes.size(),
                  "truncated: " + std::string(what) + " ends at byte " + std::to_string(size),
                  std::to_string(bytes.size()) + " bytes");
    }
  };
  need(10, "the start of an .npy");
  if (!text.starts_with(kMagic)) {
    refuse_byte(name, 0, "the magic must be '\\x93NUMPY'",
                in_quotes(text.substr(0, kMagic.size())));
  }
  const auto major = std::to_integer<unsigned>(bytes[6]);
  const auto minor = std::to_integer<unsigned>(bytes[7]);
  if ((major != 1 && major != 2) || minor != 0) {
    refuse_byte(name, 6, "the format must be 1.0 or 2.0",
                std::to_string(major) + "." + std::to_string(minor));
  }
  const std::size_t header_at = major == 1 ? 10 : 12;
  need(header_at, "the start of an .npy");
  const std::size_t header_size =
      major == 1 ? load_little<std::uint16_t>(bytes, 8) : load_little<std::uint32_t>(bytes, 8);
  const std::size_t data_at = header_at + header_size;
  need(data_at, "the header");
  const detail::NpyHeader header(text.substr(header_at, header_size), header_at, name);
  const std::size_t width = header.width();
  const std::size_t rest = bytes.size() - data_at;
  if (rest % width != 0 || rest / width != header.count()) {
    refuse_byte(name, data_at,
                std::to_string(header.count()) + " elements of " + std::to_string(width) +
                    " bytes must end the file",
                std::to_string(rest) + " bytes");
  }

  LengthSet set{{}, name};
  set.documents.reserve(rest / width);
  std::int64_t total = 0;
  for (std::size_t i = data_at; i < bytes.size(); i += width) {
    const auto length = detail::npy_length(bytes, i, header.is_signed(), width);
    const auto raw = [&] {
      return header.is_signed() && width == 4 ? std::to_string(load_little<std::int32_t>(bytes, i))
             : width == 4                     ? std::to_string(load_little<std::uint32_t>(bytes, i))
             : header.is_signed()             ? std::to_string(load_little<std::int64_t>(bytes, i))
                                  : std::to_string(load_little<std::uint64_t>(bytes, i));
    };
    const std::string element = "element " + std::to_string((i - data_at) / width);
    if (!length) {
      refuse_byte(name, i, element + " must be in 1 .. 9223372036854775807", raw());
    }
    if (!append_length(set, *length, total)) {
      refuse_byte(name, i, "the sum of all lengths must fit in 63 bits",
                  raw() + " after " + std::to_string(total));
    }
  }
  require_some(set);
  return set;
}

}  // namespace slimpack
