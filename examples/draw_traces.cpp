// SPDX-License-Identifier: Apache-2.0
// Draws steps below each other on one time axis, simulated or measured, of one plan or of several:
//   draw_traces TITLE=trace.json... > timelines.svg
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/trace_json.hpp"
#include "slimpack/report/svg.hpp"

int main(int count, char** arguments) {
  try {
    std::vector<slimpack::report::TitledTrace> traces;
    for (int i = 1; i < count; ++i) {
      const std::string text = arguments[i];
      const std::size_t equals = text.find('=');
      slimpack::require(equals != std::string::npos, "an argument must be TITLE=trace.json", text);
      traces.push_back(
          {text.substr(0, equals), slimpack::read_trace_file(text.substr(equals + 1))});
    }
    slimpack::require(!traces.empty(), "usage: draw_traces TITLE=trace.json... > timelines.svg");
    slimpack::report::write_timelines_svg(std::cout, "Steps on one time axis", traces);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "draw_traces: " << error.what() << '\n';
    return 2;
  }
}
