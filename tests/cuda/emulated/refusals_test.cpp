// SPDX-License-Identifier: Apache-2.0
// Every launcher runs on what fits, and refuses each shape, size and alignment that does not with
// its own sentence, before any work.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/columns.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/optimizer.hpp"
#include "slimpack_cuda/rope.hpp"
#include "slimpack_cuda/rope_tables.hpp"
#include "slimpack_cuda/rows.hpp"
#include "slimpack_cuda/swiglu.hpp"

namespace refusals_test {

using namespace slimpack;
using namespace slimpack::cuda;

namespace {

/// Zeros of the device, handed out piece by piece.
class Zeros {
 public:
  Zeros() : memory_(1 << 20) {
    cuda::detail::fill_bytes(memory_.span().data, 0, 1 << 20, stream_.view());
    stream_.view().synchronize();
  }
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> take(std::int64_t size) {
    std::byte* at = memory_.span().data + used_;
    used_ += (size * static_cast<std::int64_t>(sizeof(Element)) + 511) / 256 * 256;
    return {reinterpret_cast<Element*>(at), size};
  }
  [[nodiscard]] StreamView stream() const { return stream_.view(); }

 private:
  Stream stream_;
  DeviceBuffer<std::byte> memory_;
  std::int64_t used_ = 0;
};

template <class Element>
void shorten(DeviceSpan<Element>& span) {
  --span.size;
}
/// The next element is not aligned to 16 bytes.
template <class Element>
void shift(DeviceSpan<Element>& span) {
  ++span.data;
}

/// A call that works with `good`, and refuses what `spoil` makes of it.
template <class Arguments, class Call>
class Launcher {
 public:
  Launcher(const Arguments& good, const Call& call) : good_(good), call_(call) {
    CHECK_NOTHROW(call_(good_));
  }
  template <class Spoil>
  void refuses(const std::string& sentence, const Spoil& spoil) const {
    CAPTURE(sentence);
    Arguments bad = good_;
    spoil(bad);
    try {
      call_(bad);
    } catch (const InvalidInput& error) {
      const std::string said = error.what();
      CHECK(said.substr(0, sentence.size()) == sentence);
      return;
    }
    FAIL_CHECK("not refused");
  }

 private:
  Arguments good_;
  Call call_;
};

}  // namespace

TEST_CASE("rms_norm: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> out, sum, in, residual, gain;
    DeviceSpan<float> inverse, dgain, workspace;
    RowShape shape{5, 64};
    float epsilon = 1e-5F;
  } good;
  for (auto* span : {&good.out, &good.sum, &good.in, &good.residual}) {
    *span = zeros.take<Bf16>(5 * 64);
  }
  good.gain = zeros.take<Bf16>(64);
  good.inverse = zeros.take<float>(5), good.dgain = zeros.take<float>(64);
  good.workspace = zeros.take<float>(rms_norm_backward_workspace(good.shape));
  const auto forward = [&](const Arguments& at) {
    rms_norm_forward(at.out, at.inverse, at.in, at.gain, at.shape, at.epsilon, zeros.stream());
  };
  const Launcher plain(good, forward);
  plain.refuses("rms_norm: rows and cols must be >= 0", [](auto& at) { at.shape.rows = -1; });
  plain.refuses("rms_norm: cols must be a multiple of 8", [](auto& at) { at.shape.cols = 60; });
  plain.refuses("rms_norm: cols must be a multiple of 8", [](auto& at) { at.shape.cols = 16392; });
  plain.refuses("rms_norm_forward: epsilon must be >= 0", [](auto& at) { at.epsilon = -1; });
  plain.refuses("rms_norm_forward: out is not rows * cols", [](auto& at) { shorten(at.out); });
  plain.refuses("rms_norm_forward: in is not rows * cols", [](auto& at) { shorten(at.in); });
  plain.refuses("rms_norm_forward: inverse_rms is not one a row",
                [](auto& at) { shorten(at.inverse); });
  plain.refuses("rms_norm_forward: gain is not one a column", [](auto& at) { shorten(at.gain); });
  plain.refuses("rms_norm_forward: out is not aligned", [](auto& at) { shift(at.out); });
  plain.refuses("rms_norm_forward: in is not aligned", [](auto& at) { shift(at.in); });
  plain.refuses("rms_norm_forward: gain is not aligned", [](auto& at) { shift(at.gain); });
  const Launcher fused(good, [&](const Arguments& at) {
    rms_norm_forward_residual(at.out, at.inverse, at.sum, at.in, at.residual, at.gain, at.shape,
                              at.epsilon, zeros.stream());
  });
  fused.refuses("rms_norm_forward: sum is not rows * cols", [](auto& at) { shorten(at.sum); });
  fused.refuses("rms_norm_forward: residual is not rows", [](auto& at) { shorten(at.residual); });
  fused.refuses("rms_norm_forward: sum is not aligned", [](auto& at) { shift(at.sum); });
  fused.refuses("rms_norm_forward: residual is not aligned", [](auto& at) { shift(at.residual); });
  const Launcher backward(good, [&](const Arguments& at) {
    rms_norm_backward(at.out, at.dgain, at.workspace, at.sum, at.residual, at.in, at.gain,
                      at.inverse, at.shape, zeros.stream());
  });
  const std::string name = "rms_norm_backward: ";
  backward.refuses(name + "din is not rows * cols", [](auto& at) { shorten(at.out); });
  backward.refuses(name + "dout is not rows * cols", [](auto& at) { shorten(at.sum); });
  backward.refuses(name + "in is not rows * cols", [](auto& at) { shorten(at.in); });
  backward.refuses(name + "dresidual is neither empty nor", [](auto& at) { shorten(at.residual); });
  backward.refuses(name + "inverse_rms is not one a row", [](auto& at) { shorten(at.inverse); });
  backward.refuses(name + "gain is not one a column", [](auto& at) { shorten(at.gain); });
  backward.refuses(name + "dgain is not one a column", [](auto& at) { shorten(at.dgain); });
  backward.refuses(name + "workspace is smaller than", [](auto& at) { shorten(at.workspace); });
  backward.refuses(name + "din is not aligned", [](auto& at) { shift(at.out); });
  backward.refuses(name + "dout is not aligned", [](auto& at) { shift(at.sum); });
  backward.refuses(name + "dresidual is not aligned", [](auto& at) { shift(at.residual); });
  backward.refuses(name + "in is not aligned", [](auto& at) { shift(at.in); });
  backward.refuses(name + "gain is not aligned", [](auto& at) { shift(at.gain); });
  backward.refuses(name + "workspace is not aligned", [](auto& at) { shift(at.workspace); });
}

TEST_CASE("swiglu, elements: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> product, gate_up, more, again;
    RowShape shape{3, 16};
  };
  const Arguments good{zeros.take<Bf16>(48),
                       zeros.take<Bf16>(96),
                       zeros.take<Bf16>(96),
                       zeros.take<Bf16>(96),
                       {3, 16}};
  const Launcher forward(good, [&](const Arguments& at) {
    swiglu_forward(at.product, at.gate_up, at.shape, zeros.stream());
  });
  forward.refuses("swiglu: rows and cols must be >= 0", [](auto& at) { at.shape.rows = -1; });
  forward.refuses("swiglu: cols must be a multiple of 8", [](auto& at) { at.shape.cols = 12; });
  forward.refuses("swiglu_forward: product is not rows", [](auto& at) { shorten(at.product); });
  forward.refuses("swiglu_forward: gate_up is not rows", [](auto& at) { shorten(at.gate_up); });
  forward.refuses("swiglu_forward: product is not aligned", [](auto& at) { shift(at.product); });
  forward.refuses("swiglu_forward: gate_up is not aligned", [](auto& at) { shift(at.gate_up); });
  const Launcher backward(good, [&](const Arguments& at) {
    swiglu_backward(at.more, at.product, at.gate_up, at.shape, zeros.stream());
  });
  backward.refuses("swiglu_backward: dgate_up is not rows", [](auto& at) { shorten(at.more); });
  backward.refuses("swiglu_backward: dproduct is not rows", [](auto& at) { shorten(at.product); });
  backward.refuses("swiglu_backward: gate_up is not rows", [](auto& at) { shorten(at.gate_up); });
  backward.refuses("swiglu_backward: dgate_up is not aligned", [](auto& at) { shift(at.more); });
  backward.refuses("swiglu_backward: dproduct is not aligned", [](auto& at) { shift(at.product); });
  backward.refuses("swiglu_backward: gate_up is not aligned", [](auto& at) { shift(at.gate_up); });
  const Launcher sum(
      good, [&](const Arguments& at) { add(at.gate_up, at.again, at.more, zeros.stream()); });
  sum.refuses("elements: both spans must be as long", [](auto& at) { shorten(at.more); });
  sum.refuses("elements: all spans must be as long", [](auto& at) { shorten(at.again); });
  sum.refuses("elements: an addend is not aligned", [](auto& at) { shift(at.again); });
  sum.refuses("elements: the first span is not aligned", [](auto& at) { shift(at.gate_up); });
  sum.refuses("elements: the second span is not aligned", [](auto& at) { shift(at.more); });
}

TEST_CASE("rope: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> query, key, value, qkv;
    DeviceSpan<float> dkey, dvalue;
    DeviceSpan<RopeRow> rows;
    DeviceSpan<std::uint64_t> frequencies;
    RopeShape shape{1, 2, 1, 16};
  };
  const Arguments good{zeros.take<Bf16>(32),   zeros.take<Bf16>(16),         zeros.take<Bf16>(16),
                       zeros.take<Bf16>(64),   zeros.take<float>(16),        zeros.take<float>(16),
                       zeros.take<RopeRow>(1), zeros.take<std::uint64_t>(8), {1, 2, 1, 16}};
  const Launcher forward(good, [&](const Arguments& at) {
    rope_forward(at.query, at.key, at.value, at.qkv, at.rows, at.frequencies, at.shape,
                 zeros.stream());
  });
  forward.refuses("rope: head_dim must be a multiple of 16",
                  [](auto& at) { at.shape.head_dim = 24; });
  forward.refuses("rope: head_dim must be a multiple of 16",
                  [](auto& at) { at.shape.head_dim = 528; });
  forward.refuses("rope: heads and kv_heads must be >= 0 and not both 0",
                  [](auto& at) { at.shape.heads = at.shape.kv_heads = 0; });
  forward.refuses("rope: a projected row has at most 2^28 numbers",
                  [](auto& at) { at.shape.heads = 1 << 30; });
  forward.refuses("rope: rows must be >= 0", [](auto& at) { at.shape.rows = -1; });
  forward.refuses("rope: qkv is not rows", [](auto& at) { shorten(at.qkv); });
  forward.refuses("rope: the table is not as long as rows", [](auto& at) { at.rows.size = 0; });
  forward.refuses("rope: frequencies are not head_dim / 2",
                  [](auto& at) { shorten(at.frequencies); });
  forward.refuses("rope: query is not whole rows", [](auto& at) { shorten(at.query); });
  forward.refuses("rope: key is not whole rows", [](auto& at) { shorten(at.key); });
  forward.refuses("rope: value is not as large as key", [](auto& at) { shorten(at.value); });
  forward.refuses("rope: qkv is not aligned", [](auto& at) { shift(at.qkv); });
  forward.refuses("rope: query is not aligned", [](auto& at) { shift(at.query); });
  forward.refuses("rope: key is not aligned", [](auto& at) { shift(at.key); });
  forward.refuses("rope: value is not aligned", [](auto& at) { shift(at.value); });
  const Launcher backward(good, [&](const Arguments& at) {
    rope_backward(at.qkv, at.query, at.dkey, at.dvalue, at.rows, at.frequencies, at.shape,
                  zeros.stream());
  });
  backward.refuses("rope: key is not whole rows", [](auto& at) { shorten(at.dkey); });
  backward.refuses("rope: value is not as large as key", [](auto& at) { shorten(at.dvalue); });
  backward.refuses("rope: value is not aligned", [](auto& at) { shift(at.dvalue); });
}

TEST_CASE("rows, embedding: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> to, from;
    DeviceSpan<std::int32_t> table;
    RowShape shape{3, 16};
  };
  const Arguments good{
      zeros.take<Bf16>(48), zeros.take<Bf16>(80), zeros.take<std::int32_t>(3), {3, 16}};
  const Launcher gather(good, [&](const Arguments& at) {
    gather_rows(at.to, at.from, at.table, at.shape, zeros.stream());
  });
  gather.refuses("move_rows: rows and cols must be >= 0", [](auto& at) { at.shape.rows = -3; });
  gather.refuses("move_rows: a row must be a positive multiple",
                 [](auto& at) { at.shape.cols = 12; });
  gather.refuses("move_rows: what is moved is not rows", [](auto& at) { shorten(at.to); });
  gather.refuses("move_rows: what the table names is not whole",
                 [](auto& at) { shorten(at.from); });
  gather.refuses("move_rows: the table is not as long as rows",
                 [](auto& at) { shorten(at.table); });
  gather.refuses("move_rows: to is not aligned", [](auto& at) { shift(at.to); });
  gather.refuses("move_rows: from is not aligned", [](auto& at) { shift(at.from); });
  const Launcher scatter(good, [&](const Arguments& at) {
    scatter_rows(at.from, at.to, at.table, at.shape, zeros.stream());
  });
  scatter.refuses("move_rows: what is moved is not rows", [](auto& at) { shorten(at.to); });
  const Launcher forward(good, [&](const Arguments& at) {
    embedding_forward(at.to, at.from, at.table, 5, at.shape.cols, zeros.stream());
  });
  forward.refuses("embedding_forward: table is not vocab", [](auto& at) { shorten(at.from); });
  forward.refuses("embedding_forward: vocab and hidden must", [](auto& at) { at.shape.cols = -1; });
  struct Gradients {
    DeviceSpan<float> dtable;
    DeviceSpan<Bf16> dout;
    DeviceSpan<std::int32_t> tokens, begin, rows;
    std::int64_t vocab = 5, hidden = 16;
  };
  const Gradients sums{zeros.take<float>(80),
                       zeros.take<Bf16>(48),
                       zeros.take<std::int32_t>(2),
                       zeros.take<std::int32_t>(3),
                       zeros.take<std::int32_t>(3),
                       5,
                       16};
  const Launcher backward(sums, [&](const Gradients& at) {
    embedding_backward(at.dtable, at.dout, {at.tokens, at.begin, at.rows}, at.vocab, at.hidden,
                       zeros.stream());
  });
  const std::string name = "embedding_backward: ";
  backward.refuses(name + "vocab and hidden must be >= 0", [](auto& at) { at.vocab = -1; });
  backward.refuses(name + "hidden must be a positive multiple of 8",
                   [](auto& at) { at.hidden = 12; });
  backward.refuses(name + "rows must be >= 0", [](auto& at) { at.rows.size = -1; });
  backward.refuses(name + "dtable is not vocab * hidden", [](auto& at) { shorten(at.dtable); });
  backward.refuses(name + "dout is not whole rows, as many as are summed",
                   [](auto& at) { shorten(at.dout); });
  backward.refuses(name + "there are more distinct tokens than rows",
                   [](auto& at) { at.tokens.size = 4; });
  backward.refuses(name + "begin is not one longer than tokens",
                   [](auto& at) { shorten(at.begin); });
  backward.refuses(name + "dtable is not aligned", [](auto& at) { shift(at.dtable); });
  backward.refuses(name + "dout is not aligned", [](auto& at) { shift(at.dout); });
}

TEST_CASE("columns: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> whole, parts;
    DeviceSpan<std::int32_t> table;
    ColumnShape shape;
  };
  // Three rows of five, whose 32 columns two members share.
  const Arguments good{zeros.take<Bf16>(160),
                       zeros.take<Bf16>(56 + 48),
                       zeros.take<std::int32_t>(3),
                       {3, 32, 2, 56}};
  const auto check = [&](const auto& launcher) {
    launcher.refuses("columns: rows and cols must be >= 0", [](auto& at) { at.shape.rows = -3; });
    launcher.refuses("columns: members must divide cols", [](auto& at) { at.shape.members = 3; });
    launcher.refuses("columns: members must divide cols", [](auto& at) { at.shape.members = 0; });
    launcher.refuses("columns: cols must be at most",
                     [](auto& at) { at.shape.cols = std::int64_t{1} << 31U; });
    launcher.refuses("columns: the parts of members must not overlap",
                     [](auto& at) { at.shape.stride = 47; });
    launcher.refuses("columns: heads that move must be among a member's",
                     [](auto& at) { at.shape.count = 2; });
    launcher.refuses("columns: heads that move must be among a member's",
                     [](auto& at) { at.shape.first = -1; });
    launcher.refuses("columns: the parts of heads must not overlap", [](auto& at) {
      at.shape.heads = at.shape.count = 2;
      at.shape.head_stride = 23;
    });
    launcher.refuses("columns: whole is not whole rows", [](auto& at) { shorten(at.whole); });
    launcher.refuses("columns: parts is too short", [](auto& at) { shorten(at.parts); });
  };
  const Launcher split(good, [&](const Arguments& at) {
    split_columns(at.parts, at.whole, at.table, at.shape, zeros.stream());
  });
  check(split);
  split.refuses("columns: the table is not as long as rows", [](auto& at) { shorten(at.table); });
  split.refuses("columns: whole has too few rows", [](auto& at) {
    at.table = {};
    at.whole.size = 64;
  });
  const Launcher join(good, [&](const Arguments& at) {
    join_columns(at.whole, at.parts, at.table, at.shape, zeros.stream());
  });
  check(join);
  join.refuses("columns: the table is not as long as rows", [](auto& at) { shorten(at.table); });
  const DeviceSpan<float> sums = zeros.take<float>(160);
  const Launcher more(good, [&](const Arguments& at) {
    // Of the whole rows as many as the arguments have.
    add_columns({sums.data + (at.whole.data - good.whole.data), at.whole.size}, at.parts, at.shape,
                zeros.stream());
  });
  check(more);
  more.refuses("columns: whole has too few rows", [](auto& at) { at.whole.size = 64; });
  more.refuses("add_columns: a head's columns and the strides",
               [](auto& at) { at.shape.stride = 52; });
  more.refuses("add_columns: whole is not aligned", [](auto& at) { shift(at.whole); });
  more.refuses("add_columns: parts is not aligned", [](auto& at) { shift(at.parts); });
}

TEST_CASE("keys by heads: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> message, memory;
    DeviceSpan<KeyRow> table;
    KeyRowShape shape;
  };
  // Two heads of three in a message of three rows.
  const Arguments good{zeros.take<Bf16>(4 * 48),
                       zeros.take<Bf16>(80),
                       zeros.take<KeyRow>(3),
                       {3, 16, 3, 1, 2, 48, 96, 0}};
  const auto check = [&](const auto& launcher) {
    launcher.refuses("keys: rows and head_dim must be", [](auto& at) { at.shape.rows = -3; });
    launcher.refuses("keys: head_dim must be a positive", [](auto& at) { at.shape.head_dim = 12; });
    launcher.refuses("keys: heads that move must be among", [](auto& at) { at.shape.first = 2; });
    launcher.refuses("keys: layer must be", [](auto& at) { at.shape.layer = -1; });
    launcher.refuses("keys: the strides of a message", [](auto& at) { at.shape.value = 97; });
    launcher.refuses("keys: the message is too short", [](auto& at) { shorten(at.message); });
    launcher.refuses("keys: the table is not as long", [](auto& at) { shorten(at.table); });
    launcher.refuses("keys: from is not aligned", [](auto& at) { shift(at.message); });
  };
  const Launcher store(good, [&](const Arguments& at) {
    store_keys(at.memory, at.message, at.table, at.shape, zeros.stream());
  });
  check(store);
  store.refuses("keys: to is not aligned", [](auto& at) { shift(at.memory); });
}

TEST_CASE("cross entropy: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> logits;
    DeviceSpan<LogitSum> sums, more;
    DeviceSpan<float> losses;
    DeviceSpan<std::int32_t> targets;
    LogitShape shape;
  };
  const Arguments good{zeros.take<Bf16>(32), zeros.take<LogitSum>(2),     zeros.take<LogitSum>(2),
                       zeros.take<float>(2), zeros.take<std::int32_t>(2), {2, 0, 9, 16}};
  const Launcher sums(good, [&](const Arguments& at) {
    logit_sums(at.sums, at.logits, at.targets, at.shape, zeros.stream());
  });
  const Launcher gradients(good, [&](const Arguments& at) {
    logit_gradients(at.logits, at.sums, at.targets, at.shape, 1, zeros.stream());
  });
  const auto both = [&](const std::string& sentence, const auto& spoil) {
    sums.refuses("cross_entropy: " + sentence, spoil);
    gradients.refuses("cross_entropy: " + sentence, spoil);
  };
  both("first must be >= 0", [](auto& at) { at.shape.first = -1; });
  both("size must be >= 0 and at most 2^30", [](auto& at) { at.shape.size = -1; });
  both("stride must be a multiple of 8 and >= size", [](auto& at) { at.shape.stride = 8; });
  both("stride must be a multiple of 8 and >= size", [](auto& at) { at.shape.stride = 12; });
  both("rows must be >= 0", [](auto& at) { at.shape.rows = -1; });
  both("logits is smaller than rows * stride", [](auto& at) { at.logits.size = 24; });
  both("sums are not one a row", [](auto& at) { shorten(at.sums); });
  both("targets are not one a row", [](auto& at) { shorten(at.targets); });
  both("logits is not aligned", [](auto& at) { shift(at.logits); });
  const Launcher merge(
      good, [&](const Arguments& at) { merge_logit_sums(at.sums, at.more, zeros.stream()); });
  merge.refuses("merge_logit_sums: more is not as long as sums",
                [](auto& at) { shorten(at.more); });
  const Launcher losses(good, [&](const Arguments& at) {
    cross_entropy_losses(at.losses, at.sums, at.targets, zeros.stream());
  });
  losses.refuses("cross_entropy_losses: sums are not one", [](auto& at) { shorten(at.sums); });
  losses.refuses("cross_entropy_losses: targets are not", [](auto& at) { shorten(at.targets); });
}

TEST_CASE("optimizer: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<float> weights, first, second, gradients;
    DeviceSpan<Bf16> copy;
    DeviceSpan<double> total, parts;
    DeviceSpan<Clipping> clipping;
    std::int64_t step = 1;
    double largest = 1;
  };
  const Arguments good{zeros.take<float>(9),
                       zeros.take<float>(9),
                       zeros.take<float>(9),
                       zeros.take<float>(9),
                       zeros.take<Bf16>(9),
                       zeros.take<double>(1),
                       zeros.take<double>(1),
                       zeros.take<Clipping>(1),
                       1,
                       1};
  const Launcher squares(
      good, [&](const Arguments& at) { square_sums(at.parts, at.gradients, zeros.stream()); });
  squares.refuses("square_sums: sums are not square_sums_count",
                  [](auto& at) { shorten(at.parts); });
  squares.refuses("square_sums: values is not aligned", [](auto& at) { shift(at.gradients); });
  squares.refuses("square_sums_count: size must be >= 0", [](auto& at) { at.gradients.size = -1; });
  const Launcher sum(good,
                     [&](const Arguments& at) { ordered_sum(at.total, at.parts, zeros.stream()); });
  sum.refuses("ordered_sum: total is not one number", [](auto& at) { shorten(at.total); });
  const Launcher more(
      good, [&](const Arguments& at) { add_ordered_sum(at.total, at.gradients, zeros.stream()); });
  more.refuses("ordered_sum: total is not one number", [](auto& at) { shorten(at.total); });
  const Launcher clip(good, [&](const Arguments& at) {
    clip_by_norm(at.clipping, at.total, at.largest, zeros.stream());
  });
  clip.refuses("clip_by_norm: clipping is not one", [](auto& at) { shorten(at.clipping); });
  clip.refuses("clip_by_norm: sum_of_squares is not one", [](auto& at) { shorten(at.total); });
  clip.refuses("clip_by_norm: largest_norm must be > 0", [](auto& at) { at.largest = 0; });
  const Launcher adamw(good, [&](const Arguments& at) {
    adamw_step(at.weights, at.copy, at.first, at.second, at.gradients, at.clipping, {}, at.step,
               zeros.stream());
  });
  adamw.refuses("adamw_step: step must be >= 1", [](auto& at) { at.step = 0; });
  adamw.refuses("adamw_step: copy is not as long", [](auto& at) { shorten(at.copy); });
  adamw.refuses("adamw_step: first_moment is not as", [](auto& at) { shorten(at.first); });
  adamw.refuses("adamw_step: second_moment is not as", [](auto& at) { shorten(at.second); });
  adamw.refuses("adamw_step: gradients is not as long", [](auto& at) { shorten(at.gradients); });
  adamw.refuses("adamw_step: clipping is neither", [](auto& at) { at.clipping.size = 2; });
  adamw.refuses("adamw_step: weights is not aligned", [](auto& at) { shift(at.weights); });
  adamw.refuses("adamw_step: copy is not aligned", [](auto& at) { shift(at.copy); });
  adamw.refuses("adamw_step: first_moment is not al", [](auto& at) { shift(at.first); });
  adamw.refuses("adamw_step: second_moment is not al", [](auto& at) { shift(at.second); });
  adamw.refuses("adamw_step: gradients is not aligned", [](auto& at) { shift(at.gradients); });
}

TEST_CASE("attention: all that does not fit is refused") {
  Zeros zeros;
  struct Arguments {
    DeviceSpan<Bf16> output, query, key, value, doutput, dquery;
    DeviceSpan<float> log_sum, delta, more_log_sum, dkey, dvalue;
    AttentionShape shape{2, 1, 64, 128};
    AttentionPath path = AttentionPath::mma;
    std::int64_t rows = 3;
  } good;
  for (auto* span : {&good.output, &good.query, &good.doutput, &good.dquery}) {
    *span = zeros.take<Bf16>(3 * 128);
  }
  good.key = zeros.take<Bf16>(128 * 64), good.value = zeros.take<Bf16>(128 * 64);
  good.dkey = zeros.take<float>(3 * 64), good.dvalue = zeros.take<float>(3 * 64);
  for (auto* span : {&good.log_sum, &good.delta, &good.more_log_sum}) *span = zeros.take<float>(6);
  std::vector<KeyPage> pages;
  add_consecutive_pages(pages, 0, 3, 128);
  AttentionSegment segment;
  segment.rows = segment.keys = 3;
  const AttentionTiles tiles = attention_tiles(good.shape, good.path);
  const AttentionTables tables = attention_tables({segment}, pages, 128, tiles.query, tiles.key);
  const auto table = [&]<class Row>(const std::vector<Row>& rows) {
    const auto span = zeros.take<Row>(static_cast<std::int64_t>(rows.size()));
    upload(span, std::span<const Row>(rows), zeros.stream());
    return DeviceSpan<const Row>(span);
  };
  const AttentionWork work{table(tables.segments), table(tables.pages), table(tables.query_tiles),
                           table(tables.key_tiles)};
  const Launcher forward(good, [&](const Arguments& at) {
    attention_forward(at.output, at.log_sum, at.query, at.key, at.value, work, at.shape, at.path,
                      zeros.stream());
  });
  const Launcher delta(good, [&](const Arguments& at) {
    attention_delta(at.delta, at.output, at.doutput, work, at.shape, at.path, zeros.stream());
  });
  const Launcher backward(good, [&](const Arguments& at) {
    attention_backward(at.dquery, at.dkey, at.dvalue, at.query, at.key, at.value, at.log_sum,
                       at.delta, at.doutput, work, at.shape, at.path, zeros.stream());
  });
  const Launcher merge(good, [&](const Arguments& at) {
    attention_merge(at.output, at.log_sum, at.dquery, at.more_log_sum, at.rows, at.shape,
                    zeros.stream());
  });
  const auto all = [&](const std::string& sentence, const auto& spoil) {
    forward.refuses("attention: " + sentence, spoil);
    delta.refuses("attention: " + sentence, spoil);
    backward.refuses("attention: " + sentence, spoil);
    merge.refuses("attention: " + sentence, spoil);
  };
  all("head_dim must be >= 1", [](auto& at) { at.shape.head_dim = 0; });
  all("kv_heads must be >= 1", [](auto& at) { at.shape.kv_heads = 0; });
  all("kv_heads must divide heads", [](auto& at) { at.shape.kv_heads = 3; });
  all("page_tokens must be >= 1", [](auto& at) { at.shape.page_tokens = 0; });
  const auto both = [&](const std::string& sentence, const auto& spoil) {
    forward.refuses(sentence, spoil);
    backward.refuses(sentence, spoil);
  };
  both("attention: the path mma needs head_dim 64 or 128",
       [](auto& at) { at.shape.head_dim = 32; });
  both("attention: the path mma needs page_tokens in", [](auto& at) { at.shape.page_tokens = 96; });
  both("wgmma needs compute capability 9.0, not 8.0",
       [](auto& at) { at.path = AttentionPath::wgmma; });
  both("attention: query is not rows", [](auto& at) { shorten(at.query); });
  both("attention: key is not rows", [](auto& at) { shorten(at.key); });
  both("attention: value is not as large as key", [](auto& at) { shorten(at.value); });
  const std::string crooked = "attention: matrices must begin at multiples of 16 bytes, got 2";
  both(crooked, [](auto& at) { shift(at.query); });
  both(crooked, [](auto& at) { shift(at.key); });
  both(crooked, [](auto& at) { shift(at.value); });
  forward.refuses("attention_forward: output is not rows", [](auto& at) { shorten(at.output); });
  forward.refuses("attention_forward: log_sum is not rows", [](auto& at) { shorten(at.log_sum); });
  forward.refuses(crooked, [](auto& at) { shift(at.output); });
  delta.refuses("attention_delta: delta is not rows", [](auto& at) { shorten(at.delta); });
  delta.refuses("attention_delta: output is not rows", [](auto& at) { shorten(at.output); });
  delta.refuses("attention_delta: doutput is not rows", [](auto& at) { shorten(at.doutput); });
  delta.refuses(crooked, [](auto& at) { shift(at.doutput); });
  const std::string name = "attention_backward: ";
  backward.refuses(name + "dkey is not rows", [](auto& at) { shorten(at.dkey); });
  backward.refuses(name + "dvalue is not as large", [](auto& at) { shorten(at.dvalue); });
  backward.refuses(name + "log_sum is not rows", [](auto& at) { shorten(at.log_sum); });
  backward.refuses(name + "delta is not rows", [](auto& at) { shorten(at.delta); });
  backward.refuses(name + "doutput is not rows", [](auto& at) { shorten(at.doutput); });
  backward.refuses(name + "dquery is not as large", [](auto& at) { shorten(at.dquery); });
  backward.refuses(crooked, [](auto& at) { shift(at.dquery); });
  merge.refuses("attention_merge: rows must be >= 0", [](auto& at) { at.rows = -1; });
  merge.refuses("attention_merge: output is not rows", [](auto& at) { shorten(at.output); });
  merge.refuses("attention_merge: more is not as large", [](auto& at) { shorten(at.dquery); });
  merge.refuses("attention_merge: log_sum is not rows", [](auto& at) { shorten(at.log_sum); });
  merge.refuses("attention_merge: more_log_sum is not", [](auto& at) { shorten(at.more_log_sum); });
  merge.refuses(crooked, [](auto& at) { shift(at.output); });
}

}  // namespace refusals_test
