// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/page.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "report/packed_reader.hpp"
#include "report/plans.hpp"
#include "report/src/packed_bytes.hpp"
#include "report/src/page_rows.hpp"
#include "report/src/page_text.hpp"
#include "report/src/text.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/report/compare_report.hpp"
#include "support/random_plan.hpp"

namespace slimpack {
namespace {

using Json = nlohmann::json;

std::string page_of(const Plan& plan, const sim::PlanSimulation& simulation,
                    const report::HtmlOptions& options = {}) {
  std::ostringstream out;
  report::write_html(out, plan, simulation, options);
  return out.str();
}

std::string between(const std::string& text, std::string_view from, std::string_view to) {
  const std::size_t begin = text.find(from);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = text.find(to, begin + from.size());
  REQUIRE(end != std::string::npos);
  return text.substr(begin + from.size(), end - begin - from.size());
}

std::size_t count_of(const std::string& text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t i = text.find(word); i != std::string::npos; i = text.find(word, i + 1)) {
    ++count;
  }
  return count;
}

Json data_of(const std::string& page) {
  return Json::parse(between(page, "id=\"data\">", "</script>"));
}

constexpr unsigned kFirstGap = report::detail::PageRows::kFirstGap, kOptimizer = 3, kTransfer = 5;

/// An entry of a row as the page's script reads it.
struct Entry {
  unsigned code;
  std::int64_t pack = 0, chunk = 0, begin = 0, end = 0;
};

/// The rows of a rank by stage.
std::vector<std::vector<Entry>> rows_of(const std::string& packed, std::int32_t stages) {
  test::PackedReader reader(packed);
  std::map<std::pair<unsigned, std::int64_t>, std::int64_t> seen;
  std::vector<std::vector<Entry>> rows(static_cast<std::size_t>(stages));
  for (auto& row : rows) {
    std::int64_t now = 0;
    std::map<unsigned, std::int64_t> last;
    for (std::uint64_t left = reader.number(); left > 0; --left) {
      const std::uint64_t head = reader.number();
      Entry entry{static_cast<unsigned>(head & 15U)};
      entry.begin = now;
      if (entry.code >= kFirstGap) {
        now += reader.whole();
        const bool chosen =
            entry.code == kFirstGap + static_cast<unsigned>(sim::GapCause::memory) ||
            entry.code == kFirstGap + static_cast<unsigned>(sim::GapCause::order);
        CHECK(chosen == ((head & report::detail::PageRows::kInstead) != 0));
        if (chosen) {
          const std::uint64_t other = reader.number();
          CHECK((other < kFirstGap && other != kOptimizer));
          entry.pack = static_cast<std::int64_t>(reader.number());
          static_cast<void>(reader.number());
        }
      } else {
        if (entry.code != kOptimizer) entry.pack = last[entry.code] += reader.whole();
        if (head & report::detail::PageRows::kChunked) {
          entry.chunk = static_cast<std::int64_t>(reader.number());
        }
        std::int64_t& duration = seen[{entry.code, entry.pack}];
        if (head & report::detail::PageRows::kTimed) duration = reader.whole();
        if (head & report::detail::PageRows::kBlocked) {
          for (std::uint64_t blockers = reader.number(); blockers > 0; --blockers) {
            const std::uint64_t kind = reader.number();
            static_cast<void>(reader.whole() + reader.whole() + reader.whole());
            static_cast<void>(reader.number());
            if (kind == kTransfer) static_cast<void>(reader.whole() + reader.whole());
            const std::int64_t before = reader.whole();
            CHECK(before >= 0);
            if (blockers == 1 && entry.code != kOptimizer)
              CHECK(before == 0);  // nothing else held it up
          }
        }
        now += duration;
      }
      entry.end = now;
      row.push_back(entry);
    }
  }
  CHECK(reader.done());
  return rows;
}

TEST_CASE("packed bytes: numbers come back") {
  report::detail::PackedBytes bytes;
  const std::vector<std::int64_t> values{0,
                                         1,
                                         -1,
                                         63,
                                         -64,
                                         64,
                                         127,
                                         128,
                                         300,
                                         -300,
                                         1 << 20,
                                         1234567890123,
                                         -7,
                                         255,
                                         9999,
                                         100,
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min()};
  for (std::size_t count = 0; count <= values.size(); ++count) {
    test::PackedReader reader(bytes.text());
    for (std::size_t i = 0; i < count; ++i) CHECK(reader.whole() == values[i]);
    CHECK(reader.done());
    if (count < values.size()) bytes.add_signed(values[count]);
  }
  report::detail::PackedBytes sizes;
  for (const std::size_t size : {0U, 127U, 128U, 16383U, 16384U}) sizes.add_size(size);
  CHECK(sizes.size() == 1 + 1 + 2 + 2 + 3);
}

TEST_CASE("page: its rows are the simulation, without a hole, and gaps carry their causes") {
  std::int64_t weights = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, test::may_have_weights(seed % 2 == 0));
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const sim::Gaps gaps =
        sim::find_gaps(simulation.dag, simulation.timeline, report::memory_limit(plan));
    const Json data = data_of(page_of(plan, simulation));
    const Json& drawn = data.at("plans").at(0);
    REQUIRE(drawn.at("ranks").size() == static_cast<std::size_t>(plan.parallel.dp));
    std::size_t device = 0, entries = 0;
    std::array<std::int64_t, sim::kGapCauses> idle{};
    for (const Json& rank : drawn.at("ranks")) {
      for (const auto& row : rows_of(rank.at("rows"), plan.parallel.pp)) {
        entries += row.size();
        const sim::ResourceId compute = simulation.dag.devices[device].compute;
        std::vector<std::tuple<std::int64_t, std::int64_t, unsigned, std::size_t>> expected, found;
        for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
          const sim::NodeLabel& label = simulation.dag.label[i];
          if (simulation.dag.resource[i] != compute || !sim::is_compute(label.kind)) continue;
          expected.emplace_back(simulation.timeline.start[i].value,
                                simulation.timeline.end[i].value,
                                report::detail::page_kind(label.kind),
                                label.kind == sim::NodeKind::optimizer ? 0 : index(label.pack));
        }
        for (const Entry& entry : row) {
          weights += entry.code == report::detail::page_kind(sim::NodeKind::weight) ? 1 : 0;
          if (entry.code < kFirstGap) {
            found.emplace_back(entry.begin, entry.end, entry.code,
                               static_cast<std::size_t>(entry.pack));
          } else {
            idle[entry.code - kFirstGap] += entry.end - entry.begin;
          }
        }
        std::sort(expected.begin(), expected.end());
        std::sort(found.begin(), found.end());  // units of no time begin together
        CHECK(found == expected);
        REQUIRE_FALSE(row.empty());
        CHECK(row.back().end == simulation.timeline.makespan.value);
        ++device;
      }
    }
    for (std::size_t cause = 0; cause < idle.size(); ++cause) {
      CHECK(idle[cause] == gaps.sum[cause].value);
    }
    CHECK(drawn.at("entries") == entries);
  }
  CHECK(weights > 20);
}

TEST_CASE("page: memory is never drawn below what is held, and peaks stay") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.min_samples = 12;
    options.max_samples = 40;
    const Plan plan = test::random_plan(seed, options);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const auto curves = sim::memory_curves(simulation.dag, simulation.timeline);
    for (const std::size_t points : {std::size_t{1}, std::size_t{100'000'000}}) {
      report::HtmlOptions html;
      html.most_points = points;  // at least 100 a device
      const Json drawn = data_of(page_of(plan, simulation, html)).at("plans").at(0);
      const std::int64_t quantum = drawn.at("quantum"), tick = drawn.at("tick");
      CHECK(tick == std::max<std::int64_t>(1, simulation.timeline.makespan.value >> 20));
      std::size_t device = 0;
      for (const Json& rank : drawn.at("ranks")) {
        test::PackedReader reader(rank.at("memory").get<std::string>());
        for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp, ++device) {
          std::vector<std::pair<std::int64_t, std::int64_t>> curve;
          std::int64_t i = 0, level = 0, most = 0;
          for (std::uint64_t left = reader.number(); left > 0; --left) {
            i += reader.whole();
            level += reader.whole();
            curve.emplace_back(i * tick, level * quantum);
            most = std::max(most, level * quantum);
          }
          if (points == 1) CHECK(curve.size() <= 200);
          const std::int64_t peak = simulation.timeline.peak[device].bytes.value;
          CHECK(most >= peak);
          CHECK(most < peak + quantum);
          for (const sim::KindPoint& point : curves[device]) {
            const auto after = std::upper_bound(curve.begin(), curve.end(),
                                                std::pair(point.time.value, INT64_MAX));
            REQUIRE(after != curve.begin());
            CHECK(std::prev(after)->second >= sim::total(point.bytes).value);
          }
        }
        CHECK(reader.done());
      }
    }
  }
}

TEST_CASE("page: it is one document that loads nothing, whatever names there are") {
  Plan plan = test::tiny_plan();
  const std::string evil = "</script><img src=x onerror=alert(1)>\"'&<!--";
  plan.planner = plan.model.name = plan.cluster.name = evil;
  plan.sources = {{evil, 3, ""}};
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const std::string page = page_of(plan, simulation);
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page.ends_with("</html>\n"));
  for (const char* const outside : {"http://", "https://", "src=", "@import", "url(", "<img"}) {
    CAPTURE(outside);
    // The names are in the data too, but cannot begin a tag there.
    CHECK(count_of(page.substr(0, page.find("id=\"data\"")), outside) ==
          (outside == std::string_view("src=") ? count_of(page, "&lt;img src=") : 0));
  }
  CHECK(count_of(page, "<script") == 8);
  CHECK(count_of(page, "</script>") == 8);
  CHECK(count_of(page, evil) == 0);
  const std::string data = between(page, "id=\"data\">", "</script>");
  CHECK(count_of(data, "<") == 0);
  CHECK(data_of(page).at("plans").at(0).at("planner") == evil);
  CHECK(page.find("<td>&lt;/script&gt;&lt;img") != std::string::npos);
  CHECK(page.find("default-src 'none'") != std::string::npos);
  for (const char* const tag : {"section", "table", "main", "header", "body", "head", "canvas"}) {
    CAPTURE(tag);
    CHECK(count_of(page, std::string("<") + tag + ">") +
              count_of(page, std::string("<") + tag + " ") ==
          count_of(page, std::string("</") + tag + ">"));
  }
  CHECK(page == page_of(plan, simulation));
}

TEST_CASE("page: it carries the comparison and says how large it is") {
  const Plan plan = test::tiny_plan();
  const sim::PlanSimulation simulation = sim::simulate_plan(plan, test::TinyTimes{});
  const std::string page = page_of(plan, simulation);
  std::ostringstream json;
  const report::Comparison comparison = report::detail::comparison_of(plan, simulation);
  report::write_comparison_json(json, comparison);
  CHECK(data_of(page).at("comparison") == Json::parse(json.str()));
  CHECK(std::stod(between(page, "data-key=\"iteration_s\" data-value=\"", "\"")) ==
        doctest::Approx(0.000159));
  const std::string stated = between(page, "This page: ", ",");
  CHECK(stated == report::detail::bytes_text(Bytes{static_cast<std::int64_t>(page.size())}));
}

TEST_CASE("page: of plans that are too large some ranks are left out, never all") {
  const Plan plan = test::uniform_plan(8, 2, 3);
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  report::HtmlOptions options;
  std::size_t last = 9;
  const std::size_t all = data_of(page_of(plan, simulation)).at("plans").at(0).at("entries");
  for (const std::size_t most : {all, all / 2, all / 4, std::size_t{1}}) {
    options.most_entries = most;
    const Json drawn = data_of(page_of(plan, simulation, options)).at("plans").at(0);
    const std::size_t ranks = drawn.at("ranks").size();
    CHECK(ranks >= 1);
    CHECK(ranks < last);
    CHECK(drawn.at("dp") == 8);
    last = ranks;
  }
  CHECK(last == 1);
}

TEST_CASE("page: planners without a plan say why, and steps must fit") {
  report::Comparison comparison = report::detail::comparison_of(
      test::tiny_plan(), sim::simulate_plan(test::tiny_plan(), test::TinyTimes{}));
  report::ComparedPlan none;
  none.planner = "hopeless";
  none.step = comparison.steps.front().step;
  none.why = report::why_infeasible({"bytes <of> memory", 9, 8});
  comparison.results.push_back(none);
  std::ostringstream out;
  report::write_comparison_html(out, comparison, {});
  CHECK(out.str().find("no feasible plan: bytes &lt;of&gt; memory: needed 9, available 8") !=
        std::string::npos);
  CHECK(data_of(out.str()).at("plans").empty());

  const Plan plan = test::tiny_plan();
  std::vector<report::ComparedTimeline> timelines;
  for (int step = 0; step < 2; ++step) {
    timelines.push_back({plan, sim::simulate_plan(plan, test::TinyTimes{})});
  }
  timelines[1].plan.step_index = 9;
  CHECK_THROWS_WITH_AS(report::write_comparison_html(out, comparison, timelines),
                       "comparison: drawn plans must be of one step, got 9", InvalidInput);
  comparison.steps.clear();
  CHECK_THROWS_WITH_AS(report::write_comparison_html(out, comparison, {}),
                       "comparison: there must be a step", InvalidInput);
}

}  // namespace
}  // namespace slimpack
