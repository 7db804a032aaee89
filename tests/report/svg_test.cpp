// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/svg.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "report/golden.hpp"
#include "report/plans.hpp"
#include "report/src/lane_path.hpp"
#include "report/src/picture.hpp"
#include "report/xml.hpp"
#include "slimpack/core/random.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using report::detail::HeldBytes;
using report::detail::Hundredths;
using report::detail::kPaints;
using report::detail::kShades;
using report::detail::Lane;
using report::detail::LanePainter;
using report::detail::LanePath;
using report::detail::Paint;
using report::detail::Picture;
using report::detail::Stretch;
using report::detail::TimeScale;

std::string svg_of(const Plan& plan, const sim::PlanSimulation& simulation) {
  std::ostringstream out;
  report::write_svg(out, plan, simulation);
  return out.str();
}

std::string svg_of(const report::detail::Picture& picture) {
  std::ostringstream out;
  report::detail::write_picture(out, picture);
  return out.str();
}

/// Times of `uniform_plan`: nothing meets, so any will do.
struct EvenTimes {
  static Nanos compute(PackId pack, std::int32_t) { return {index(pack) % 2 == 0 ? 1000 : 2000}; }
  static Nanos head(PackId, std::size_t, std::int32_t) { return {100}; }
  static Nanos transfer(PackId, std::int32_t, std::size_t) { return {50}; }
  static Nanos reduce(std::int32_t, std::int32_t) { return {500}; }
  static Nanos optimizer(std::int32_t, std::int32_t) { return {200}; }
};

struct Box {
  double left, top, right, bottom;
  std::string text;
};

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
  }));
}

/// Where texts stand that are not inside of a lane's bars; a character is 0.6 of its height wide.
std::vector<Box> text_boxes(const std::vector<test::Element>& elements) {
  std::vector<Box> boxes;
  for (const test::Element& element : elements) {
    if (element.name != "text" || element.attributes.at("class") == "number") continue;
    const std::string style = element.attributes.at("class");
    double size = style == "title" ? 16 : style == "sub" ? 12 : 11;
    if (element.attributes.contains("font-size"))
      size = std::stod(element.attributes.at("font-size"));
    const double width = 0.6 * size * static_cast<double>(characters(element.text));
    double left = std::stod(element.attributes.at("x"));
    if (style == "end") left -= width;
    if (style.find("mid") != std::string::npos) left -= width / 2;
    const double base = std::stod(element.attributes.at("y"));
    boxes.push_back({left, base - 0.75 * size, left + width, base + 0.2 * size, element.text});
  }
  return boxes;
}

void check_layout(const std::string& svg) {
  const auto elements = test::read_xml(svg);
  REQUIRE(elements.front().name == "svg");
  const double width = std::stod(elements.front().attributes.at("width"));
  const double height = std::stod(elements.front().attributes.at("height"));
  const std::vector<Box> boxes = text_boxes(elements);
  for (std::size_t a = 0; a < boxes.size(); ++a) {
    CAPTURE(boxes[a].text);
    CHECK(boxes[a].left >= 0);
    CHECK(boxes[a].right <= width);
    CHECK(boxes[a].top >= 0);
    CHECK(boxes[a].bottom <= height);
    for (std::size_t b = a + 1; b < boxes.size(); ++b) {
      const bool apart = boxes[a].right <= boxes[b].left || boxes[b].right <= boxes[a].left ||
                         boxes[a].bottom <= boxes[b].top || boxes[b].bottom <= boxes[a].top;
      CAPTURE(boxes[b].text);
      CHECK(apart);
    }
  }
}

TEST_CASE("write_svg: well-formed, self-contained, texts apart from each other") {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    plan.planner = "<a & \"b\">\n\x02\xFF]]>";
    const std::string svg = svg_of(plan, sim::simulate_plan(plan));
    const auto elements = test::read_xml(svg);
    for (const test::Element& element : elements) {
      CHECK(element.name != "script");
      CHECK(element.name != "image");
      CHECK_FALSE(element.attributes.contains("href"));
    }
    CHECK(svg.find("url(") == std::string::npos);
    CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
    check_layout(svg);
  }
}

TEST_CASE("write_svg: texts stay apart from 1 to 256 devices") {
  using Degrees = std::pair<int, int>;
  for (const Degrees& degrees : {Degrees{1, 1}, Degrees{4, 8}, Degrees{3, 5}, Degrees{20, 1},
                                 Degrees{12, 8}, Degrees{32, 8}}) {
    const int dp = degrees.first, pp = degrees.second;
    CAPTURE(dp);
    CAPTURE(pp);
    const Plan plan = test::uniform_plan(dp, pp, 3);
    check_layout(svg_of(plan, sim::simulate_plan(plan, EvenTimes{})));
  }
}

TEST_CASE("write_svg: long names are cut short") {
  Plan plan = test::uniform_plan(2, 2, 2);
  plan.planner = std::string(500, 'p');
  plan.model.name = std::string(500, 'm');
  plan.cluster.name = std::string(200, '\xC3');
  check_layout(svg_of(plan, sim::simulate_plan(plan, EvenTimes{})));
}

TEST_CASE("write_svg: beyond 256 devices whole ranks are left out and a line says so") {
  const Plan plan = test::uniform_plan(90, 3, 1);
  const std::string svg = svg_of(plan, sim::simulate_plan(plan, EvenTimes{}));
  CHECK(svg.find("The first 255 of 270 devices are drawn") != std::string::npos);
  CHECK(svg.find("data-parallel rank 84<") != std::string::npos);
  CHECK(svg.find("data-parallel rank 85<") == std::string::npos);
  check_layout(svg);
}

TEST_CASE("write_svg: the whole of a small plan") {
  const Plan plan = test::tiny_plan();
  test::check_golden("tiny.svg", svg_of(plan, sim::simulate_plan(plan, test::TinyTimes{})));
}

report::detail::Picture many_units(std::int64_t lanes, std::int64_t units) {
  report::detail::Picture picture;
  picture.title = "many";
  picture.span = Nanos{units * 3000};
  picture.limit = Bytes{2000000};
  for (std::int64_t i = 0; i < lanes; ++i) {
    report::detail::Lane lane;
    lane.name = "stage " + std::to_string(i);
    lane.stretches = [units, i] {
      Random random(static_cast<std::uint64_t>(i));
      std::vector<report::detail::Stretch> stretches;
      Nanos now;
      for (std::int64_t unit = 0; unit < units; ++unit) {
        const Nanos end = now + Nanos{random.between(1, 5999)};
        const auto paint =
            static_cast<report::detail::Paint>(random.below(report::detail::kPaints));
        const std::uint64_t shades =
            paint == report::detail::Paint::gap ? report::detail::kShades : 2;
        stretches.push_back({now, end, paint, static_cast<std::uint8_t>(random.below(shades)),
                             random.chance(1, 2), static_cast<std::uint32_t>(unit)});
        now = end;
      }
      return stretches;
    };
    lane.reductions = [] { return std::vector<report::detail::Stretch>{}; };
    lane.memory = [units, i] {
      Random random(static_cast<std::uint64_t>(i));
      std::vector<report::detail::HeldBytes> curve;
      for (std::int64_t unit = 0; unit < units; ++unit) {
        curve.push_back({Nanos{unit * 3000}, Bytes{random.between(0, 2000000)}});
      }
      return curve;
    };
    picture.lanes.push_back(std::move(lane));
  }
  return picture;
}

TEST_CASE("PictureWriter: a million units of every colour stay below 2 MB") {
  using Size = std::pair<std::int64_t, std::int64_t>;
  for (const Size& size :
       {Size{32, test::draws(31250)}, Size{1, test::draws(300000)}, Size{256, 400}}) {
    const std::int64_t lanes = size.first, units = size.second;
    CAPTURE(lanes);
    const std::string svg = svg_of(many_units(lanes, units));
    CHECK(svg.size() < 2000000);
    CHECK(svg.size() > 20000);
    CHECK_NOTHROW(test::read_xml(svg));
  }
}

/// Areas of a lane's paths in hundredths of a pixel, by paint.
std::array<double, report::detail::kPaints> areas(const report::detail::LanePath& path,
                                                  double height) {
  std::array<double, report::detail::kPaints> area{};
  for (std::size_t paint = 0; paint < report::detail::kPaints; ++paint) {
    for (std::size_t shade = 0; shade < report::detail::kShades; ++shade) {
      std::istringstream full(path.full[paint][shade]);
      char letter = 0;
      double x = 0, y = 0, width = 0;
      while (full >> letter >> x >> y >> letter >> width) area[paint] += width * height;
      std::istringstream parts(path.parts[paint][shade]);
      double tall = 0, back = 0;
      while (parts >> letter >> x >> y >> letter >> width >> letter >> tall >> letter >> back >>
             letter) {
        CHECK(back == -width);
        area[paint] += width * tall;
      }
    }
  }
  return area;
}

TEST_CASE("LanePainter: areas are shares of time, whether units are thin or wide") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t longest = std::int64_t{1} << random.between(4, 16);
    std::vector<report::detail::Stretch> stretches;
    std::array<double, report::detail::kPaints> time{};
    Nanos now;
    while (now.value < 1000000) {
      const Nanos end = now + Nanos{random.between(1, longest)};
      const auto paint =
          static_cast<report::detail::Paint>(std::min<std::uint64_t>(random.below(9), 5));
      stretches.push_back({now, end, paint, 0, false, {}});
      time[static_cast<std::size_t>(paint)] += static_cast<double>((end - now).value);
      now = end;
    }
    const report::detail::TimeScale scale{now, 140000};
    const report::detail::LanePath path =
        report::detail::LanePainter(scale, 2400, 1400, false).paint(stretches);
    const std::array<double, report::detail::kPaints> area = areas(path, 24);
    double sum = 0;
    for (std::size_t paint = 0; paint < report::detail::kPaints; ++paint) {
      sum += area[paint];
      const double share = time[paint] / static_cast<double>(now.value);
      CHECK(area[paint] / (24 * 1400) == doctest::Approx(share).epsilon(0.2));
    }
    CHECK(sum <= 24 * 1400 * 1.001);
    CHECK(sum >= 24 * 1400 * 0.8);  // units of two pixels lose a third of one between them
  }
}

TEST_CASE("TimeScale: ends are exact, places rise") {
  const report::detail::TimeScale scale{Nanos::max(), 140000};
  CHECK(scale.at(Nanos{}) == 0);
  CHECK(scale.at(Nanos::max()) == 140000);
  Hundredths last = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const Hundredths place = report::detail::TimeScale{Nanos{999}, 7777}.at(Nanos{i});
    CHECK(place >= last);
    last = place;
  }
  CHECK(report::detail::tick_step(159000, 14) == 20000);
  CHECK(report::detail::tick_step(1, 14) == 1);
  CHECK(report::detail::tick_step(Nanos::max().value, 14) == 1000000000000000000);
}

TEST_CASE("read_xml: the checker refuses what is not well-formed") {
  for (const char* text : {"<a><b></a>", "<a>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>",
                           "<a/><b/>", "<a/>x", "</a>", "", "<a b=\"<\"/>"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(test::read_xml(text), std::runtime_error);
  }
  const auto elements = test::read_xml("<a x=\"1\">t<b y=\"2\" z=\"\"/>&amp;</a>\n");
  REQUIRE(elements.size() == 2);
  CHECK(elements[0].text == "t&amp;");
  CHECK(elements[1].attributes.at("y") == "2");
}

}  // namespace
}  // namespace slimpack
