// SPDX-License-Identifier: Apache-2.0
// Writes JSON objects piece by piece.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace slimpack::bench {

[[nodiscard]] inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
    } else {
      out += letter;
    }
  }
  return out + '"';
}

class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view text) { return raw(key, quoted(text)); }
  JsonObject& add(std::string_view key, std::integral auto number) {
    return raw(key, std::to_string(number));
  }
  /// Null where the number is not finite, which JSON cannot say.
  JsonObject& add(std::string_view key, double number) {
    if (!std::isfinite(number)) return raw(key, "null");
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.9g", number);
    return raw(key, digits);
  }
  /// `json` is an object or array.
  JsonObject& raw(std::string_view key, std::string_view json) {
    if (!fields_.empty()) fields_ += ", ";
    fields_ += quoted(key);
    fields_ += ": ";
    fields_ += json;
    return *this;
  }
  [[nodiscard]] std::string text() const { return "{" + fields_ + "}"; }

 private:
  std::string fields_;
};

}  // namespace slimpack::bench
