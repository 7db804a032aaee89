// SPDX-License-Identifier: Apache-2.0
// The style sheet and the scripts of the HTML page, as the files of report/page hold them.
#pragma once

#include <string_view>

namespace slimpack::report::page {

extern const std::string_view style_css;  ///< how the page looks, light and dark, wide and narrow
extern const std::string_view watch_js;  ///< runs first, so that no fault of the others goes unseen
extern const std::string_view decode_js;  ///< reads what `PagePlan` and `PageRows` packed
extern const std::string_view words_js;   ///< numbers, units, gaps and steps of paths in words
extern const std::string_view lanes_js;   ///< the lanes of one plan on a canvas
extern const std::string_view
    timelines_js;                         ///< all plans on one time axis: zoom, pan, pointer, keys
extern const std::string_view charts_js;  ///< bars of memory, times and work; the critical path
extern const std::string_view start_js;   ///< tables that sort; puts everything in its place

}  // namespace slimpack::report::page
