// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/jsonl_tokens.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

namespace {

using Documents = std::vector<std::vector<std::int32_t>>;

Documents read_documents(std::string_view text) {
  const TokenSource source = parse_jsonl_tokens(text, "fuzz");
  Documents documents;
  for (std::size_t at = 0; at < source.documents(); ++at) {
    documents.emplace_back(static_cast<std::size_t>(source.length(at).value));
    source.read(at, Tokens{0}, documents.back(), kLargestVocabulary);
  }
  return documents;
}

std::string write_documents(const Documents& documents) {
  std::string text;
  for (const auto& document : documents) {
    text += "{\"tokens\": [";
    for (std::size_t at = 0; at < document.size(); ++at) {
      text += (at > 0 ? "," : "") + std::to_string(document[at]);
    }
    text += "]}\n";
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(data, size, read_documents, write_documents);
}
