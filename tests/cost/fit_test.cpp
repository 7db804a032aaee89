// SPDX-License-Identifier: Apache-2.0
// Reading profiles and fitting costs to them.
#include "slimpack/cost/fit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/profile.hpp"

namespace slimpack {
namespace {

const std::string kOldColumns = "kind,pass,tokens,pairs,segments,layers,ranks,bytes,seconds";
const std::string kHeader = kOldColumns + "\n";
const std::string kWholeHeader = kOldColumns + ",keys,accumulator_bytes,weight_bytes,own_pairs\n";

TEST_CASE("parse_profile: reads every kind, CRLF and blank lines") {
  const Profile profile = parse_profile(kOldColumns +
                                            "\r\n"
                                            "layer,forward,128,8192.5,2,4,1,0,0.001\r\n"
                                            "\n"
                                            "embedding,backward,128,0,0,0,1,0,2e-5\n"
                                            "head,-,64,0,0,0,1,0,3e-4\n"
                                            "optimizer,,0,0,0,0,1,4096,1e-5\n"
                                            "p2p,-,0,0,0,0,2,1048576,1e-5\n"
                                            "reduce,-,0,0,0,0,4,1048576,1e-5\n"
                                            "exchange,-,0,0,0,0,2,1048576,1.5e-5\n"
                                            "apart,-,128,8192.5,2,4,1,0,0.001\n"
                                            "weight,-,128,0,0,4,1,0,0.001",
                                        "p.csv");
  CHECK(profile.measured == MeasuredOn{});
  const std::vector<ProfileRow>& rows = profile.rows;
  REQUIRE(rows.size() == 9);
  CHECK(rows[0] ==
        ProfileRow{ProfileKind::layer, Pass::forward, {128}, 8192.5, 2, 4, 1, {0}, 0.001});
  CHECK(rows[1].kind == ProfileKind::embedding);
  CHECK(rows[1].pass == Pass::backward);
  CHECK(!rows[2].pass.has_value());
  CHECK(rows[4].bytes == Bytes{1048576});
  CHECK(rows[5].ranks == 4);
  CHECK(rows[6].seconds == doctest::Approx(1.5e-5));
  CHECK(rows[7] ==
        ProfileRow{ProfileKind::apart, std::nullopt, {128}, 8192.5, 2, 4, 1, {0}, 0.001});
  CHECK(rows[8].kind == ProfileKind::weight);
}

TEST_CASE(
    "parse_profile: what was measured on stands before the header, other # lines are comments") {
  Profile profile;
  profile.measured.shape = MeasuredShape{"tiny", 128, 4, 2, 32, 384, 257, 4};
  profile.measured.device = MeasuredDevice{"A Processor, 2 threads", "cpu", 2};
  profile.rows = {{ProfileKind::head, std::nullopt, {64}, 0, 0, 0, 1, {0}, 3e-4}};
  std::ostringstream text;
  write_profile(text, profile);
  CHECK(text.str() ==
        "# model: tiny\n# hidden: 128\n# heads: 4\n# kv_heads: 2\n# head_dim: 32\n# ffn: 384\n"
        "# vocab: 257\n# bytes_per_element: 4\n# device: A Processor, 2 threads\n"
        "# cluster: cpu\n# ranks: 2\n" +
            kWholeHeader + "head,-,64,0,0,0,1,0,3e-04,0,0,0,0\n");
  CHECK(parse_profile(text.str(), "p.csv") == profile);
  CHECK(parse_profile("# on a Monday\n# note: quiet\r\n" + text.str() + "# the end", "p.csv") ==
        profile);
  for (const bool shape : {false, true}) {  // one of the two alone
    Profile part = profile;
    shape ? part.measured.device.reset() : part.measured.shape.reset();
    std::ostringstream some;
    write_profile(some, part);
    CHECK(parse_profile(some.str(), "p.csv") == part);
  }
  profile.measured.device->name = "two\nlines";
  CHECK_THROWS_WITH_AS(write_profile(text, profile),
                       "write_profile: 'device' must be one line, got 'two\nlines'", InvalidInput);
}

TEST_CASE("parse_profile: an origin that is not whole is refused, naming the key") {
  const auto refuses = [](const std::string& lines, const std::string& message) {
    const std::string text = lines + kHeader + "head,-,64,0,0,0,1,0,3e-4\n";
    CHECK_THROWS_WITH_AS(static_cast<void>(parse_profile(text, "p.csv")), message.c_str(),
                         InvalidInput);
  };
  refuses("# hidden: 128\n",
          "p.csv: the line '# heads: VALUE' is missing beside the others of its kind");
  refuses("# device: x\n# ranks: 1\n",
          "p.csv: the line '# cluster: VALUE' is missing beside the others of its kind");
  refuses("# ranks: 1\n#ranks:1\n", "p.csv:2: the key must be there once, got 'ranks'");
  refuses("# vocab: many\n", "p.csv:1: 'vocab' must be an integer in 1 .. 2^40, got 'many'");
  refuses("# ranks: 0\n", "p.csv:1: 'ranks' must be an integer in 1 .. 2^40, got '0'");
}

TEST_CASE("parse_profile: refuses with file, line, column, rule and value") {
  const auto refuses = [](const std::string& text, const std::string& message) {
    CHECK_THROWS_WITH_AS(static_cast<void>(parse_profile(text, "p.csv")), message.c_str(),
                         InvalidInput);
  };
  const std::string good = "layer,forward,128,8192,2,4,1,0,0.001\n";
  refuses("", "p.csv: no measurement");
  refuses(kHeader, "p.csv: no measurement");
  refuses(good, "p.csv:1: the header must name columns of a profile, each once, got 'layer'");
  refuses("kind,pass,tokens,pairs,segments,layers,ranks,bytes\n",
          "p.csv:1: the header must have the column 'seconds', got "
          "'kind,pass,tokens,pairs,segments,layers,ranks,bytes'");
  refuses(kOldColumns + ",keys,keys\n",
          "p.csv:1: the header must name columns of a profile, each once, got 'keys'");
  refuses(kHeader + good + "layer,forward,1\n", "p.csv:3: a line must have 9 columns, got 3");
  refuses(kHeader + "layer,forward,1,1,1,1,1,1,1,1\n",
          "p.csv:2: a line must have 9 columns, got 10");
  refuses(kHeader + "lyer,forward,128,8192,2,4,1,0,0.001\n",
          "p.csv:2: column 'kind' must be layer, apart, weight, embedding, head, optimizer, "
          "p2p, reduce, exchange, tp, cp or light, got 'lyer'");
  refuses(kHeader + "tp,-,128,8192,2,4,2,64,0.001\n",
          "p.csv:2: column 'pass' must be forward or backward where there are layers, got '-'");
  refuses(kHeader + "cp,-,128,8192,2,4,2,64,0.001\n",
          "p.csv:2: column 'pass' must be forward or backward, got '-'");
  refuses(kHeader + "cp,forward,128,8192,2,4,1,64,0.001\n",
          "p.csv:2: column 'ranks' must be an integer >= 2, got '1'");
  refuses(kHeader + "cp,forward,0,8192,2,4,2,64,0.001\n",
          "p.csv:2: column 'tokens' must be an integer >= 1, got '0'");
  refuses(kOldColumns + ",own_pairs\nlayer,forward,128,8192,2,4,1,0,0.001,8193\n",
          "p.csv:2: column 'own_pairs' must be at most those of column 'pairs', got '8193'");
  refuses(kOldColumns + ",own_pairs\nlayer,forward,128,8192,2,4,1,0,0.001,-1\n",
          "p.csv:2: column 'own_pairs' must be a finite number >= 0, got '-1'");
  refuses(kHeader + "layer,both,128,8192,2,4,1,0,0.001\n",
          "p.csv:2: column 'pass' must be forward or backward, got 'both'");
  refuses(kHeader + "head,both,128,0,0,0,1,0,0.001\n",
          "p.csv:2: column 'pass' must be forward, backward, - or empty, got 'both'");
  refuses(kHeader + "layer,forward,12x,8192,2,4,1,0,0.001\n",
          "p.csv:2: column 'tokens' must be an integer >= 1, got '12x'");
  refuses(kHeader + "layer,forward,99999999999999999999,8192,2,4,1,0,0.001\n",
          "p.csv:2: column 'tokens' must be an integer >= 1, got '99999999999999999999'");
  refuses(kHeader + "p2p,-,-1,0,0,0,2,1,0.001\n",
          "p.csv:2: column 'tokens' must be an integer >= 0, got '-1'");
  refuses(kHeader + "layer,forward,128,0,2,4,1,0,0.001\n",
          "p.csv:2: column 'pairs' must be a finite number > 0, got '0'");
  refuses(kHeader + "head,-,128,-1,2,4,1,0,0.001\n",
          "p.csv:2: column 'pairs' must be a finite number >= 0, got '-1'");
  refuses(kHeader + "layer,forward,128,1,0,4,1,0,0.001\n",
          "p.csv:2: column 'segments' must be an integer >= 1, got '0'");
  refuses(kHeader + "layer,forward,128,1,1,0,1,0,0.001\n",
          "p.csv:2: column 'layers' must be an integer >= 1, got '0'");
  refuses(kHeader + "apart,-,128,0,1,1,1,0,0.001\n",
          "p.csv:2: column 'pairs' must be a finite number > 0, got '0'");
  refuses(kHeader + "weight,-,128,0,0,0,1,0,0.001\n",
          "p.csv:2: column 'layers' must be an integer >= 1, got '0'");
  refuses(kHeader + "p2p,-,0,0,0,0,0,1,0.001\n",
          "p.csv:2: column 'ranks' must be an integer >= 1, got '0'");
  refuses(
      kHeader + "layer,forward,128,1,1,1,2,0,0.001\n",
      "p.csv:2: column 'ranks' must be 1 for layer, apart, weight, embedding, head and light, got "
      "'2'");
  refuses(kHeader + "p2p,-,0,0,0,0,2,1.5,0.001\n",
          "p.csv:2: column 'bytes' must be an integer >= 0, got '1.5'");
  refuses(kHeader + "p2p,-,0,0,0,0,2,1,0\n",
          "p.csv:2: column 'seconds' must be a finite number > 0, got '0'");
  refuses(kHeader + "p2p,-,0,0,0,0,2,1,nan\n",
          "p.csv:2: column 'seconds' must be a finite number > 0, got 'nan'");
  refuses(kHeader + "p2p,-,0,0,0,0,2,1,1e999\n",
          "p.csv:2: column 'seconds' must be a finite number > 0, got '1e999'");
}

// The best of all active sets: least squares on each subset of columns, if it is not negative.
double best_error(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  double best = b.norm();
  for (unsigned set = 1; set < 1U << static_cast<unsigned>(a.cols()); ++set) {
    std::vector<Eigen::Index> columns;
    for (Eigen::Index i = 0; i < a.cols(); ++i) {
      if ((set >> static_cast<unsigned>(i) & 1U) != 0) columns.push_back(i);
    }
    Eigen::MatrixXd chosen(a.rows(), static_cast<Eigen::Index>(columns.size()));
    for (std::size_t i = 0; i < columns.size(); ++i) {
      chosen.col(static_cast<Eigen::Index>(i)) = a.col(columns[i]);
    }
    const Eigen::VectorXd x = chosen.completeOrthogonalDecomposition().solve(b);
    if (x.minCoeff() < 0) continue;
    best = std::min(best, (b - chosen * x).norm());
  }
  return best;
}

TEST_CASE("non_negative_least_squares: as good as the best of all active sets") {
  std::int64_t at_zero = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Eigen::Index rows = random.between(1, 12), columns = random.between(1, 6);
    Eigen::MatrixXd a(rows, columns);
    Eigen::VectorXd b(rows);
    for (Eigen::Index row = 0; row < rows; ++row) {
      b(row) = random.normal();
      for (Eigen::Index column = 0; column < columns; ++column) {
        const double scale = std::pow(10.0, static_cast<double>(column) * 3 - 6);
        a(row, column) = (random.normal() + (seed % 3 == 0 ? 2 : 0)) * scale;
      }
    }
    if (seed % 5 == 0 && columns > 1) a.col(1) = 2 * a.col(0);  // dependent columns
    if (seed % 7 == 0) a.col(columns - 1).setZero();
    const Eigen::VectorXd x = non_negative_least_squares(a, b);
    CHECK(x.minCoeff() >= 0);
    for (Eigen::Index i = 0; i < columns; ++i) at_zero += x(i) == 0 ? 1 : 0;
    CHECK((b - a * x).norm() <= best_error(a, b) * (1 + 1e-9) + 1e-9 * b.norm());
    CHECK(non_negative_least_squares(a, b) == x);
  }
  CHECK(at_zero > 300);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(non_negative_least_squares(Eigen::MatrixXd(2, 1), Eigen::VectorXd(3))),
      "non_negative_least_squares: rows of A must equal the size of b and be > 0, got 2",
      InvalidInput);
}

std::vector<ProfileRow> synthetic(std::uint64_t seed, const FittedTerms& terms, ProfileKind kind,
                                  std::optional<Pass> pass, double noise) {
  Random random(seed);
  std::vector<ProfileRow> rows;
  for (int i = 0; i < 200; ++i) {
    ProfileRow row;
    row.kind = kind;
    row.pass = pass;
    row.layers = random.between(1, 8);
    row.tokens = {std::int64_t{1} << random.between(4, 14)};
    row.segments = random.between(1, 16);
    const auto prefix = static_cast<double>(random.below(3) * random.below(100'000));
    row.pairs = static_cast<double>(row.tokens.value) *
                (prefix + static_cast<double>(row.tokens.value) / 2);
    row.bytes = {std::int64_t{1} << random.between(4, 28)};
    const double layers = kind <= ProfileKind::weight ? static_cast<double>(row.layers) : 1;
    row.seconds =
        terms.unit +
        layers * (terms.layer + terms.token * static_cast<double>(row.tokens.value) +
                  terms.pair * row.pairs + terms.segment * static_cast<double>(row.segments)) +
        terms.byte * static_cast<double>(row.bytes.value);
    row.seconds *= 1 + noise * (2 * random.unit() - 1);
    rows.push_back(row);
  }
  return rows;
}

TEST_CASE("fit_cost: recovers the coefficients of noisy profiles and judges itself") {
  const FittedTerms layer{1e-5, 4e-5, 6.6e-7, 3.3e-11, 5e-7, 0};
  const FittedTerms head{4e-5, 0, 1.4e-6, 0, 0, 0};
  const FittedTerms link{7e-6, 0, 0, 0, 0, 3e-12};
  for (const double noise : {0.0, 0.05}) {
    CAPTURE(noise);
    std::vector<ProfileRow> rows = synthetic(1, layer, ProfileKind::layer, Pass::backward, noise);
    const auto more = [&](const std::vector<ProfileRow>& others) {
      rows.insert(rows.end(), others.begin(), others.end());
    };
    more(synthetic(2, head, ProfileKind::head, std::nullopt, noise));
    more(synthetic(3, link, ProfileKind::p2p, std::nullopt, noise));
    const FitResult result = fit_cost(rows);
    REQUIRE(result.cost.layer_backward.has_value());
    REQUIRE(result.cost.head.has_value());
    REQUIRE(result.cost.p2p.has_value());
    CHECK(!result.cost.layer_forward.has_value());
    CHECK(!result.cost.reduce.has_value());
    const double close = noise == 0 ? 1e-6 : 0.05;
    CHECK(result.cost.layer_backward->token == doctest::Approx(layer.token).epsilon(close));
    CHECK(result.cost.layer_backward->pair == doctest::Approx(layer.pair).epsilon(close));
    CHECK(result.cost.layer_backward->layer == doctest::Approx(layer.layer).epsilon(4 * close));
    CHECK(result.cost.layer_backward->segment == doctest::Approx(layer.segment).epsilon(0.5));
    CHECK(result.cost.head->token == doctest::Approx(head.token).epsilon(close));
    CHECK(result.cost.p2p->byte == doctest::Approx(link.byte).epsilon(close));
    CHECK(result.cost.p2p->unit == doctest::Approx(link.unit).epsilon(close));
    REQUIRE(result.kinds.size() == 3);
    for (const KindFit& fit : result.kinds) {
      CHECK(fit.rows == 200);
      CHECK(fit.held_out == 40);
      REQUIRE(fit.mean_error.has_value());
      // Uniform noise of 5 % leaves a mean error of about 2.5 %.
      CHECK(*fit.mean_error <= (noise == 0 ? 1e-9 : 0.03));
      if (noise > 0) CHECK(*fit.mean_error >= 0.015);
      CHECK(*fit.worst_error >= *fit.mean_error);
      CHECK(*fit.worst_error <= (noise == 0 ? 1e-9 : 0.07));
      CHECK(fit.fitted_mean_error <= (noise == 0 ? 1e-9 : 0.03));
    }
  }
}

TEST_CASE("fit_cost: groups are fitted beyond the layers of their pass") {
  const FittedTerms layers{1e-5, 2e-5, 3.6e-7, 3.3e-11, 5e-7, 0};
  const auto alone = synthetic(4, layers, ProfileKind::layer, Pass::backward, 0);
  std::vector<ProfileRow> rows = synthetic(5, layers, ProfileKind::layer, Pass::backward, 0);
  Random random(8);
  for (ProfileRow& row : rows) {
    row.kind = ProfileKind::context;
    row.ranks = 2;
    row.bytes = {random.between(0, 10'000'000)};
    row.seconds +=
        7e-5 * static_cast<double>(row.layers) + 3e-10 * static_cast<double>(row.bytes.value);
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(fit_cost(rows)),
                       "fit_cost: rows of kinds tp, in units, cp and light need rows of layers of "
                       "their pass",
                       InvalidInput);
  rows.insert(rows.begin(), alone.begin(), alone.end());
  const FitResult result = fit_cost(rows);
  CHECK_FALSE(result.cost.context_forward.has_value());
  REQUIRE(result.cost.context_backward.has_value());
  const FittedTerms& group = *result.cost.context_backward;
  CHECK(group.layer == doctest::Approx(7e-5).epsilon(1e-4));
  CHECK(group.byte == doctest::Approx(3e-10).epsilon(1e-4));
  CHECK(group.unit + group.token + group.pair + group.segment == 0);
  CHECK(result.kinds.back().kind == ProfileKind::context);
  CHECK(result.kinds.back().fitted_mean_error < 1e-6);
  // A group that takes less than its layers adds nothing.
  for (ProfileRow& row : rows) {
    if (row.kind == ProfileKind::context) row.seconds = detail::layer_seconds(layers, row) / 2;
  }
  const FitResult less = fit_cost(rows);
  CHECK(less.cost.context_backward->layer + less.cost.context_backward->byte == 0);
  CHECK(less.kinds.back().fitted_mean_error > 0.5);
}

TEST_CASE("fit_cost: what `light` adds to F and B is fitted beyond both") {
  const FittedTerms forward{1e-5, 2e-5, 3.6e-7, 3.3e-11, 5e-7, 0},
      backward{2e-5, 3e-5, 7.2e-7, 6.6e-11, 9e-7, 0};
  std::vector<ProfileRow> rows = synthetic(4, forward, ProfileKind::layer, Pass::forward, 0);
  for (const ProfileRow& row : synthetic(5, backward, ProfileKind::layer, Pass::backward, 0)) {
    rows.push_back(row);
    ProfileRow& both = rows.emplace_back(row);
    both.kind = ProfileKind::light;
    both.pass.reset();
    both.seconds +=
        detail::layer_seconds(forward, row) +
        static_cast<double>(row.layers) * (4e-5 + 1.1e-7 * static_cast<double>(row.tokens.value));
  }
  const FitResult result = fit_cost(rows);
  REQUIRE(result.cost.light.has_value());
  CHECK(result.cost.light->layer == doctest::Approx(4e-5).epsilon(1e-3));
  CHECK(result.cost.light->token == doctest::Approx(1.1e-7).epsilon(1e-3));
  CHECK(result.cost.light->unit + result.cost.light->pair + result.cost.light->segment == 0);
  std::erase_if(rows, [](const ProfileRow& row) { return row.pass == Pass::backward; });
  CHECK_THROWS_AS(static_cast<void>(fit_cost(rows)), InvalidInput);
}

TEST_CASE("fit_cost: collectives in units are fitted beyond what devices have of the layers") {
  const FittedTerms layers{1e-5, 2e-5, 3.6e-7, 3.3e-11, 5e-7, 0};
  std::vector<ProfileRow> rows, units;
  Random random(8);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const ProfileRow& row : synthetic(4, layers, ProfileKind::layer, pass, 0)) {
      rows.push_back(row);
      ProfileRow& unit = units.emplace_back(row);
      unit.kind = ProfileKind::tensor;
      unit.ranks = random.between(2, 4);
      unit.bytes = {random.between(1, 10'000'000)};
      const auto tp = static_cast<double>(unit.ranks),
                 tokens = static_cast<double>(unit.tokens.value);
      const auto count = static_cast<double>(unit.layers * (pass == Pass::forward ? 4 : 6) + 1);
      unit.seconds = layers.unit +
                     static_cast<double>(unit.layers) *
                         (layers.layer + (layers.token * tokens + layers.pair * unit.pairs) / tp +
                          layers.segment * static_cast<double>(unit.segments)) +
                     count * (6e-6 + 2e-10 * static_cast<double>(unit.bytes.value));
    }
  }
  CHECK_THROWS_AS(static_cast<void>(fit_cost(units)), InvalidInput);
  ProfileRow alone;  // beside one by itself
  alone.kind = ProfileKind::tensor;
  alone.ranks = 2;
  alone.bytes = {1'000'000};
  alone.seconds = 6e-6 + 2e-4;
  units.push_back(alone);
  rows.insert(rows.end(), units.begin(), units.end());
  const FitResult result = fit_cost(rows);
  REQUIRE(result.cost.tensor.has_value());
  CHECK(result.cost.tensor->unit == doctest::Approx(6e-6).epsilon(1e-4));
  CHECK(result.cost.tensor->byte == doctest::Approx(2e-10).epsilon(1e-4));
  CHECK(result.kinds.back().rows == units.size());
  CHECK(!result.kinds.back().pass.has_value());
}

TEST_CASE("fit_cost: B that leaves weights apart and W are fitted together, beside B") {
  const FittedTerms apart{1e-5, 2e-5, 3.6e-7, 3.3e-11, 5e-7, 0};
  FittedTerms weight{1e-5, 2e-5, 3e-7, 0, 0, 0};
  const auto whole = synthetic(4, apart, ProfileKind::layer, Pass::backward, 0);
  std::vector<ProfileRow> rows = whole;
  const auto more = [&](const std::vector<ProfileRow>& others) {
    rows.insert(rows.end(), others.begin(), others.end());
  };
  const auto refused = [&] {
    CHECK_THROWS_WITH_AS(static_cast<void>(fit_cost(rows)),
                         "cost: B that leaves weights apart (apart, layer_apart) and W (weight, "
                         "layer_weight) must be measured together, beside B (layer backward, "
                         "layer_backward)",
                         InvalidInput);
  };
  more(synthetic(5, apart, ProfileKind::apart, std::nullopt, 0));
  refused();
  std::vector<ProfileRow> of_weights = synthetic(6, weight, ProfileKind::weight, std::nullopt, 0);
  weight.accumulator_byte = 2e-12;
  Random random(7);
  for (ProfileRow& row : of_weights) {
    row.pairs = 0;
    row.segments = 0;
    row.accumulator_bytes = {random.between(1, 1'000'000)};
    row.seconds += weight.accumulator_byte * static_cast<double>(row.accumulator_bytes.value);
  }
  more(of_weights);
  const FitResult result = fit_cost(rows);
  REQUIRE(result.cost.layer_apart.has_value());
  REQUIRE(result.cost.layer_weight.has_value());
  CHECK(result.cost.layer_apart->token == doctest::Approx(apart.token).epsilon(1e-6));
  CHECK(result.cost.layer_apart->pair == doctest::Approx(apart.pair).epsilon(1e-6));
  CHECK(result.cost.layer_weight->token == doctest::Approx(weight.token).epsilon(1e-6));
  CHECK(result.cost.layer_weight->layer == doctest::Approx(weight.layer).epsilon(1e-6));
  CHECK(result.cost.layer_weight->accumulator_byte ==
        doctest::Approx(weight.accumulator_byte).epsilon(1e-6));
  CHECK(result.cost.layer_weight->pair == 0);
  rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(whole.size()));
  refused();
}

TEST_CASE("fit_cost: pairs of a slice with itself have a price where rows tell them") {
  const FittedTerms layer{1e-5, 4e-5, 6.6e-7, 3.3e-11, 5e-7, 0};
  for (const ProfileKind kind : {ProfileKind::layer, ProfileKind::apart}) {
    const bool whole = kind == ProfileKind::layer;
    CAPTURE(whole);
    const std::optional<Pass> pass = whole ? std::optional{Pass::backward} : std::nullopt;
    std::vector<ProfileRow> rows = synthetic(11, layer, kind, pass, 0);
    for (ProfileRow& row : rows) {
      row.own_pairs = static_cast<double>(row.tokens.value * row.tokens.value) / 2;
      row.seconds += static_cast<double>(row.layers) * 5e-12 * row.own_pairs;
    }
    if (!whole) {  // beside them, for which there is nothing to tell
      for (const auto& others : {synthetic(12, layer, ProfileKind::layer, Pass::backward, 0),
                                 synthetic(13, layer, ProfileKind::weight, std::nullopt, 0)}) {
        rows.insert(rows.end(), others.begin(), others.end());
      }
    }
    const FittedCost cost = fit_cost(rows).cost;
    const FittedTerms& found = whole ? *cost.layer_backward : *cost.layer_apart;
    CHECK(found.pair == doctest::Approx(layer.pair).epsilon(1e-6));
    CHECK(found.own_pair == doctest::Approx(5e-12).epsilon(1e-6));
    if (!whole) CHECK(cost.layer_backward->own_pair == 0);
  }
  // Rows that tell nothing of them, as in older files, are priced by all pairs.
  const auto old = synthetic(11, layer, ProfileKind::layer, Pass::backward, 0);
  CHECK(fit_cost(old).cost.layer_backward->own_pair == 0);
}

TEST_CASE("fit_cost: a second price of tokens that spill, only where rows ask for it") {
  const FittedTerms layer{1e-5, 4e-5, 6.6e-7, 3.3e-11, 5e-7, 0};
  constexpr std::int64_t kFrom = 512;
  for (const double noise : {0.0, 0.02}) {
    CAPTURE(noise);
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto plain = synthetic(seed, layer, ProfileKind::layer, Pass::forward, noise);
      const FittedTerms once = *fit_cost(plain).cost.layer_forward;
      CHECK(once.spill_token == 0);
      CHECK(once.spill_from == 0);
      std::vector<ProfileRow> rows = plain;
      for (ProfileRow& row : rows) {
        const std::int64_t more = std::max<std::int64_t>(row.tokens.value - kFrom, 0);
        row.seconds += static_cast<double>(row.layers * more) * layer.token / 2;
      }
      const FittedTerms twice = *fit_cost(rows).cost.layer_forward;
      CHECK(twice.spill_from == kFrom);
      CHECK(twice.token == doctest::Approx(layer.token).epsilon(noise == 0 ? 1e-6 : 0.1));
      CHECK(twice.spill_token == doctest::Approx(layer.token / 2).epsilon(noise == 0 ? 1e-6 : 0.2));
    }
  }
  // Of no more rows than coefficients nothing can be told.
  std::vector<ProfileRow> few = synthetic(9, layer, ProfileKind::weight, std::nullopt, 0.02);
  few.resize(6);
  for (std::size_t i = 0; i < few.size(); ++i) {
    few[i].seconds *= few[i].tokens.value > kFrom ? 3 : 1;
    few[i].kind = ProfileKind::layer;
    few[i].pass = Pass::forward;
  }
  CHECK(fit_cost(few).cost.layer_forward->spill_token == 0);
  // Units that are cheaper a token when they are large have a cost of a unit, not a negative price.
  std::vector<ProfileRow> concave = synthetic(9, layer, ProfileKind::layer, Pass::forward, 0);
  for (ProfileRow& row : concave) {
    row.seconds -= static_cast<double>(std::max<std::int64_t>(row.tokens.value - kFrom, 0)) * 1e-7;
  }
  CHECK(fit_cost(concave).cost.layer_forward->spill_token == 0);
}

TEST_CASE("fit_cost: small messages count as much as large ones") {
  // A large transfer that is 20 % off must not move the latency of the small ones.
  const FittedTerms link{7e-6, 0, 0, 0, 0, 3e-12};
  std::vector<ProfileRow> rows = synthetic(3, link, ProfileKind::p2p, std::nullopt, 0);
  ProfileRow off = rows[0];
  off.bytes = {std::int64_t{1} << 32};
  off.seconds = 1.2 * (link.unit + link.byte * static_cast<double>(off.bytes.value));
  rows.push_back(off);
  const FitResult result = fit_cost(rows);
  CHECK(result.cost.p2p->unit == doctest::Approx(link.unit).epsilon(0.02));
}

TEST_CASE("fit_cost: rows of layers count by their seconds") {
  // The tokens' price t alone, of rows with x tokens and m seconds: the sum of (t x - m)^2 / m is
  // least where t is the sum of x over that of x^2 / m.
  Random random(11);
  for (const ProfileKind kind : {ProfileKind::layer, ProfileKind::apart, ProfileKind::head}) {
    std::vector<ProfileRow> rows;
    double tokens = 0, squares = 0, relative = 0, relative_squares = 0;
    for (int i = 0; i < 4; ++i) {  // too few to hold one out
      ProfileRow row;
      row.kind = kind;
      if (kind == ProfileKind::layer) row.pass = Pass::forward;
      row.layers = kind == ProfileKind::head ? 0 : 1;
      row.tokens = {random.between(100, 5000)};
      const auto x = static_cast<double>(row.tokens.value);
      // Dearer by each token: no fixed cost helps.
      row.seconds = 1e-9 * x * x * (1 + 1e-4 * static_cast<double>(random.between(0, 100)));
      tokens += x;
      squares += x * x / row.seconds;
      relative += x / row.seconds;
      relative_squares += x * x / (row.seconds * row.seconds);
      rows.push_back(row);
    }
    FitResult result;
    if (kind == ProfileKind::apart) {
      std::vector<ProfileRow> all = rows;
      for (ProfileRow row : rows) {
        row.kind = ProfileKind::layer;
        row.pass = Pass::backward;
        all.push_back(row);
        row.kind = ProfileKind::weight;
        row.pass.reset();
        all.push_back(row);
      }
      result = fit_cost(all);
      CHECK(result.cost.layer_weight->token == doctest::Approx(tokens / squares));
      CHECK(result.cost.layer_apart->token == doctest::Approx(tokens / squares));
    } else if (kind == ProfileKind::layer) {
      result = fit_cost(rows);
      CHECK(result.cost.layer_forward->token == doctest::Approx(tokens / squares));
    } else {
      result = fit_cost(rows);
      CHECK(result.cost.head->token == doctest::Approx(relative / relative_squares));
    }
  }
}

TEST_CASE("fit_cost: held-out rows are not fitted; few rows are all fitted") {
  std::vector<ProfileRow> rows;
  for (std::int64_t i = 1; i <= 5; ++i) {
    ProfileRow row;
    row.kind = ProfileKind::reduce;
    row.bytes = {i * 1000};
    row.seconds = static_cast<double>(i) * 1e-6 * (i == 5 ? 2 : 1);
    rows.push_back(row);
  }
  const FitResult sampled = fit_cost(rows);
  REQUIRE(sampled.kinds.size() == 1);
  CHECK(sampled.kinds[0].held_out == 1);
  CHECK(*sampled.kinds[0].worst_error == doctest::Approx(0.5));
  rows.pop_back();
  const FitResult all = fit_cost(rows);
  CHECK(all.kinds[0].held_out == 0);
  CHECK(!all.kinds[0].mean_error.has_value());
  CHECK(all.cost.reduce->byte == doctest::Approx(1e-9));
  CHECK(fit_cost(rows, {2}).kinds[0].held_out == 2);
  CHECK_THROWS_WITH_AS(static_cast<void>(fit_cost(rows, {1})),
                       "fit_cost: one row in `every` >= 2 is held out, got 1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(fit_cost({})), "fit_cost: no measurement", InvalidInput);
}

}  // namespace
}  // namespace slimpack
