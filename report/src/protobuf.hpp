// SPDX-License-Identifier: Apache-2.0
// The wire format of Protocol Buffers, as far as flat messages need it: varints and pieces with a
// length before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace slimpack::report::detail {

/// The bytes of one message, field by field in the order of the calls.
class ProtobufMessage {
 public:
  /// A field of an integer, enumeration or bool type. Zero is written too; leave the call out
  /// where the type's default need not be there.
  ProtobufMessage& number(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3U);
    varint(value);
    return *this;
  }
  /// A field of type string or bytes, or a message that is a field of this one.
  ProtobufMessage& piece(std::uint32_t field, std::string_view bytes) {
    varint(std::uint64_t{field} << 3U | 2U);
    append_with_length(bytes);
    return *this;
  }
  /// A repeated field of integers in one piece; nothing where there are none.
  ProtobufMessage& numbers(std::uint32_t field, std::span<const std::uint32_t> values) {
    if (values.empty()) return *this;
    ProtobufMessage packed;
    for (const std::uint32_t value : values) packed.varint(value);
    return piece(field, packed.bytes());
  }

  /// Appends bytes behind their length as a varint: how messages follow each other in a stream.
  ProtobufMessage& append_with_length(std::string_view bytes) {
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }

  /// What has been written so far.
  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) bytes_ += byte(value | 0x80U);
    bytes_ += byte(value);
  }
  [[nodiscard]] static char byte(std::uint64_t value) noexcept {
    return static_cast<char>(static_cast<unsigned char>(value & 0xFFU));
  }

  std::string bytes_;
};

}  // namespace slimpack::report::detail
