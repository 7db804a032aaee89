// SPDX-License-Identifier: Apache-2.0
// As much of an XML reader as a picture needs: elements, attributes, nesting.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace slimpack::test {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;               // between its tags, entities as they are
  std::vector<std::size_t> path;  // indices of the elements around it
};

/// All elements in the order in which they begin. Throws std::runtime_error where the text is not
/// well-formed: tags that do not nest, attributes given twice or unquoted, stray < or &.
inline std::vector<Element> read_xml(std::string_view xml) {
  std::vector<Element> elements;
  std::vector<std::size_t> open;
  const auto fail = [&](const std::string& why) { throw std::runtime_error("xml: " + why); };
  const auto check_entities = [&](std::string_view text) {
    for (std::size_t i = text.find('&'); i != std::string_view::npos; i = text.find('&', i + 1)) {
      const std::string_view rest = text.substr(i);
      if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;") &&
          !rest.starts_with("&quot;")) {
        fail("stray &");
      }
    }
  };
  std::size_t i = 0;
  while (i < xml.size()) {
    const std::size_t tag = xml.find('<', i);
    const std::string_view text = xml.substr(i, tag - i);
    check_entities(text);
    if (!open.empty()) elements[open.back()].text += text;
    if (open.empty() && text.find_first_not_of(" \n") != std::string_view::npos) {
      fail("text outside of the root");
    }
    if (tag == std::string_view::npos) break;
    const std::size_t end = xml.find('>', tag);
    if (end == std::string_view::npos) fail("a tag that does not end");
    std::string_view inside = xml.substr(tag + 1, end - tag - 1);
    i = end + 1;
    if (inside.starts_with('/')) {
      if (open.empty() || elements[open.back()].name != inside.substr(1)) {
        fail("</" + std::string(inside.substr(1)) + "> closes nothing");
      }
      open.pop_back();
      continue;
    }
    const bool closed = inside.ends_with('/');
    if (closed) inside.remove_suffix(1);
    Element element;
    element.name = inside.substr(0, inside.find_first_of(" \n"));
    inside.remove_prefix(element.name.size());
    while (!inside.empty()) {
      inside.remove_prefix(1);
      const std::size_t equals = inside.find("=\"");
      if (equals == std::string_view::npos) fail("an attribute without a value");
      const std::size_t quote = inside.find('"', equals + 2);
      if (quote == std::string_view::npos) fail("an attribute that does not end");
      const std::string_view value = inside.substr(equals + 2, quote - equals - 2);
      check_entities(value);
      if (value.find('<') != std::string_view::npos) fail("< in an attribute");
      if (!element.attributes.emplace(inside.substr(0, equals), value).second) {
        fail("an attribute given twice");
      }
      inside.remove_prefix(quote + 1);
    }
    if (open.empty() && !elements.empty()) fail("two roots");
    element.path = open;
    elements.push_back(std::move(element));
    if (!closed) open.push_back(elements.size() - 1);
  }
  if (!open.empty()) fail("<" + elements[open.back()].name + "> is not closed");
  if (elements.empty()) fail("no element");
  return elements;
}

}  // namespace slimpack::test
