// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/metrics.hpp"

#include "json_parts.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/io/json_writer.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

void write_communication(JsonWriter& json, const CommunicationBytes& bytes) {
  json.member("communication_bytes", bytes.total());
  json.key("communication");
  json.begin_object(JsonLayout::flat);
  json.member("transfers", bytes.transfers);
  json.member("exchange", bytes.exchange);
  json.member("head", bytes.head);
  json.member("reduction", bytes.reduction);
  json.member("gathering", bytes.gathering);
  json.member("tensor_parallel", bytes.tensor_parallel);
  json.end_object();
}

}  // namespace

void write_metrics(JsonWriter& json, const Metrics& metrics) {
  json.member("iteration_s", metrics.iteration);
  json.member("ideal_s", metrics.ideal);
  json.key("lower_bound_s");
  if (metrics.lower_bound > Nanos{}) {
    json.time(metrics.lower_bound);
  } else {
    json.null();
  }
  json.member("efficiency", metrics.efficiency);
  json.member("tokens_per_s", metrics.tokens_per_s);
  json.member("mfu", metrics.mfu);
  json.member("bubble", metrics.bubble);
  write_gaps(json, metrics.gaps);
  json.member("dp_imbalance", metrics.dp_imbalance);
  json.member("dp_over_least", metrics.dp_over_least);
  json.member("forward_cv", metrics.forward_cv);
  json.member("backward_cv", metrics.backward_cv);
  json.member("peak_bytes", metrics.peak);
  write_communication(json, metrics.communication);
  json.member("merged_tokens", metrics.merged_tokens);
  json.member("micropacks", metrics.forward_packs + metrics.backward_packs);
}

}  // namespace slimpack::report
