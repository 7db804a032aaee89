// SPDX-License-Identifier: Apache-2.0
// slimpack lengths: what a length file holds.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "notes.hpp"
#include "slimpack/data/statistics.hpp"

namespace slimpack::app {
namespace {

void print_json(const LengthStatistics& s) {
  nlohmann::ordered_json json{{"documents", s.documents},
                              {"tokens", s.total.value},
                              {"min", s.min.value},
                              {"median", s.median.value},
                              {"p90", s.p90.value},
                              {"p99", s.p99.value},
                              {"max", s.max.value},
                              {"long_threshold", kLongDocument.value},
                              {"long_documents", s.long_documents},
                              {"long_token_share", s.long_token_share},
                              {"long_attention_share", s.long_pair_share},
                              {"histogram", nlohmann::ordered_json::array()}};
  for (const LengthBin& bin : s.histogram) {
    json["histogram"].push_back(
        {{"low", bin.low.value}, {"documents", bin.documents}, {"tokens", bin.tokens.value}});
  }
  std::cout << json.dump(2) << '\n';
}

void print_text(const std::string& name, const LengthStatistics& s) {
  std::cout << fmt::format("{}: {} documents, {} tokens\n", name, s.documents, s.total.value);
  std::cout << fmt::format("  shortest {}, median {}, p90 {}, p99 {}, longest {}\n", s.min.value,
                           s.median.value, s.p90.value, s.p99.value, s.max.value);
  std::cout << fmt::format(
      "  {} documents above {} tokens hold {:.1f} % of the tokens and {:.1f} % of the attention "
      "work\n\n",
      s.long_documents, kLongDocument.value, 100 * s.long_token_share, 100 * s.long_pair_share);
  std::int64_t most_documents = 1;
  std::int64_t most_tokens = 1;
  for (const LengthBin& bin : s.histogram) {
    most_documents = std::max(most_documents, bin.documents);
    most_tokens = std::max(most_tokens, bin.tokens.value);
  }
  constexpr std::int64_t kWidth = 24;
  const auto bar = [](std::int64_t value, std::int64_t most) {
    const auto length = (value * kWidth + most - 1) / most;
    return std::string(static_cast<std::size_t>(length), '#');
  };
  std::cout << fmt::format("{:>12}  {:>10}  {:<24}  {:>14}  {}\n", "from length", "documents", "",
                           "tokens", "");
  for (const LengthBin& bin : s.histogram) {
    std::string line = fmt::format("{:>12}  {:>10}  {:<24}  {:>14}  {}", bin.low.value,
                                   bin.documents, bar(bin.documents, most_documents),
                                   bin.tokens.value, bar(bin.tokens.value, most_tokens));
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

}  // namespace

Run add_lengths(CLI::App& command) {
  struct Options {
    std::string lengths;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command.add_option("LENGTHS", options->lengths, "text, .idx, .npy, .jsonl, or -")->required();
  command.add_flag("--json", options->json, "print JSON (docs/schemas.md)");
  return [options] {
    const LengthSet lengths = load_lengths(options->lengths);
    const LengthStatistics statistics = length_statistics(lengths.documents);
    if (options->json) {
      print_json(statistics);
    } else {
      print_text(options->lengths == "-" ? "standard input" : options->lengths, statistics);
    }
    return 0;
  };
}

}  // namespace slimpack::app
