// SPDX-License-Identifier: Apache-2.0
// Reads and writes choices of algorithms of matrix products, so that other runs take the same ones.
// Plain C++.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <locale>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/gemm_choices.hpp"
#include "slimpack_cuda/gemm_layout.hpp"

namespace slimpack::cuda {

/// What choices hold for: algorithms are known by their place among those that one version of
/// cuBLASLt proposes on one kind of device.
struct GemmOrigin {
  std::string device;        ///< its name, without a line feed
  std::int64_t library = 0;  ///< gemm_library_version()
  friend bool operator==(const GemmOrigin&, const GemmOrigin&) = default;
};

/// The choices of a file: lines `# device: NAME`, `# cublaslt: VERSION` and `# candidates: N`, a
/// header, and a line a product.
struct GemmChoicesFile {
  GemmOrigin origin;
  int candidates = 2;  ///< algorithms that were asked for
  std::vector<GemmChoice> choices;
  friend bool operator==(const GemmChoicesFile&, const GemmChoicesFile&) = default;
};

/// The columns, in this order. `product` is a word of kGemmProducts, `result` bf16 or fp32, `adds`
/// 1 where the product is added to what is there, `multiprocessors` 0 for a whole device.
inline constexpr std::string_view kGemmColumns =
    "product,rows,inputs,outputs,result,adds,aligned,multiprocessors,choice";
inline constexpr std::array<std::string_view, 3> kGemmProducts = {"forward", "input_gradient",
                                                                  "weight_gradient"};

/// The text of such a file, in the order of products.
[[nodiscard]] inline std::string gemm_choices_text(const GemmChoicesFile& file) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "# device: " << file.origin.device << "\n# cublaslt: " << file.origin.library
      << "\n# candidates: " << file.candidates << '\n'
      << kGemmColumns << '\n';
  std::vector<GemmChoice> choices = file.choices;
  std::ranges::sort(choices);
  for (const GemmChoice& choice : choices) {
    const GemmKey& key = choice.key;
    out << kGemmProducts[static_cast<std::size_t>(key.product)] << ',' << key.shape.rows << ','
        << key.shape.inputs << ',' << key.shape.outputs << ',' << (key.single ? "fp32" : "bf16")
        << ',' << (key.adds ? 1 : 0) << ',' << key.aligned << ',' << choice.multiprocessors << ','
        << choice.choice << '\n';
  }
  return std::move(out).str();
}

namespace detail {

/// One line of a file of choices, cut into its columns.
class GemmChoiceLine {
 public:
  GemmChoiceLine(std::string_view line, std::string place) : place_(std::move(place)) {
    std::size_t field = 0;
    for (;; ++field) {
      const std::size_t comma = line.find(',');
      if (field < fields_.size()) fields_[field] = line.substr(0, comma);
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    require(field + 1 == fields_.size(), place_ + ": a line must have 9 columns",
            static_cast<std::int64_t>(field + 1));
  }

  [[nodiscard]] std::int64_t integer(std::size_t field, const char* name, std::int64_t least,
                                     std::int64_t most) const {
    const std::string_view text = fields_[field];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(
        error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most,
        place_ + ": column '" + name + "' must be an integer in " + std::to_string(least) + " .. " +
            std::to_string(most),
        text);
    return value;
  }
  /// The place of a word among some.
  template <std::size_t kWords>
  [[nodiscard]] std::size_t word(std::size_t field, const char* name,
                                 const std::array<std::string_view, kWords>& words) const {
    const auto found = std::ranges::find(words, fields_[field]);
    std::string rule = place_ + ": column '" + name + "' must be one of";
    for (const std::string_view one : words) rule += " " + std::string(one);
    require(found != words.end(), rule, fields_[field]);
    return static_cast<std::size_t>(found - words.begin());
  }

 private:
  std::string place_;
  std::array<std::string_view, 9> fields_{};
};

[[nodiscard]] inline GemmChoice gemm_choice(const GemmChoiceLine& line, int candidates) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31U) - 1;
  constexpr std::array<std::string_view, 2> kResults = {"bf16", "fp32"};
  GemmChoice choice;
  choice.key.product = static_cast<LinearProduct>(line.word(0, "product", kGemmProducts));
  choice.key.shape = {line.integer(1, "rows", 1, kMost), line.integer(2, "inputs", 1, kMost),
                      line.integer(3, "outputs", 1, kMost)};
  choice.key.single = line.word(4, "result", kResults) == 1;
  choice.key.adds = line.integer(5, "adds", 0, 1) == 1;
  choice.key.aligned = static_cast<std::int32_t>(line.integer(6, "aligned", 1, kGemmAlignment));
  choice.multiprocessors = static_cast<int>(line.integer(7, "multiprocessors", 0, kMost));
  choice.choice = static_cast<std::size_t>(line.integer(8, "choice", 0, candidates - 1));
  return choice;
}

}  // namespace detail

/// The choices of a file's text; `name` is the file's for messages. Throws InvalidInput, one
/// sentence with name, line, rule and value, for a file that is none, for a product that is there
/// twice, and unless it was made where `here` is. O(text).
[[nodiscard]] inline GemmChoicesFile parse_gemm_choices(std::string_view text,
                                                        const std::string& name,
                                                        const GemmOrigin& here) {
  GemmChoicesFile file;
  std::set<std::pair<int, GemmKey>> products;
  constexpr std::array<std::string_view, 3> kKeys = {
      "# device: ", "# cublaslt: ", "# candidates: "};
  std::size_t number = 0;
  for (; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string place = name + ":" + std::to_string(number + 1);
    if (number < kKeys.size()) {
      const std::string_view key = kKeys[number];
      require(line.starts_with(key), place + ": the line must be '" + std::string(key) + "VALUE'",
              line);
      line.remove_prefix(key.size());
      if (number == 0) {
        file.origin.device = line;
        require(line == here.device,
                place + ": choices must be of this device, '" + here.device + "'", line);
      } else if (number == 1) {
        require(line == std::to_string(here.library),
                place + ": choices must be of this version of cuBLASLt, " +
                    std::to_string(here.library),
                line);
        file.origin.library = here.library;
      } else {
        const auto [stop, error] =
            std::from_chars(line.data(), line.data() + line.size(), file.candidates);
        require(error == std::errc{} && stop == line.data() + line.size() && file.candidates >= 2 &&
                    file.candidates <= kMostGemmCandidates,
                place + ": candidates must be an integer in 2 .. " +
                    std::to_string(kMostGemmCandidates),
                line);
      }
    } else if (number == kKeys.size()) {
      require(line == kGemmColumns,
              place + ": the header must be '" + std::string(kGemmColumns) + "'", line);
    } else if (!line.empty()) {
      file.choices.push_back(
          detail::gemm_choice(detail::GemmChoiceLine(line, place), file.candidates));
      const GemmChoice& last = file.choices.back();
      require(products.insert({last.multiprocessors, last.key}).second,
              place + ": a product must be there once", line);
    }
  }
  require(number > kKeys.size(), name + ": choices of products must begin with 4 lines of heading",
          static_cast<std::int64_t>(number));
  return file;
}

}  // namespace slimpack::cuda
