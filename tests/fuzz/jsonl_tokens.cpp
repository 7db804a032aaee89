// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/detail/jsonl_tokens.hpp"

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
  const runtime::TokenSource source = runtime::parse_jsonl_tokens(text, "fuzz");
  Documents documents;
  for (std::size_t i = 0; i < source.documents(); ++i) {
    documents.emplace_back(static_cast<std::size_t>(source.length(i).value));
    source.read(i, Tokens{0}, documents.back(), runtime::kLargestVocabulary);
  }
  return documents;
}

std::string write_documents(const Documents& documents) {
  std::string text;
  for (const auto& document : documents) {
    text += "{\"tokens\": [";
    for (std::size_t i = 0; i < document.size(); ++i) {
      text += (i > 0 ? "," : "") + std::to_string(document[i]);
    }
    text += "]}\n";
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(data, size, read_documents, write_documents);
}
