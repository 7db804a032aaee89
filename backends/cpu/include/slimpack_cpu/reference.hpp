// SPDX-License-Identifier: Apache-2.0
// The oracle: the same decoder one sample at a time, unsliced and unpacked, with loops of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// A matrix of its own, row by row.
struct Matrix {
  std::int64_t rows = 0;       ///< how many
  std::int64_t cols = 0;       ///< numbers of a row
  std::vector<double> values;  ///< rows x cols

  Matrix() = default;
  /// A matrix of zeros.
  Matrix(std::int64_t row_count, std::int64_t col_count)
      : rows(row_count),
        cols(col_count),
        values(static_cast<std::size_t>(row_count * col_count), 0.0) {}
  /// An element, unchecked.
  double& operator()(std::int64_t row, std::int64_t col) {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  /// An element, unchecked.
  double operator()(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
};

/// Tensors by name.
using Tensors = std::map<std::string, Matrix>;

/// Loss and gradients of a step.
struct ReferenceResult {
  double loss = 0;                  ///< sum over targets / number of targets
  std::vector<double> sample_loss;  ///< sum over the sample's targets, not divided
  Tensors gradients;                ///< of `loss`, one for each weight
};

/// The weights that every partition of the model begins with.
[[nodiscard]] inline Tensors initial_weights(const ModelShape& model, std::uint64_t seed) {
  Tensors weights;
  for (const runtime::TensorShape& tensor : runtime::model_tensors(model)) {
    Matrix matrix(tensor.rows, tensor.cols);
    runtime::initialise(matrix.values, tensor, 0, seed);
    weights.emplace(tensor.name, std::move(matrix));
  }
  return weights;
}

namespace detail {

/// Forward and backward of one sample. Nothing here is shared with the operators.
class ReferenceSample {
 public:
  ReferenceSample(const ModelShape& model, const Tensors& weights,
                  const std::vector<std::int32_t>& tokens,
                  const std::vector<std::optional<std::int32_t>>& targets, Tensors& gradients)
      : model_(model),
        weights_(weights),
        tokens_(tokens),
        targets_(targets),
        gradients_(gradients),
        length_(static_cast<std::int64_t>(tokens.size())) {}

  /// The sum of the losses; adds the gradients of scale * sum.
  double run(double scale) {
    Matrix hidden(length_, model_.hidden);
    for (std::int64_t t = 0; t < length_; ++t) {
      for (std::int64_t i = 0; i < model_.hidden; ++i) {
        hidden(t, i) = weight("model.embed_tokens.weight")(tokens_[at(t)], i);
      }
    }
    std::vector<Layer> layers;
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      layers.push_back(layer_forward("model.layers." + std::to_string(layer) + ".", hidden));
      hidden = layers.back().output;
    }
    const std::string head = model_.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    const Matrix normed = norm_forward(hidden, "model.norm.weight");
    Matrix logits = times(normed, head);
    double loss = 0;
    for (std::int64_t t = 0; t < length_; ++t) {
      if (!targets_[at(t)]) {
        for (std::int64_t v = 0; v < model_.vocab; ++v) logits(t, v) = 0;
        continue;
      }
      double largest = logits(t, 0), sum = 0;
      for (std::int64_t v = 0; v < model_.vocab; ++v) largest = std::max(largest, logits(t, v));
      for (std::int64_t v = 0; v < model_.vocab; ++v) sum += std::exp(logits(t, v) - largest);
      const double log_sum = largest + std::log(sum);
      loss += log_sum - logits(t, *targets_[at(t)]);
      for (std::int64_t v = 0; v < model_.vocab; ++v) {
        const double one = v == *targets_[at(t)] ? 1.0 : 0.0;
        logits(t, v) = scale * (std::exp(logits(t, v) - log_sum) - one);
      }
    }
    Matrix dhidden =
        norm_backward(times_backward(logits, normed, head), hidden, "model.norm.weight");
    for (std::int64_t layer = model_.layers; layer-- > 0;) {
      dhidden =
          layer_backward(layers[at(layer)], "model.layers." + std::to_string(layer) + ".", dhidden);
    }
    Matrix& table = gradients_.at("model.embed_tokens.weight");
    for (std::int64_t t = 0; t < length_; ++t) {
      for (std::int64_t i = 0; i < model_.hidden; ++i) table(tokens_[at(t)], i) += dhidden(t, i);
    }
    return loss;
  }

 private:
  struct Layer {
    Matrix input, normed, query, key, value, mixed, mid, mid_normed, gate, up, product, output;
    std::vector<Matrix> probability;  ///< by head: the whole score matrix
  };

  static std::size_t at(std::int64_t place) { return static_cast<std::size_t>(place); }
  const Matrix& weight(const std::string& name) const { return weights_.at(name); }

  Matrix times(const Matrix& in, const std::string& name) const {
    const Matrix& w = weight(name);
    Matrix out(in.rows, w.rows);
    for (std::int64_t t = 0; t < in.rows; ++t) {
      for (std::int64_t o = 0; o < w.rows; ++o) {
        for (std::int64_t i = 0; i < w.cols; ++i) out(t, o) += in(t, i) * w(o, i);
      }
    }
    return out;
  }

  Matrix times_backward(const Matrix& dout, const Matrix& in, const std::string& name) {
    const Matrix& w = weight(name);
    Matrix& dw = gradients_.at(name);
    Matrix din(in.rows, in.cols);
    for (std::int64_t t = 0; t < in.rows; ++t) {
      for (std::int64_t o = 0; o < w.rows; ++o) {
        for (std::int64_t i = 0; i < w.cols; ++i) {
          din(t, i) += dout(t, o) * w(o, i);
          dw(o, i) += dout(t, o) * in(t, i);
        }
      }
    }
    return din;
  }

  double rms(const Matrix& in, std::int64_t t) const {
    double squares = 0;
    for (std::int64_t i = 0; i < in.cols; ++i) squares += in(t, i) * in(t, i);
    return std::sqrt(squares / static_cast<double>(in.cols) + model_.norm_eps);
  }

  Matrix norm_forward(const Matrix& in, const std::string& name) const {
    Matrix out(in.rows, in.cols);
    for (std::int64_t t = 0; t < in.rows; ++t) {
      const double root = rms(in, t);
      for (std::int64_t i = 0; i < in.cols; ++i) out(t, i) = weight(name)(0, i) * in(t, i) / root;
    }
    return out;
  }

  Matrix norm_backward(const Matrix& dout, const Matrix& in, const std::string& name) {
    Matrix din(in.rows, in.cols);
    for (std::int64_t t = 0; t < in.rows; ++t) {
      const double root = rms(in, t);
      double sum = 0;  // of d(out) * out, the share that lies along the row
      for (std::int64_t i = 0; i < in.cols; ++i) {
        sum += dout(t, i) * weight(name)(0, i) * in(t, i) / root;
        gradients_.at(name)(0, i) += dout(t, i) * in(t, i) / root;
      }
      for (std::int64_t i = 0; i < in.cols; ++i) {
        din(t, i) = (dout(t, i) * weight(name)(0, i) -
                     in(t, i) / root * sum / static_cast<double>(in.cols)) /
                    root;
      }
    }
    return din;
  }

  /// The rotation of position t on the pair (i, i + head_dim / 2), clockwise for sign -1.
  void turn(Matrix& values, double sign) const {
    const std::int64_t half = model_.head_dim / 2;
    for (std::int64_t t = 0; t < values.rows; ++t) {
      for (std::int64_t first = 0; first < values.cols; first += model_.head_dim) {
        for (std::int64_t i = 0; i < half; ++i) {
          const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(2 * half);
          const double angle =
              sign * static_cast<double>(t) * std::pow(model_.rope_theta, exponent);
          const double a = values(t, first + i), b = values(t, first + half + i);
          values(t, first + i) = std::cos(angle) * a - std::sin(angle) * b;
          values(t, first + half + i) = std::sin(angle) * a + std::cos(angle) * b;
        }
      }
    }
  }

  Layer layer_forward(const std::string& name, const Matrix& input) const {
    Layer layer;
    layer.input = input;
    layer.normed = norm_forward(input, name + "input_layernorm.weight");
    layer.query = times(layer.normed, name + "self_attn.q_proj.weight");
    layer.key = times(layer.normed, name + "self_attn.k_proj.weight");
    layer.value = times(layer.normed, name + "self_attn.v_proj.weight");
    turn(layer.query, 1.0);
    turn(layer.key, 1.0);
    attend(layer);
    layer.mid = plus(times(layer.mixed, name + "self_attn.o_proj.weight"), input);
    layer.mid_normed = norm_forward(layer.mid, name + "post_attention_layernorm.weight");
    layer.gate = times(layer.mid_normed, name + "mlp.gate_proj.weight");
    layer.up = times(layer.mid_normed, name + "mlp.up_proj.weight");
    layer.product = layer.up;
    for (std::size_t i = 0; i < layer.product.values.size(); ++i) {
      const double g = layer.gate.values[i];
      layer.product.values[i] *= g / (1.0 + std::exp(-g));
    }
    layer.output = plus(times(layer.product, name + "mlp.down_proj.weight"), layer.mid);
    return layer;
  }

  static Matrix plus(Matrix a, const Matrix& b) {
    for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
    return a;
  }

  void attend(Layer& layer) const {
    const std::int64_t dim = model_.head_dim;
    layer.mixed = Matrix(length_, model_.heads * dim);
    for (std::int64_t head = 0; head < model_.heads; ++head) {
      const std::int64_t q = head * dim, k = head / (model_.heads / model_.kv_heads) * dim;
      Matrix probability(length_, length_);
      for (std::int64_t t = 0; t < length_; ++t) {
        double sum = 0, largest = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          for (std::int64_t i = 0; i < dim; ++i) {
            probability(t, s) += layer.query(t, q + i) * layer.key(s, k + i);
          }
          probability(t, s) /= std::sqrt(static_cast<double>(dim));
          largest = s == 0 ? probability(t, s) : std::max(largest, probability(t, s));
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          probability(t, s) = std::exp(probability(t, s) - largest);
          sum += probability(t, s);
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          probability(t, s) /= sum;
          for (std::int64_t i = 0; i < dim; ++i) {
            layer.mixed(t, q + i) += probability(t, s) * layer.value(s, k + i);
          }
        }
      }
      layer.probability.push_back(std::move(probability));
    }
  }

  Matrix layer_backward(const Layer& layer, const std::string& name, const Matrix& doutput) {
    const Matrix dproduct = times_backward(doutput, layer.product, name + "mlp.down_proj.weight");
    Matrix dgate = dproduct, dup = dproduct;
    for (std::size_t i = 0; i < dproduct.values.size(); ++i) {
      const double g = layer.gate.values[i];
      const double sigmoid = 1.0 / (1.0 + std::exp(-g));
      dgate.values[i] *= layer.up.values[i] * sigmoid * (1.0 + g - g * sigmoid);
      dup.values[i] *= g * sigmoid;
    }
    const Matrix dmid_normed =
        plus(times_backward(dgate, layer.mid_normed, name + "mlp.gate_proj.weight"),
             times_backward(dup, layer.mid_normed, name + "mlp.up_proj.weight"));
    const Matrix dmid = plus(
        norm_backward(dmid_normed, layer.mid, name + "post_attention_layernorm.weight"), doutput);
    const Matrix dmixed = times_backward(dmid, layer.mixed, name + "self_attn.o_proj.weight");
    Matrix dquery(length_, layer.query.cols), dkey(length_, layer.key.cols),
        dvalue(length_, layer.value.cols);
    attend_backward(layer, dmixed, dquery, dkey, dvalue);
    turn(dquery, -1.0);
    turn(dkey, -1.0);
    const Matrix dnormed =
        plus(plus(times_backward(dquery, layer.normed, name + "self_attn.q_proj.weight"),
                  times_backward(dkey, layer.normed, name + "self_attn.k_proj.weight")),
             times_backward(dvalue, layer.normed, name + "self_attn.v_proj.weight"));
    return plus(norm_backward(dnormed, layer.input, name + "input_layernorm.weight"), dmid);
  }

  void attend_backward(const Layer& layer, const Matrix& dmixed, Matrix& dquery, Matrix& dkey,
                       Matrix& dvalue) const {
    const std::int64_t dim = model_.head_dim;
    for (std::int64_t head = 0; head < model_.heads; ++head) {
      const std::int64_t q = head * dim, k = head / (model_.heads / model_.kv_heads) * dim;
      const Matrix& probability = layer.probability[at(head)];
      for (std::int64_t t = 0; t < length_; ++t) {
        std::vector<double> dprobability(at(t + 1), 0.0);
        double mean = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          for (std::int64_t i = 0; i < dim; ++i) {
            dprobability[at(s)] += dmixed(t, q + i) * layer.value(s, k + i);
            dvalue(s, k + i) += probability(t, s) * dmixed(t, q + i);
          }
          mean += probability(t, s) * dprobability[at(s)];
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          const double dscore = probability(t, s) * (dprobability[at(s)] - mean) /
                                std::sqrt(static_cast<double>(dim));
          for (std::int64_t i = 0; i < dim; ++i) {
            dquery(t, q + i) += dscore * layer.key(s, k + i);
            dkey(s, k + i) += dscore * layer.query(t, q + i);
          }
        }
      }
    }
  }

  const ModelShape& model_;
  const Tensors& weights_;
  const std::vector<std::int32_t>& tokens_;
  const std::vector<std::optional<std::int32_t>>& targets_;
  Tensors& gradients_;
  std::int64_t length_;
};

}  // namespace detail

/// Loss and all gradients of one step. Throws InvalidInput if the step has no target.
[[nodiscard]] inline ReferenceResult reference_step(const ModelShape& model, const Tensors& weights,
                                                    const runtime::StepData& data) {
  std::int64_t count = 0;
  for (const auto& sample : data.targets) {
    count += std::count_if(sample.begin(), sample.end(),
                           [](const auto& target) { return target.has_value(); });
  }
  require(count > 0, "reference_step: the step must have a target");
  ReferenceResult result;
  for (const auto& [name, weight] : weights) {
    result.gradients.emplace(name, Matrix(weight.rows, weight.cols));
  }
  for (std::size_t sample = 0; sample < data.tokens.size(); ++sample) {
    detail::ReferenceSample run(model, weights, data.tokens[sample], data.targets[sample],
                                result.gradients);
    result.sample_loss.push_back(run.run(1.0 / static_cast<double>(count)));
    result.loss += result.sample_loss.back() / static_cast<double>(count);
  }
  return result;
}

/// AdamW over whole tensors after clipping by their norm, by formulas of its own.
class ReferenceOptimizer {
 public:
  /// Begins with moments of zero.
  explicit ReferenceOptimizer(AdamW settings) : settings_(settings) {}

  /// One AdamW step with clipping over the whole model.
  void update(Tensors& weights, const Tensors& gradients) {
    power1_ *= settings_.beta1;
    power2_ *= settings_.beta2;
    double norm = 0;
    for (const auto& [name, gradient] : gradients) {
      for (const double g : gradient.values) norm = std::hypot(norm, g);
    }
    const double shrink = std::min(1.0, settings_.largest_norm / norm);
    for (auto& [name, weight] : weights) {
      auto& mean = mean_.try_emplace(name, weight.rows, weight.cols).first->second;
      auto& square = square_.try_emplace(name, weight.rows, weight.cols).first->second;
      for (std::size_t i = 0; i < weight.values.size(); ++i) {
        const double g = shrink * gradients.at(name).values[i];
        mean.values[i] += (1.0 - settings_.beta1) * (g - mean.values[i]);
        square.values[i] += (1.0 - settings_.beta2) * (g * g - square.values[i]);
        const double m = mean.values[i] / (1.0 - power1_);
        const double v = square.values[i] / (1.0 - power2_);
        weight.values[i] =
            weight.values[i] * (1.0 - settings_.learning_rate * settings_.weight_decay) -
            settings_.learning_rate * m / (std::sqrt(v) + settings_.epsilon);
      }
    }
  }

 private:
  AdamW settings_;
  Tensors mean_, square_;
  double power1_ = 1.0, power2_ = 1.0;
};

}  // namespace slimpack::cpu
