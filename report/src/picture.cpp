// SPDX-License-Identifier: Apache-2.0
#include "picture.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lane_path.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

namespace {

/// Pixels of one lane.
struct LaneShape {
  int bar, reduction, memory, gap, font;
  [[nodiscard]] constexpr int height() const noexcept { return bar + reduction + memory + gap; }
};

[[nodiscard]] constexpr LaneShape lane_shape(std::size_t lanes, bool with_reductions,
                                             bool with_memory = true) noexcept {
  const int reduction = with_reductions ? (lanes <= 40 ? 5 : 3) : 0;
  LaneShape shape{7, reduction, 5, 4, 8};
  if (lanes <= 16) {
    shape = {24, reduction, 30, 12, 11};
  } else if (lanes <= 40) {
    shape = {16, reduction, 17, 8, 10};
  } else if (lanes <= 100) {
    shape = {10, reduction, 8, 5, 9};
  }
  if (!with_memory) shape.memory = 0;
  return shape;
}

constexpr std::string_view kPictureStyle = R"(
text{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif;fill:#1f2328}
.bg{fill:#ffffff}.title{font-size:16px;font-weight:600}.sub{font-size:12px;fill:#57606a}
.head{font-weight:600}.note{fill:#57606a}.axis{font-size:11px;fill:#57606a}
.grid{stroke:#d0d7de;stroke-width:1;fill:none}
.forward{stroke:#2f7ed8;fill:#2f7ed8}.backward{stroke:#2a9d6a;fill:#2a9d6a}
.head-unit{stroke:#e07b00;fill:#e07b00}.optimizer{stroke:#7b5cc4;fill:#7b5cc4}
.weight{stroke:#93a01b;fill:#93a01b}
.reduce{stroke:#b0569f;fill:#b0569f}.merged{stroke:#111820;fill:#111820}
.gap0{stroke:#e4e7eb;fill:#e4e7eb}.gap1{stroke:#cdd3da;fill:#cdd3da}.gap2{stroke:#d9c8f0;fill:#d9c8f0}
.gap3{stroke:#efc3e6;fill:#efc3e6}.gap4{stroke:#f4d58a;fill:#f4d58a}.gap5{stroke:#a9dbe3;fill:#a9dbe3}
.gap6{stroke:#e3c7b5;fill:#e3c7b5}.gap7{stroke:#ee9a9a;fill:#ee9a9a}.gap8{stroke:#d5e2a8;fill:#d5e2a8}
.always{fill:#8fa1b3}.held{fill:#c3d0dd}.limit{stroke:#c62f2f;stroke-width:1;stroke-dasharray:4 3;fill:none}
.number{font-size:9px;fill:#ffffff;text-anchor:middle}.end{text-anchor:end}.mid{text-anchor:middle}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.bg{fill:#0d1117}.sub,.note,.axis{fill:#9ba5b0}.grid{stroke:#30363d}
.forward{stroke:#4a94e8;fill:#4a94e8}.backward{stroke:#35a873;fill:#35a873}
.head-unit{stroke:#f0922b;fill:#f0922b}.optimizer{stroke:#9a80e0;fill:#9a80e0}
.weight{stroke:#b3c13a;fill:#b3c13a}
.reduce{stroke:#cf77be;fill:#cf77be}.merged{stroke:#ffffff;fill:#ffffff}
.gap0{stroke:#21262d;fill:#21262d}.gap1{stroke:#373e47;fill:#373e47}.gap2{stroke:#4b3a6e;fill:#4b3a6e}
.gap3{stroke:#6a2f60;fill:#6a2f60}.gap4{stroke:#6b5417;fill:#6b5417}.gap5{stroke:#1f5560;fill:#1f5560}
.gap6{stroke:#5c4334;fill:#5c4334}.gap7{stroke:#7a2e2e;fill:#7a2e2e}.gap8{stroke:#4b5526;fill:#4b5526}
.always{fill:#5b6b7b}.held{fill:#38444f}.limit{stroke:#ff7b72}.number{fill:#0d1117}
}
)";

class PictureWriter {
 public:
  explicit PictureWriter(const Picture& picture)
      : picture_(picture),
        shape_(lane_shape(picture.lanes.size(), picture.with_reductions, picture.with_memory)),
        scale_{picture.span, kPlot * 100} {}

  /// Halves the columns until the whole is small enough; a picture of few units takes one turn.
  void write(std::ostream& out) {
    std::int64_t columns = kPlot;
    std::string body = lanes(columns);
    while (body.size() > kMostBytes && columns > kFewestColumns) {
      columns /= 2;
      body = lanes(columns);
    }
    TextWriter text(out);
    const int height = bottom_ + 34 + (picture_.footnote.empty() ? 0 : 18);
    text << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\""
         << height << "\" viewBox=\"0 0 " << kWidth << ' ' << height << "\">\n<title>"
         << xml_escaped(picture_.title) << "</title>\n<style>" << kPictureStyle
         << "</style>\n<rect class=\"bg\" width=\"" << kWidth << "\" height=\"" << height
         << "\"/>\n";
    write_head(text);
    write_axis(text);
    text << body;
    if (!picture_.footnote.empty()) {
      text << "<text class=\"sub\" x=\"" << kLeft << "\" y=\"" << height - 12 << "\">"
           << xml_escaped(picture_.footnote) << "</text>\n";
    }
    text << "</svg>\n";
  }

 private:
  static constexpr int kWidth = 1640, kLeft = 92, kPlot = 1400, kHeaderHeight = 20,
                       kHeadingHeight = 36;
  static constexpr std::size_t kMostBytes = 1800000;
  static constexpr std::int64_t kFewestColumns = 20;

  /// A generous guess, since fonts differ.
  static int text_width(std::string_view text, int font) {
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    });
    return static_cast<int>(characters) * font * 58 / 100;
  }

  [[nodiscard]] int legend_rows() const {
    int rows = 1;
    int x = kLeft;
    for (const LegendEntry& entry : picture_.legend) advance(entry, x, rows);
    return rows;
  }
  /// Place of an entry; moves on past it.
  static std::pair<int, int> advance(const LegendEntry& entry, int& x, int& row) {
    const int width = 18 + text_width(entry.text, 12) + 16;
    if (x + width > kLeft + kPlot && x > kLeft) {
      x = kLeft;
      ++row;
    }
    const std::pair<int, int> place{x, row};
    x += width;
    return place;
  }
  [[nodiscard]] int legend_top() const { return 34 + 18 * static_cast<int>(picture_.lines.size()); }
  [[nodiscard]] int lanes_top() const { return legend_top() + 20 * legend_rows() + 12; }

  void write_head(TextWriter& text) const {
    text << "<text class=\"title\" x=\"" << kLeft << "\" y=\"26\">" << xml_escaped(picture_.title)
         << "</text>\n";
    int y = 26;
    for (const std::string& line : picture_.lines) {
      y += 18;
      text << "<text class=\"sub\" x=\"" << kLeft << "\" y=\"" << y << "\">" << xml_escaped(line)
           << "</text>\n";
    }
    int x = kLeft;
    int row = 1;
    for (const LegendEntry& entry : picture_.legend) {
      const auto [left, place] = advance(entry, x, row);
      const int top = legend_top() + 20 * (place - 1);
      if (entry.style == "limit") {
        text << "<path class=\"limit\" d=\"M" << left << ' ' << top + 10 << "h12\"/>";
      } else {
        text << "<rect class=\"" << entry.style << "\" stroke-width=\"0\" x=\"" << left << "\" y=\""
             << (entry.style == "merged" ? top + 8 : top + 4) << "\" width=\"12\" height=\""
             << (entry.style == "merged" ? 3 : 12) << '"'
             << shade_opacity(0, static_cast<std::size_t>(entry.shade)) << "/>";
      }
      text << "<text class=\"sub\" x=\"" << left + 18 << "\" y=\"" << top + 14 << "\">"
           << xml_escaped(entry.text) << "</text>\n";
    }
  }

  void write_axis(TextWriter& text) const {
    const std::int64_t step = tick_step(picture_.span.value, 14);
    const std::int64_t whole = picture_.span.value;
    const bool in_s = whole >= 2000000000;
    const bool in_ms = !in_s && whole >= 2000000;
    const std::int64_t unit = in_s ? 1000000000 : in_ms ? 1000000 : 1000;
    const int digits = in_s ? 9 : in_ms ? 6 : 3;
    const int top = lanes_top();
    for (std::int64_t i = 0; i <= whole; i += step) {
      const std::string x = pixels(kLeft * 100 + scale_.at(Nanos{i}));
      text << "<path class=\"grid\" d=\"M" << x << ' ' << top - 4 << 'V' << bottom_ + 4
           << "\"/><text class=\"axis mid\" x=\"" << x << "\" y=\"" << bottom_ + 18 << "\">"
           << (step % unit == 0 ? decimal(i / unit, 0) : short_decimal(i, digits)) << "</text>\n";
    }
    text << "<text class=\"axis\" x=\"" << kLeft + kPlot + 22 << "\" y=\"" << bottom_ + 18 << "\">"
         << (in_s    ? "s"
             : in_ms ? "ms"
                     : "us")
         << "</text>\n";
  }

  [[nodiscard]] std::string lanes(std::int64_t columns) {
    std::string out;
    int y = lanes_top();
    for (const Lane& lane : picture_.lanes) {
      if (!lane.heading.empty()) {
        out += "<text class=\"title\" x=\"" + std::to_string(kLeft) + "\" y=\"" +
               std::to_string(y + 24) + "\">" + xml_escaped(lane.heading) + "</text>\n";
        y += kHeadingHeight;
      }
      if (!lane.header.empty()) {
        out += "<text class=\"head\" font-size=\"12\" x=\"" + std::to_string(kLeft) + "\" y=\"" +
               std::to_string(y + 13) + "\">" + xml_escaped(lane.header) + "</text>\n";
        y += kHeaderHeight;
      }
      write_lane(out, lane, y, columns);
      y += shape_.height();
    }
    bottom_ = y - shape_.gap + 4;
    return out;
  }

  void write_lane(std::string& out, const Lane& lane, int y, std::int64_t columns) const {
    label(out, kLeft - 8, y + (shape_.bar + shape_.font) / 2 - 1, "end", lane.name);
    const int right = kLeft + kPlot + 8;
    if (shape_.memory >= shape_.font) {
      label(out, right, y + (shape_.bar + shape_.font) / 2 - 1, "note", lane.upper_note);
      label(out, right, y + shape_.bar + shape_.reduction + (shape_.memory + shape_.font) / 2,
            "note", lane.lower_note);
    } else {
      label(out, right, y + (shape_.bar + shape_.font) / 2 - 1, "note",
            lane.lower_note.empty() ? lane.upper_note : lane.upper_note + ", " + lane.lower_note);
    }
    bars(out, lane.stretches(), y, shape_.bar, columns);
    if (shape_.reduction > 0) {
      bars(out, lane.reductions(), y + shape_.bar + 1, shape_.reduction - 1, columns);
    }
    memory(out, lane, y + shape_.bar + shape_.reduction + 1, shape_.memory - 1, columns);
  }

  void label(std::string& out, int x, int y, std::string_view style, std::string_view text) const {
    if (text.empty()) return;
    out += "<text class=\"";
    out += style;
    out += "\" font-size=\"" + std::to_string(shape_.font) + "\" x=\"" + std::to_string(x) +
           "\" y=\"" + std::to_string(y) + "\">" + xml_escaped(text) + "</text>\n";
  }

  void bars(std::string& out, const std::vector<Stretch>& stretches, int y, int height,
            std::int64_t columns) const {
    const bool with_marks = height >= 14;
    const LanePath path = LanePainter(scale_, height * 100, columns, with_marks).paint(stretches);
    out += "<g fill=\"none\" transform=\"translate(" + std::to_string(kLeft) + ',' +
           pixels(y * 100 + height * 50) + ")\">";
    for (std::size_t paint = 0; paint < kPaints; ++paint) {
      for (std::size_t shade = 0; shade < kShades; ++shade) {
        const std::string style =
            "<path class=\"" + paint_class(paint, shade) + '"' + shade_opacity(paint, shade);
        if (const std::string& full = path.full[paint][shade]; !full.empty()) {
          out += style + " stroke-width=\"" + std::to_string(height) + "\" d=\"" + full + "\"/>";
        }
        if (const std::string& parts = path.parts[paint][shade]; !parts.empty()) {
          out += style + " stroke-width=\"0\" transform=\"translate(0," + pixels(-height * 50) +
                 ")\" d=\"" + parts + "\"/>";
        }
      }
    }
    if (!path.in_cp_group.empty()) {
      const Hundredths thickness = height >= 14 ? 300 : 200;
      out += "<path class=\"merged\" stroke-width=\"" + pixels(thickness) +
             "\" transform=\"translate(0," + pixels((thickness - height * 100) / 2) + ")\" d=\"" +
             path.in_cp_group + "\"/>";
    }
    for (const LanePath::Mark& mark : path.marks) {
      out += "<text class=\"number\" x=\"" + pixels(mark.at) + "\" y=\"3.5\">" +
             std::to_string(mark.number) + "</text>";
    }
    out += "</g>\n";
  }

  /// The most that was held in each column, as a step curve up to the end.
  void memory(std::string& out, const Lane& lane, int y, int height, std::int64_t columns) const {
    const std::vector<HeldBytes> curve = lane.memory();
    Bytes top = picture_.limit;
    for (const HeldBytes& point : curve) top = std::max(top, point.bytes);
    if (curve.empty() || top.value <= 0) return;
    const auto level = [&](Bytes bytes) {
      return static_cast<Hundredths>(static_cast<Int128>(bytes.value) * height * 100 / top.value);
    };
    const Nanos column{std::max<std::int64_t>(1, picture_.span.value / columns)};
    std::string path = "M0 " + std::to_string(height);
    Hundredths drawn = 0;
    Hundredths i = 0;
    std::size_t next = 0;
    Bytes held;
    while (next < curve.size()) {
      const std::int64_t place = curve[next].time / column;
      Bytes most = curve[next].time > column * place ? held : Bytes{};
      while (next < curve.size() && curve[next].time / column == place) {
        held = curve[next++].bytes;
        most = std::max(most, held);
      }
      step(path, i, drawn, scale_.at(column * place), level(most));
      if (held != most && (next >= curve.size() || curve[next].time / column > place + 1)) {
        step(path, i, drawn, scale_.at(std::min(picture_.span, column * (place + 1))), level(held));
      }
    }
    step(path, i, drawn, scale_.width, 0);
    path += 'z';
    out += "<g transform=\"translate(" + std::to_string(kLeft) + ',' + std::to_string(y) +
           ")\"><path class=\"held\" d=\"" + path + "\"/>";
    const Hundredths always = level(lane.always);
    out += "<rect class=\"always\" y=\"" + pixels(height * 100 - always) + "\" width=\"" +
           std::to_string(kPlot) + "\" height=\"" + pixels(always) + "\"/>";
    out += "<path class=\"limit\" d=\"M0 " + pixels(height * 100 - level(picture_.limit)) + "h" +
           std::to_string(kPlot) + "\"/></g>\n";
  }
  static void step(std::string& path, Hundredths& i, Hundredths& drawn, Hundredths to,
                   Hundredths level) {
    if (level == drawn) return;
    if (to != i) path += 'h' + pixels(to - i);
    path += 'v' + pixels(drawn - level);
    i = to;
    drawn = level;
  }

  const Picture& picture_;
  LaneShape shape_;
  TimeScale scale_;
  int bottom_ = 0;
};

}  // namespace

std::string paint_class(std::size_t paint, std::size_t shade) {
  constexpr std::array<std::string_view, kPaints - 1> kNames{"forward",   "backward", "head-unit",
                                                             "optimizer", "weight",   "reduce"};
  if (paint < kNames.size()) return std::string(kNames[paint]);
  return "gap" + std::to_string(shade);
}

std::string shade_opacity(std::size_t paint, std::size_t shade) {
  if (paint >= static_cast<std::size_t>(Paint::gap) || shade == 0) return {};
  const std::int64_t opacity =
      100 - 50 * std::min<std::int64_t>(static_cast<std::int64_t>(shade), 4) / 4 - 15;
  return " opacity=\"" + short_decimal(opacity, 2) + "\"";
}

void write_picture(std::ostream& out, const Picture& picture) {
  PictureWriter(picture).write(out);
}

}  // namespace slimpack::report::detail
