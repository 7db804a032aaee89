// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "describe.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/report/time_split.hpp"
#include "slimpack/report/tune.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// A cause of time in words that go behind "0.1 s more".
[[nodiscard]] std::string_view cause_words(std::size_t cause) {
  constexpr std::array<std::string_view, kTimeCauses> kWords{"work",
                                                             "recomputation",
                                                             "communication inside units",
                                                             "launches, segments and tiles",
                                                             "optimizer step",
                                                             "filling of the pipeline",
                                                             "draining of the pipeline",
                                                             "waiting for slower ranks at the end",
                                                             "reduction of gradients",
                                                             "waiting for neighbouring stages",
                                                             "waiting for ranks and stages to meet",
                                                             "waiting for a place to send",
                                                             "waiting for memory",
                                                             "waiting by order of the schedule"};
  return kWords[cause];
}

}  // namespace

const TunedDegrees& tuned_at(const TuneReport& report, TunedPlace place) {
  return report.results[place.result].tuning.tried[place.tried];
}

Tokens tokens_at(const TuneReport& report, TunedPlace place) {
  return report.batches[report.results[place.result].batch].tokens();
}

std::vector<TunedPlace> tuned_ranking(const TuneReport& report) {
  std::vector<TunedPlace> places;
  for (std::size_t result = 0; result < report.results.size(); ++result) {
    const auto& tried = report.results[result].tuning.tried;
    for (std::size_t i = 0; i < tried.size() && tried[i].time; ++i) {
      places.push_back({result, i});
    }
  }
  std::stable_sort(places.begin(), places.end(), [&](TunedPlace a, TunedPlace b) {
    return Int128{tokens_at(report, a).value} * tuned_at(report, b).time->value >
           Int128{tokens_at(report, b).value} * tuned_at(report, a).time->value;
  });
  return places;
}

std::string why_lost(const TuneReport& report, TunedPlace winner, TunedPlace loser) {
  const TunedDegrees &best = tuned_at(report, winner), &other = tuned_at(report, loser);
  const double scale = static_cast<double>(tokens_at(report, winner).value) /
                       static_cast<double>(tokens_at(report, loser).value);
  std::array<double, kTimeCauses> more{};
  double all = 0;
  std::array<std::size_t, kTimeCauses> order{};
  for (std::size_t cause = 0; cause < kTimeCauses; ++cause) {
    order[cause] = cause;
    more[cause] = seconds(other.split.time[cause]) * scale - seconds(best.split.time[cause]);
    all += more[cause];
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return more[a] > more[b]; });
  const double least = std::max(std::abs(all) / 10, 1e-9);
  std::string causes;
  const auto name = [&](std::size_t cause) {
    causes.append(causes.empty() ? ": " : ", ");
    causes.append(time_text({std::llround(std::abs(more[cause]) * 1e9)}));
    causes.append(more[cause] > 0 ? " more " : " less ").append(cause_words(cause));
  };
  for (std::size_t i = 0; i < 3; ++i) {
    if (more[order[i]] >= least) name(order[i]);
  }
  if (more[order.back()] <= -least) name(order.back());
  std::string sentence = place_name(report, loser) + " takes " +
                         fixed(100 * all / seconds(*best.time), 2) + " % longer than " +
                         place_name(report, winner);
  if (scale != 1) sentence += " for as many tokens";
  return sentence + causes;
}

}  // namespace slimpack::report
