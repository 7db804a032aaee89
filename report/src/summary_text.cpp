// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/summary.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "figures.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/jitter.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// Columns as wide as their widest cell, the first to the left, the others to the right.
[[nodiscard]] std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(width[i] - row[i].size(), ' ');
      if (i > 0) out += "  ";
      out += i == 0 ? row[i] + space : space + row[i];
    }
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

[[nodiscard]] std::string bytes_of(std::int64_t bytes) {
  return bytes_text(Bytes{bytes});
}

[[nodiscard]] std::string time_of(std::int64_t time) {
  return time_text(Nanos{time});
}

class SummaryText {
 public:
  static constexpr std::size_t kMostRows = 64;

  SummaryText(const Plan& plan, const sim::PlanSimulation& simulation,
              const SimulationSummary& summary)
      : plan_(plan), simulation_(simulation), summary_(summary) {}

  [[nodiscard]] std::string text() const { return head() + "\n" + devices(); }

 private:
  using Row = std::vector<std::string>;
  using Parts = std::vector<TextPart>;

  [[nodiscard]] std::string of_iteration(Nanos time, std::size_t devices = 1) const {
    const double whole =
        static_cast<double>(simulation_.timeline.makespan.value) * static_cast<double>(devices);
    return fixed(100 * ratio(static_cast<double>(time.value), whole), 1);
  }

  [[nodiscard]] std::string head() const {
    const Metrics& metrics = summary_.metrics;
    std::string out = clipped(one_line(plan_.planner), 40) + ", step " +
                      std::to_string(plan_.step_index) + ": " + describe_setting(plan_) + "\n";
    out += "work           " + count_text(metrics.samples) + " samples, " +
           count_text(metrics.tokens.value) + " tokens (" +
           count_text(metrics.merged_tokens.value) + " merged), MicroPacks " +
           std::to_string(metrics.forward_packs) + " forward, " +
           std::to_string(metrics.backward_packs) + " backward";
    const auto weights = std::ranges::count(plan_.micropacks, Pass::weight, &MicroPack::pass);
    if (weights > 0) out += ", " + std::to_string(weights) + " weight";
    out += '\n';
    out += "iteration      " + time_text(metrics.iteration) + ", ideal " +
           time_text(metrics.ideal) + ", efficiency " + percent(metrics.efficiency);
    if (metrics.lower_bound > Nanos{}) {
      out += ", lower bound at these degrees, max_cp, chunks, head and weight state " +
             time_text(metrics.lower_bound);
    }
    out += ", " + rate_text(metrics.tokens_per_s) + " tokens/s, MFU " + percent(metrics.mfu) + "\n";
    out += "balance        ranks at most " + fixed(metrics.dp_imbalance, 3) +
           " of their mean; MicroPacks vary by " + percent(metrics.forward_cv) + " forward, " +
           percent(metrics.backward_cv) + " backward\n";
    out += idle() + memory() + communication() + path();
    for (const JitterReport& report : summary_.jitter) out += jitter(report);
    return out;
  }

  [[nodiscard]] std::string idle() const {
    Parts parts;
    for (std::size_t cause = 0; cause < summary_.gaps.sum.size(); ++cause) {
      parts.emplace_back(summary_.gaps.sum[cause].value,
                         idle_cause(static_cast<sim::GapCause>(cause)));
    }
    const auto share = [&](std::int64_t time) {
      return of_iteration(Nanos{time}, simulation_.dag.devices.size()) + " %";
    };
    return "idle           " + percent(summary_.metrics.bubble) +
           " of the devices' time: " + largest_first(parts, share) + "\n";
  }
  [[nodiscard]] std::string memory() const {
    const Metrics& metrics = summary_.metrics;
    const sim::DagDevice& device = simulation_.dag.devices[index(metrics.peak_device)];
    Parts parts;
    for (std::size_t kind = 0; kind < metrics.at_peak.size(); ++kind) {
      parts.emplace_back(metrics.at_peak[kind].value,
                         sim::to_string(static_cast<sim::MemoryKind>(kind)));
    }
    const Bytes limit = memory_limit(plan_);
    return "peak memory    " + bytes_text(metrics.peak) + " of " + bytes_text(limit) +
           (metrics.peak > limit ? " (TOO MUCH)" : "") + " on " +
           sim::device_name(device.dp, device.pp) + ": " + largest_first(parts, bytes_of) + "\n";
  }
  [[nodiscard]] std::string communication() const {
    const CommunicationBytes& bytes = summary_.metrics.communication;
    const Parts parts{
        {bytes.transfers.value, "transfers"}, {bytes.exchange.value, "exchange"},
        {bytes.head.value, "head"},           {bytes.reduction.value, "reduction"},
        {bytes.gathering.value, "gathering"}, {bytes.tensor_parallel.value, "tensor parallel"}};
    return "communication  " + bytes_text(bytes.total()) + ": " + largest_first(parts, bytes_of) +
           "\n";
  }
  [[nodiscard]] std::string path() const {
    Parts parts;
    for (std::size_t work = 0; work < summary_.path.time.size(); ++work) {
      parts.emplace_back(summary_.path.time[work].value, to_string(static_cast<PathWork>(work)));
    }
    return "critical path  " + std::to_string(summary_.path.steps) +
           " steps: " + largest_first(parts, time_of) + "\n";
  }
  [[nodiscard]] static std::string jitter(const JitterReport& report) {
    const sim::Jitter& result = report.result;
    const auto over = [&](Nanos time) {
      return signed_percent(ratio(static_cast<double>((time - result.planned).value),
                                  static_cast<double>(result.planned.value)));
    };
    return "jitter         " + std::string(to_string(report.options.kind)) + " of " +
           percent(static_cast<double>(report.options.parts_per_million) / 1e6) + ", " +
           std::to_string(result.makespan.size()) + " draws: iteration " + over(result.mean) +
           " on average, " + over(result.least) + " at best, " + over(result.most) + " at worst\n";
  }

  [[nodiscard]] std::vector<std::size_t> causes() const {
    std::vector<std::size_t> found;
    for (std::size_t cause = 0; cause < summary_.gaps.sum.size(); ++cause) {
      if (summary_.gaps.sum[cause] > Nanos{}) found.push_back(cause);
    }
    return found;
  }

  /// A line a device; beyond 64 a line a stage, its ranks together; beyond that a line for all.
  [[nodiscard]] std::string devices() const {
    const std::size_t count = simulation_.dag.devices.size();
    const bool single = count <= kMostRows;
    const bool by_stage = !single && static_cast<std::size_t>(plan_.parallel.pp) <= kMostRows;
    std::vector<Row> rows{{single     ? "device"
                           : by_stage ? "stage, mean of ranks"
                                      : "mean of all",
                           "busy %"}};
    for (const std::size_t cause : causes()) {
      rows[0].push_back(std::string(sim::to_string(static_cast<sim::GapCause>(cause))) + " %");
    }
    rows[0].push_back(single ? "peak" : "highest peak");
    if (single) {
      for (std::size_t i = 0; i < count; ++i) {
        const sim::DagDevice& device = simulation_.dag.devices[i];
        rows.push_back(row(sim::device_name(device.dp, device.pp), {i}));
      }
    } else if (by_stage) {
      for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
        rows.push_back(row("pp " + std::to_string(pp), stage(pp)));
      }
    } else {
      rows.push_back(row(std::to_string(count) + " devices", stage(-1)));
    }
    return aligned(rows);
  }
  /// The devices of a stage; of all stages where it is negative.
  [[nodiscard]] std::vector<std::size_t> stage(std::int32_t pp) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < simulation_.dag.devices.size(); ++i) {
      if (pp < 0 || simulation_.dag.devices[i].pp == pp) found.push_back(i);
    }
    return found;
  }
  [[nodiscard]] Row row(std::string name, const std::vector<std::size_t>& devices) const {
    Nanos busy;
    Bytes peak;
    std::array<Nanos, sim::kGapCauses> gaps{};
    for (const std::size_t i : devices) {
      busy += simulation_.timeline.busy[i];
      peak = std::max(peak, simulation_.timeline.peak[i].bytes);
      for (std::size_t cause = 0; cause < gaps.size(); ++cause) {
        gaps[cause] += summary_.gaps.device[i][cause];
      }
    }
    Row cells{std::move(name), of_iteration(busy, devices.size())};
    for (const std::size_t cause : causes()) {
      cells.push_back(of_iteration(gaps[cause], devices.size()));
    }
    cells.push_back(bytes_text(peak));
    return cells;
  }

  const Plan& plan_;
  const sim::PlanSimulation& simulation_;
  const SimulationSummary& summary_;
};

}  // namespace

void write_summary_text(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                        const SimulationSummary& summary) {
  out << SummaryText(plan, simulation, summary).text();
}

}  // namespace slimpack::report
