// SPDX-License-Identifier: Apache-2.0
// The tokens of documents, read by range; where they lie is told by runs in blocks of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/idx.hpp"
#include "slimpack/io/text_lengths.hpp"

namespace slimpack::runtime {

/// Largest vocabulary: every token id fits in 31 bits.
inline constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 31U;

/// Tokens one after the other, little endian and unaligned: a mapped file, or bytes of its own.
struct TokenBlock {
  TokenType type = TokenType::u8;                ///< of each token; TokenSource refuses floats
  std::variant<std::string, FileBytes> content;  ///< owned bytes, or a mapped file

  /// The tokens, as they lie.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    if (const auto* file = std::get_if<FileBytes>(&content)) return file->bytes();
    return std::as_bytes(std::span(*std::get_if<std::string>(&content)));
  }
};

/// `count` tokens from byte `offset` of a block on.
struct TokenRun {
  std::uint32_t block = 0;  ///< in `TokenStore::blocks`
  std::int32_t count = 0;   ///< tokens, of the block's type
  std::int64_t offset = 0;  ///< in bytes; any, since tokens need not be aligned
};

/// A token that the vocabulary does not have. `what()` names source, document and position.
class TokenOutsideVocabulary : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

/// What a reader of one form hands over. Document d is the runs [first_run[d], first_run[d + 1]).
struct TokenStore {
  std::string name;                       ///< of the file or folder, for messages
  std::vector<TokenBlock> blocks;         ///< that runs lie in; several documents may share one
  std::vector<TokenRun> runs;             ///< document after document
  std::vector<std::size_t> first_run{0};  ///< by document, and the end: one more than documents
  std::size_t text_documents = 0;         ///< those whose tokens are the bytes of a text

  /// Closes a document: all runs since the last one.
  void end_document() { first_run.push_back(runs.size()); }
};

/// Documents as token ids. Nothing changes after construction: any number of threads may read.
class TokenSource {
 public:
  /// Throws InvalidInput naming the document whose run leaves its block, holds no whole numbers or
  /// that has no token; and where there is no document. O(runs).
  explicit TokenSource(TokenStore store);

  /// Documents of these lengths with uniform tokens in [0, vocabulary), told by seed, document and
  /// position alone; nothing is stored. Throws InvalidInput unless vocabulary is in 1 .. 2^31.
  TokenSource(LengthSet lengths, std::int64_t vocabulary, std::uint64_t seed)
      : lengths_(std::move(lengths)), drawn_(Drawn{vocabulary, seed}) {
    check_vocabulary(vocabulary);
    require_some(lengths_);
  }

  /// The documents' token counts, for planning and for BatchStream.
  [[nodiscard]] const LengthSet& lengths() const noexcept { return lengths_; }
  /// Number of documents, > 0.
  [[nodiscard]] std::size_t documents() const noexcept { return lengths_.documents.size(); }
  /// Tokens of a document, > 0. `document` must be below documents().
  [[nodiscard]] Tokens length(std::size_t document) const { return lengths_.documents[document]; }
  /// What messages call the source: its file or folder, or the name of the drawn lengths.
  [[nodiscard]] const std::string& name() const noexcept { return lengths_.name; }
  /// How many documents are text whose bytes are the tokens.
  [[nodiscard]] std::size_t text_documents() const noexcept { return store_.text_documents; }
  /// The largest token id of all documents; of drawn ones the largest that can be drawn. Throws
  /// InvalidInput for a token that no vocabulary has. O(tokens), with little memory.
  [[nodiscard]] std::int64_t largest_token() const;

  /// Tokens [first, first + tokens.size()) of a document. Throws InvalidInput where the range
  /// leaves the document, and TokenOutsideVocabulary for a token outside [0, vocabulary), naming
  /// document and position, both counted from 0. O(tokens + runs of the document). Thread-safe.
  void read(std::size_t document, Tokens first, std::span<std::int32_t> tokens,
            std::int64_t vocabulary) const;

  /// One token of a document, checked in the same way.
  [[nodiscard]] std::int32_t token(std::size_t document, Tokens position,
                                   std::int64_t vocabulary) const {
    std::int32_t token = 0;
    read(document, position, std::span(&token, 1), vocabulary);
    return token;
  }

 private:
  struct Drawn {
    std::int64_t vocabulary = 0;
    std::uint64_t seed = 0;
  };

  static void check_vocabulary(std::int64_t vocabulary) {
    require(vocabulary >= 1 && vocabulary <= kLargestVocabulary,
            "a vocabulary must have 1 .. " + std::to_string(kLargestVocabulary) + " tokens",
            vocabulary);
  }
  void check_runs(std::size_t document) const;
  [[nodiscard]] std::string place(std::size_t document) const {
    return lengths_.name + ": document " + std::to_string(document) + " (from 0)";
  }
  void check_token(std::size_t document, std::int64_t position, std::int64_t token,
                   std::int64_t vocabulary) const {
    if (token >= 0 && token < vocabulary) return;
    throw TokenOutsideVocabulary(place(document) + ": the token at position " +
                                 std::to_string(position) + " (from 0) must be in 0 .. " +
                                 std::to_string(vocabulary - 1) + ", the vocabulary, found " +
                                 std::to_string(token));
  }
  void draw(std::size_t document, Tokens first, std::span<std::int32_t> tokens) const;

  TokenStore store_;
  LengthSet lengths_;
  std::optional<Drawn> drawn_;
};

namespace detail {

[[nodiscard]] inline std::int64_t load_token(std::span<const std::byte> bytes, TokenType type,
                                             std::size_t offset) noexcept {
  switch (type) {
    case TokenType::u8:
      return load_little<std::uint8_t>(bytes, offset);
    case TokenType::i8:
      return load_little<std::int8_t>(bytes, offset);
    case TokenType::i16:
      return load_little<std::int16_t>(bytes, offset);
    case TokenType::u16:
      return load_little<std::uint16_t>(bytes, offset);
    case TokenType::i32:
      return load_little<std::int32_t>(bytes, offset);
    default:
      return load_little<std::int64_t>(bytes, offset);
  }
}

[[nodiscard]] constexpr bool is_whole(TokenType type) noexcept {
  return type != TokenType::f32 && type != TokenType::f64;
}

}  // namespace detail

inline TokenSource::TokenSource(TokenStore store) : store_(std::move(store)) {
  lengths_.name = store_.name;
  const std::size_t count = store_.first_run.size() - 1;
  require(count > 0, store_.name + ": holds no document");
  lengths_.documents.reserve(count);
  std::int64_t total = 0;
  for (std::size_t document = 0; document < count; ++document) {
    check_runs(document);
    std::int64_t length = 0;
    for (std::size_t run = store_.first_run[document]; run < store_.first_run[document + 1];
         ++run) {
      length += store_.runs[run].count;
    }
    require(length > 0, place(document) + " must have a token");
    require(append_length(lengths_, length, total),
            store_.name + ": the sum of all lengths must fit in 63 bits");
  }
}

inline void TokenSource::check_runs(std::size_t document) const {
  for (std::size_t i = store_.first_run[document]; i < store_.first_run[document + 1]; ++i) {
    const TokenRun& run = store_.runs[i];
    const TokenBlock& block = store_.blocks[run.block];
    require(detail::is_whole(block.type), store_.name + ": tokens must be integers, not floats");
    const auto size = static_cast<std::int64_t>(block.bytes().size());
    const std::int64_t bytes = run.count * token_bytes(block.type);
    if (run.count >= 0 && run.offset >= 0 && run.offset <= size && bytes <= size - run.offset) {
      continue;
    }
    throw InvalidInput(place(document) + ": its " + std::to_string(run.count) +
                       " tokens from byte " + std::to_string(run.offset) +
                       " on must lie in the file of " + std::to_string(size) + " bytes");
  }
}

inline void TokenSource::read(std::size_t document, Tokens first, std::span<std::int32_t> tokens,
                              std::int64_t vocabulary) const {
  check_vocabulary(vocabulary);
  require(document < documents(), name() + ": there is no document",
          static_cast<std::int64_t>(document));
  const auto wanted = static_cast<std::int64_t>(tokens.size());
  const std::int64_t length = lengths_.documents[document].value;
  if (first.value < 0 || first.value > length || wanted > length - first.value) {
    throw InvalidInput(place(document) + ": tokens " + std::to_string(first.value) + " .. " +
                       std::to_string(first.value + wanted) + " are not within its " +
                       std::to_string(length));
  }
  if (drawn_) {
    draw(document, first, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      check_token(document, first.value + static_cast<std::int64_t>(i), tokens[i], vocabulary);
    }
    return;
  }
  std::int64_t skip = first.value;
  std::size_t done = 0;
  for (std::size_t run = store_.first_run[document]; done < tokens.size(); ++run) {
    const TokenRun& part = store_.runs[run];
    if (skip >= part.count) {
      skip -= part.count;
      continue;
    }
    const TokenBlock& block = store_.blocks[part.block];
    const auto width = static_cast<std::size_t>(token_bytes(block.type));
    const auto count = std::min(tokens.size() - done, static_cast<std::size_t>(part.count - skip));
    const std::span<const std::byte> bytes = block.bytes();
    const std::size_t begin =
        static_cast<std::size_t>(part.offset) + static_cast<std::size_t>(skip) * width;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t token = detail::load_token(bytes, block.type, begin + i * width);
      check_token(document, first.value + static_cast<std::int64_t>(done + i), token, vocabulary);
      tokens[done + i] = static_cast<std::int32_t>(token);
    }
    done += count;
    skip = 0;
  }
}

inline std::int64_t TokenSource::largest_token() const {
  if (drawn_) return drawn_->vocabulary - 1;
  constexpr std::int64_t kAtOnce = 1 << 16;
  std::vector<std::int32_t> some;
  std::int64_t largest = 0;
  for (std::size_t document = 0; document < documents(); ++document) {
    for (Tokens first; first < length(document); first += Tokens{kAtOnce}) {
      some.resize(
          static_cast<std::size_t>(std::min(kAtOnce, length(document).value - first.value)));
      read(document, first, some, kLargestVocabulary);
      largest = std::max<std::int64_t>(largest, *std::ranges::max_element(some));
    }
  }
  return largest;
}

inline void TokenSource::draw(std::size_t document, Tokens first,
                              std::span<std::int32_t> tokens) const {
  // SplitMix64 counts: draw n of a generator is the first of one that begins n increments later.
  constexpr std::uint64_t kIncrement = 0x9e3779b97f4a7c15U;
  Random mixer(drawn_->seed);
  const std::uint64_t base = Random(mixer.bits() + document).bits();
  Random random(base + static_cast<std::uint64_t>(first.value) * kIncrement);
  for (std::int32_t& token : tokens) {
    const std::uint64_t high = random.bits() >> 32U;
    token =
        static_cast<std::int32_t>((high * static_cast<std::uint64_t>(drawn_->vocabulary)) >> 32U);
  }
}

}  // namespace slimpack::runtime
