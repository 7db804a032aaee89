// SPDX-License-Identifier: Apache-2.0
#include "page_text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "figures.hpp"
#include "page_files.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

namespace {

/// A table of one row a planner. Cells carry the value to sort by.
class PlannersTable {
 public:
  explicit PlannersTable(const Comparison& comparison)
      : comparison_(comparison),
        summaries_(summarize_comparison(comparison)),
        several_(comparison.steps.size() > 1) {
    for (const PlannerSummary& summary : summaries_) {
      if (summary.feasible == 0) continue;
      slowest_ = std::max(slowest_, summary.iteration_s.mean);
      if (!fastest_ || summary.iteration_s.mean < *fastest_) fastest_ = summary.iteration_s.mean;
    }
  }

  [[nodiscard]] std::string html() {
    text_ = "<table class=\"sortable\" id=\"planners-table\">\n<thead><tr>";
    heading("planner");
    heading(several_ ? "iteration s (min-max)" : "iteration s");
    heading("speed-up over " + comparison_.baseline);
    heading(several_ ? "efficiency % (min-max)" : "efficiency %");
    for (const char* const name :
         {"MFU %", "tokens/s", "idle %", "peak GB", "tokens", "planning s"}) {
      heading(name);
    }
    text_ += "<th scope=\"col\" class=\"text\">settings found</th>";
    text_ += "</tr></thead>\n<tbody>\n";
    for (std::size_t i = 0; i < summaries_.size(); ++i) row(i);
    return text_ + "</tbody>\n</table>\n";
  }

 private:
  void heading(std::string_view name) {
    text_ += "<th scope=\"col\">" + xml_escaped(name) + "</th>";
  }
  void cell(std::string_view key, double value, const std::string& shown) {
    text_ += "<td data-key=\"" + std::string(key) + "\" data-value=\"" + shortest(value) + "\">" +
             shown + "</td>";
  }

  void row(std::size_t i) {
    const PlannerSummary& summary = summaries_[i];
    const bool best = fastest_ && summary.feasible > 0 && summary.iteration_s.mean == *fastest_;
    text_ += summary.feasible == 0 ? "<tr class=\"none\">" : best ? "<tr class=\"best\">" : "<tr>";
    text_ += "<td>" + xml_escaped(summary.planner) + "</td>";
    if (summary.feasible == 0) {
      text_ += "<td class=\"text\" colspan=\"10\" data-value=\"\">no feasible plan: " +
               xml_escaped(summary.why) + "</td></tr>\n";
      return;
    }
    const double mean = summary.iteration_s.mean;
    const std::string width = fixed(100 * ratio(mean, slowest_), 1);
    cell("iteration_s", mean,
         "<span class=\"barbox\"><span class=\"bar\" style=\"width:" + width +
             "%\"></span></span>" + range_text(summary.iteration_s, 1, 4, several_));
    if (summary.speedup) {
      cell("speedup", *summary.speedup, fixed(*summary.speedup, 3));
    } else {
      text_ += "<td data-key=\"speedup\" data-value=\"\"></td>";
    }
    cell("efficiency", summary.summed_efficiency, range_text(summary.efficiency, 100, 1, several_));
    cell("mfu", summary.mfu, fixed(summary.mfu * 100, 1));
    cell("tokens_per_s", summary.tokens_per_s, rate_text(summary.tokens_per_s));
    cell("bubble", summary.bubble, fixed(summary.bubble * 100, 1));
    const auto peak = static_cast<double>(summary.peak.value);
    cell("peak_bytes", peak, fixed(peak * 1e-9, 1));
    cell("tokens", static_cast<double>(summary.tokens.value),
         count_text(summary.tokens.value) + (summary.moves ? " *" : ""));
    cell("plan_seconds", summary.plan_seconds.mean, fixed(summary.plan_seconds.mean, 3));
    text_ += "<td class=\"text settings\">" + xml_escaped(settings(i)) + "</td></tr>\n";
  }

  /// What was found for the planner's first feasible step.
  [[nodiscard]] std::string settings(std::size_t i) const {
    const PlannerSummary& summary = summaries_[i];
    std::size_t entry = i * comparison_.steps.size();
    while (!comparison_.results[entry].metrics) ++entry;
    std::string line = settings_line(comparison_.results[entry]);
    if (several_) line = "step " + std::to_string(comparison_.results[entry].step) + ": " + line;
    if (summary.feasible < summary.steps) {
      line += "; " + std::to_string(summary.steps - summary.feasible) + " of " +
              std::to_string(summary.steps) + " steps infeasible: " + summary.why;
    }
    return line;
  }

  const Comparison& comparison_;
  std::vector<PlannerSummary> summaries_;
  bool several_;
  double slowest_ = 0;
  std::optional<double> fastest_;
  std::string text_;
};

constexpr std::string_view kPageControls = R"html(
<div id="tools" class="row">
<button type="button" id="in">zoom in</button><button type="button" id="out">zoom out</button><button type="button" id="whole">whole step</button>
<label>lanes <select id="size"><option>small</option><option>medium</option><option>large</option></select></label>
<label>colour <select id="colour"><option value="pass">by pass</option><option value="length">by longest sample</option></select></label>
<label><input type="checkbox" id="memories"> memory</label>
<label><input type="checkbox" id="paths" checked> critical path</label>
<canvas id="axis" role="img" aria-label="time axis"></canvas>
<canvas id="overview" role="img" aria-label="the part of the step in view; drag to move it"></canvas>
</div>
<p class="quiet">Ctrl and wheel zoom, also the wheel alone once a timeline is clicked; drag or shift and wheel pan; double-click or Enter goes to a
unit. Keys on a timeline: arrows from unit to unit, + and - zoom, a and d pan, Home, End, 0 for the whole step, Esc leaves.</p>
)html";

/// "forward", "idle: peer", ... with their colours.
[[nodiscard]] std::string page_keys() {
  std::string text = "<div class=\"keys\">";
  const auto key = [&](std::string_view colour, std::string_view name) {
    text += "<span><i style=\"background:var(--" + std::string(colour) + ")\"></i>" +
            std::string(name) + "</span>";
  };
  for (const std::string_view name : {"forward", "backward", "head", "optimizer"}) key(name, name);
  key("weight", "weight gradients apart");
  key("merged", "context-parallel group (line on top)");
  key("reduce", "reduction of gradients");
  key("path", "critical path");
  for (int cause = 0; cause < sim::kGapCauses; ++cause) {
    const auto gap = static_cast<sim::GapCause>(cause);
    key("gap-" + std::string(sim::to_string(gap)), "idle: " + std::string(idle_cause(gap)));
  }
  key("held", "memory held");
  key("always", "weights, gradients, optimizer");
  key("limit", "memory limit");
  text += "<span id=\"length-key\" hidden></span>";
  return text + "</div>\n";
}

[[nodiscard]] std::string page_section(std::string_view id, std::string_view title,
                                       std::string_view words, std::string_view inside) {
  std::string text = "<section id=\"";
  text.append(id).append("\" data-plans>\n<h2>").append(title).append("</h2>\n");
  text.append("<p class=\"quiet\">").append(words).append("</p>\n").append(inside);
  return text + "\n</section>\n";
}

/// A warning for each planner whose steps have other documents than those that were given.
[[nodiscard]] std::string moved_notes(const Comparison& comparison) {
  std::string notes;
  for (std::size_t i = 0; i < comparison.results.size() / comparison.steps.size(); ++i) {
    const std::string note = moved_documents(comparison, i);
    if (!note.empty()) notes += "<p class=\"warning\">* " + xml_escaped(note) + ".</p>\n";
  }
  return notes;
}

[[nodiscard]] std::string page_body(const Comparison& comparison) {
  std::ostringstream words;
  {
    TextWriter writer(words);
    write_task_line(writer, comparison);
    writer.flush();
  }
  const std::string title =
      comparison.results.size() == 1 ? "One simulated step" : "Planners side by side";
  std::string text = "<header>\n<h1>" + title + "</h1>\n<p>" + xml_escaped(words.str()) + "</p>\n";
  text +=
      "<nav class=\"quiet\"><a href=\"#planners\">planners</a><a href=\"#timelines\">timelines</a>"
      "<a href=\"#memory\">memory</a><a href=\"#times\">MicroPack times</a>"
      "<a href=\"#ranks\">ranks</a><a href=\"#path\">critical path</a>"
      "<a href=\"#every\">all figures</a></nav>\n"
      "<noscript><p><b>Timelines and charts need JavaScript; it is inside of this file and loads "
      "nothing. The table of planners stands without it.</b></p></noscript>\n</header>\n<main>\n";
  text +=
      "<section id=\"planners\">\n<h2>Planners</h2>\n<p class=\"quiet\">Each searched its own "
      "settings with the same number of simulated candidates. Ratios of several steps are of "
      "summed time.</p>\n<div class=\"scroll\" tabindex=\"0\">\n" +
      PlannersTable(comparison).html() + "</div>\n" + moved_notes(comparison) + "</section>\n";
  text += page_section("timelines", "Timelines",
                       "A lane a device. What is thinner than a pixel is gathered into columns by "
                       "its shares of time.",
                       std::string(kPageControls) + page_keys() + "<div id=\"lanes\"></div>");
  text += page_section("memory", "Memory of the devices",
                       "Peaks by what is held then, on one scale; the dashed line is the limit.",
                       "<div class=\"keys\" id=\"memory-keys\"></div>"
                       "<div class=\"cards\" id=\"memory-cards\"></div>");
  text += page_section(
      "times", "Times of MicroPacks",
      "Compute time of a MicroPack over all virtual stages: forward blue, "
      "backward green, weight gradients apart olive. CV is standard deviation over mean.",
      "<div class=\"cards\" id=\"time-cards\"></div>");
  text += page_section("ranks", "Work of data-parallel ranks",
                       "Compute time of a rank, an average stage of it, on one scale.",
                       "<div class=\"cards\" id=\"rank-cards\"></div>");
  text += page_section("path", "Critical paths",
                       "One chain of work without a pause from the start of the step to its end. A "
                       "step of the list shows itself in the timeline.",
                       "<div id=\"path-box\"></div>");
  text +=
      "<section id=\"every\">\n<h2>All figures</h2>\n<p class=\"quiet\">Every planner and "
      "step, as in <code>slimpack compare --json</code>. <button type=\"button\" id=\"save\">"
      "save as JSON</button></p>\n<div class=\"scroll\" id=\"all-figures\" tabindex=\"0\"></div>"
      "\n</section>\n</main>\n";
  return text;
}

}  // namespace

std::string script_safe(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char character : json) {
    if (character == '<') {
      out += "\\u003c";
    } else {
      out += character;
    }
  }
  return out;
}

std::string page_text(const Comparison& comparison, const std::string& data, std::size_t entries) {
  std::string text =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n";
  text += "<title>slimpack: " + xml_escaped(one_line(comparison.task.model)) + " on " +
          xml_escaped(one_line(comparison.task.cluster)) + "</title>\n";
  text += "<style>\n";
  text += page::style_css;
  text += "</style>\n<script>\n";
  text += page::watch_js;
  text += "</script>\n</head>\n<body>\n<div id=\"failed\" role=\"alert\" hidden></div>\n";
  text += page_body(comparison);
  text +=
      "<div id=\"tip\" role=\"tooltip\" hidden></div>\n"
      "<div id=\"live\" class=\"hidden\" aria-live=\"polite\"></div>\n";
  std::string tail = "<script type=\"application/json\" id=\"data\">\n" + data + "</script>\n";
  for (const std::string_view script : {page::decode_js, page::words_js, page::lanes_js,
                                        page::timelines_js, page::charts_js, page::start_js}) {
    tail.append("<script>\n").append(script).append("</script>\n");
  }
  tail += "</body>\n</html>\n";
  const std::string before = "<footer>This page: ";
  const std::string after = " " + count_text(static_cast<std::int64_t>(entries)) +
                            " units and gaps. It loads nothing and sends nothing.</footer>\n";
  // The size counts itself; ten characters hold it.
  const std::size_t rest = text.size() + before.size() + 10 + after.size() + tail.size();
  std::string size = bytes_text(Bytes{static_cast<std::int64_t>(rest)});
  size += ',';
  size.resize(10, ' ');
  return text + before + size + after + tail;
}

Comparison comparison_of(const Plan& plan, const sim::PlanSimulation& simulation) {
  Comparison comparison;
  ComparedTask& task = comparison.task;
  task.sources = plan.sources;
  task.model = plan.model.name;
  task.cluster = plan.cluster.name;
  task.dp = plan.parallel.dp;
  task.pp = plan.parallel.pp;
  task.tp = plan.parallel.tp;
  task.chunks = plan.parallel.chunks;
  task.head = plan.parallel.head;
  task.granularity = plan.parallel.granularity;
  task.max_cp = plan.parallel.max_cp;
  ComparedStep step{plan.step_index, static_cast<std::int64_t>(plan.samples.size()), {}};
  for (const Tokens length : plan.samples) {
    step.tokens += length;
    task.context = std::max(task.context, length);
  }
  comparison.steps.push_back(step);
  ComparedPlan entry;
  entry.planner = plan.planner;
  entry.step = plan.step_index;
  entry.metrics = metrics_of(plan, simulation);
  comparison.results.push_back(std::move(entry));
  return comparison;
}

}  // namespace slimpack::report::detail
