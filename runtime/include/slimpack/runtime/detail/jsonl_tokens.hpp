// SPDX-License-Identifier: Apache-2.0
// The tokens of JSON lines: an array of token ids, or a text whose UTF-8 bytes are the tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::runtime {

/// One document a line: the array `tokens`, else the array `input_ids`, else the bytes of `text`.
/// Other keys are ignored, blank lines skipped. The tokens are held in memory. Throws InvalidInput
/// naming line, rule and what was found. O(bytes).
[[nodiscard]] TokenSource parse_jsonl_tokens(std::string_view text, const std::string& name);

/// The same for a file.
[[nodiscard]] inline TokenSource open_jsonl_tokens(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return parse_jsonl_tokens(file.text(), path);
}

namespace detail {

inline constexpr std::uint32_t kTextBlock = 0, kTokenBlock = 1;

inline void append_bytes(TokenStore& store, std::string_view bytes) {
  auto& block = std::get<std::string>(store.blocks[kTextBlock].content);
  store.runs.push_back({kTextBlock, static_cast<std::int32_t>(bytes.size()),
                        static_cast<std::int64_t>(block.size())});
  block += bytes;
}

inline void append_ids(TokenStore& store, const nlohmann::json& ids, const std::string& key,
                       std::size_t line) {
  auto& block = std::get<std::string>(store.blocks[kTokenBlock].content);
  store.runs.push_back({kTokenBlock, static_cast<std::int32_t>(ids.size()),
                        static_cast<std::int64_t>(block.size())});
  for (const nlohmann::json& id : ids) {
    // Ids beyond 31 bits are in no vocabulary and are refused where they stand.
    const bool fits = id.is_number_unsigned() &&
                      id.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
    if (!fits) {
      refuse_line(store.name, line, key + " must be an array of integers in 0 .. 2147483647",
                  id.is_primitive() && !id.is_string() ? id.dump() : id.type_name());
    }
    const auto value = id.get<std::uint32_t>();
    for (unsigned shift = 0; shift < 32; shift += 8) {
      block += static_cast<char>(static_cast<unsigned char>(value >> shift));
    }
  }
}

/// Appends the document of one line.
inline void append_line(TokenStore& store, std::string_view content, std::size_t line) {
  constexpr std::size_t kMost = std::size_t{1} << 30U;
  const std::string place = store.name + ":" + std::to_string(line);
  const nlohmann::json object = parse_json(content, place);
  if (!object.is_object()) {
    refuse_line(store.name, line, "each line must be one JSON object", object.type_name());
  }
  for (const std::string key : {"tokens", "input_ids", "text"}) {
    const auto value = object.find(key);
    if (value == object.end()) continue;
    const bool text = key == "text";
    if (text ? !value->is_string() : !value->is_array()) {
      refuse_line(store.name, line,
                  key + (text ? " must be a string" : " must be an array of integers"),
                  value->type_name());
    }
    const std::size_t count = text ? value->get_ref<const std::string&>().size() : value->size();
    if (count == 0 || count > kMost) {
      refuse_line(store.name, line, key + " must have 1 .. 1073741824 tokens",
                  std::to_string(count));
    }
    if (text) {
      append_bytes(store, value->get_ref<const std::string&>());
      ++store.text_documents;
    } else {
      append_ids(store, *value, key, line);
    }
    store.end_document();
    return;
  }
  throw InvalidInput(place + ": the object must have a key tokens, input_ids or text");
}

}  // namespace detail

inline TokenSource parse_jsonl_tokens(std::string_view text, const std::string& name) {
  TokenStore store;
  store.name = name;
  store.blocks.push_back({TokenType::u8, std::string()});
  store.blocks.push_back({TokenType::i32, std::string()});
  for_each_line(text, [&](std::string_view content, std::size_t line) {
    detail::append_line(store, content, line);
  });
  return TokenSource(std::move(store));
}

}  // namespace slimpack::runtime
