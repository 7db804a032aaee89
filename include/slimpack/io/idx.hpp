// SPDX-License-Identifier: Apache-2.0
// The index of a Megatron indexed dataset (`.idx`): sequences, documents, and their lengths.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/text_lengths.hpp"

namespace slimpack {

/// How the tokens of the `.bin` beside an index are stored; the values are the file's codes.
enum class TokenType : std::uint8_t { u8 = 1, i8, i16, i32, i64, f64, f32, u16 };

/// Bytes of one token.
[[nodiscard]] constexpr std::int64_t token_bytes(TokenType type) noexcept {
  constexpr std::array<std::int64_t, 9> kBytes{0, 1, 1, 2, 4, 8, 8, 4, 2};
  return kBytes[static_cast<std::size_t>(type)];
}

/// A checked view of an index; it borrows the bytes. Every accessor is O(1) and copies unaligned
/// little-endian integers. The documents' sequences are [first_sequence(d), first_sequence(d + 1)),
/// never empty; every sequence has at least one token.
class MegatronIndex {
 public:
  /// Throws InvalidInput naming byte offset, rule and value found. O(sequences + documents).
  MegatronIndex(std::span<const std::byte> bytes, const std::string& name);

  /// How the tokens of the `.bin` are stored.
  [[nodiscard]] TokenType type() const noexcept { return type_; }
  /// Number of sequences of all documents.
  [[nodiscard]] std::size_t sequences() const noexcept { return sequences_; }
  /// Number of documents.
  [[nodiscard]] std::size_t documents() const noexcept { return indices_ - 1; }
  /// Whether the index gives each sequence a mode, as those of multimodal sets do.
  [[nodiscard]] bool has_modes() const noexcept { return modes_at_ != 0; }

  /// Tokens of a sequence.
  [[nodiscard]] Tokens length(std::size_t sequence) const noexcept {
    return {load_little<std::int32_t>(bytes_, kHeader + 4 * sequence)};
  }
  /// Where a sequence begins in the `.bin`, in bytes; unchecked, as the `.bin` is not read here.
  [[nodiscard]] std::int64_t pointer(std::size_t sequence) const noexcept {
    return load_little<std::int64_t>(bytes_, pointers_at_ + 8 * sequence);
  }
  /// First sequence of a document; `documents()` asks for the end of the last one.
  [[nodiscard]] std::size_t first_sequence(std::size_t document) const noexcept {
    return static_cast<std::size_t>(load_little<std::int64_t>(bytes_, indices_at_ + 8 * document));
  }
  /// Mode of a sequence in a multimodal set, 0 elsewhere.
  [[nodiscard]] std::int8_t mode(std::size_t sequence) const noexcept {
    return has_modes() ? load_little<std::int8_t>(bytes_, modes_at_ + sequence) : std::int8_t{0};
  }

 private:
  static constexpr std::size_t kHeader = 34;

  void check_header(const std::string& name);
  void check_sizes(const std::string& name);
  void check_sequences(const std::string& name) const;
  void check_documents(const std::string& name) const;

  std::span<const std::byte> bytes_;
  TokenType type_ = TokenType::u8;
  std::size_t sequences_ = 0;
  std::size_t indices_ = 0;  ///< documents + 1
  std::size_t pointers_at_ = 0, indices_at_ = 0, modes_at_ = 0;
};

/// The lengths of the documents of an index: sums over their sequences. Throws InvalidInput.
[[nodiscard]] inline LengthSet parse_idx_lengths(std::span<const std::byte> bytes,
                                                 const std::string& name) {
  const MegatronIndex dataset(bytes, name);
  LengthSet set{{}, name};
  set.documents.reserve(dataset.documents());
  std::size_t sequence = 0;
  for (std::size_t document = 0; document < dataset.documents(); ++document) {
    Tokens length;
    for (const std::size_t end = dataset.first_sequence(document + 1); sequence < end; ++sequence) {
      length += dataset.length(sequence);
    }
    set.documents.push_back(length);
  }
  return set;
}

/// The same for a file, mapped into memory.
[[nodiscard]] inline LengthSet read_idx_lengths(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return parse_idx_lengths(file.bytes(), path);
}

inline MegatronIndex::MegatronIndex(std::span<const std::byte> bytes, const std::string& name)
    : bytes_(bytes) {
  check_header(name);
  check_sizes(name);
  check_sequences(name);
  check_documents(name);
}

inline void MegatronIndex::check_header(const std::string& name) {
  constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
  if (bytes_.size() < kHeader) {
    refuse_byte(name, bytes_.size(), "truncated: the header of an .idx has 34 bytes",
                std::to_string(bytes_.size()));
  }
  const std::string_view magic(reinterpret_cast<const char*>(bytes_.data()), kMagic.size());
  if (magic != kMagic) {
    refuse_byte(name, 0, "the magic must be 'MMIDIDX\\x00\\x00'", in_quotes(magic));
  }
  const auto version = load_little<std::uint64_t>(bytes_, 9);
  if (version != 1) refuse_byte(name, 9, "version must be 1", std::to_string(version));
  const auto code = std::to_integer<unsigned>(bytes_[17]);
  if (code < 1 || code > 8) {
    refuse_byte(name, 17, "the dtype code must be in 1 .. 8", std::to_string(code));
  }
  type_ = static_cast<TokenType>(code);
}

inline void MegatronIndex::check_sizes(const std::string& name) {
  const auto sequences = load_little<std::uint64_t>(bytes_, 18);
  const auto indices = load_little<std::uint64_t>(bytes_, 26);
  const std::size_t rest = bytes_.size() - kHeader;
  if (indices < 2 || sequences < 1) {
    const bool none = sequences < 1;
    refuse_byte(name, none ? 18 : 26,
                none ? "an .idx must hold at least one sequence"
                     : "an .idx must hold at least two document indices",
                std::to_string(none ? sequences : indices));
  }
  // Each count alone is bounded by the file first, so that their sum cannot overflow.
  if (sequences > rest / 12 || indices > rest / 8 || 12 * sequences + 8 * indices > rest) {
    refuse_byte(name, bytes_.size(),
                "truncated: " + std::to_string(sequences) + " sequences and " +
                    std::to_string(indices) + " document indices need more bytes",
                std::to_string(bytes_.size()));
  }
  sequences_ = static_cast<std::size_t>(sequences);
  indices_ = static_cast<std::size_t>(indices);
  pointers_at_ = kHeader + 4 * sequences_;
  indices_at_ = pointers_at_ + 8 * sequences_;
  const std::size_t end = indices_at_ + 8 * indices_;
  const std::size_t beyond = bytes_.size() - end;
  if (beyond == sequences_) {
    modes_at_ = end;
  } else if (beyond != 0) {
    refuse_byte(
        name, end,
        "after the document indices must come nothing or " + std::to_string(sequences_) + " modes",
        std::to_string(beyond) + " bytes");
  }
}

inline void MegatronIndex::check_sequences(const std::string& name) const {
  for (std::size_t sequence = 0; sequence < sequences_; ++sequence) {
    const std::int64_t length = this->length(sequence).value;
    if (length < 1) {
      refuse_byte(name, kHeader + 4 * sequence,
                  "the length of sequence " + std::to_string(sequence) + " must be > 0",
                  std::to_string(length));
    }
  }
}

inline void MegatronIndex::check_documents(const std::string& name) const {
  std::int64_t before = 0;
  for (std::size_t document = 0; document < indices_; ++document) {
    const std::size_t i = indices_at_ + 8 * document;
    const auto index = load_little<std::int64_t>(bytes_, i);
    if (document == 0 && index != 0) {
      refuse_byte(name, i, "the first document index must be 0", std::to_string(index));
    }
    if (document > 0 && index <= before) {
      refuse_byte(name, i,
                  "document index " + std::to_string(document) +
                      " must be greater than the one before, " + std::to_string(before) +
                      " (a document without a sequence has no length)",
                  std::to_string(index));
    }
    before = index;
  }
  if (static_cast<std::uint64_t>(before) != sequences_) {
    refuse_byte(
        name, indices_at_ + 8 * (indices_ - 1),
        "the last document index must be the number of sequences, " + std::to_string(sequences_),
        std::to_string(before));
  }
}

}  // namespace slimpack
