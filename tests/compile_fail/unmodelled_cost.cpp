// SPDX-License-Identifier: Apache-2.0
// A type that lacks an operation is refused by the concept's name and the missing operation's.
// expect: CostModel.*model.transfer.bytes, link.
#include "slimpack/cost/cost_model.hpp"

namespace {

struct Free {
  slimpack::Nanos forward(const slimpack::PackLoad&, const slimpack::StageLoad&) const noexcept {
    return {};
  }
  slimpack::Nanos backward(const slimpack::PackLoad&, const slimpack::StageLoad&,
                           slimpack::Recompute) const noexcept {
    return {};
  }
  slimpack::Nanos head(const slimpack::HeadLoad&) const noexcept { return {}; }
#ifndef SLIMPACK_MUST_NOT_COMPILE
  slimpack::Nanos transfer(slimpack::Bytes, const slimpack::Link&) const noexcept { return {}; }
#endif
  slimpack::Nanos reduce(slimpack::Bytes, std::int64_t, const slimpack::Link&) const noexcept {
    return {};
  }
  slimpack::Nanos optimizer(slimpack::Bytes, slimpack::Bytes, std::int64_t,
                            const slimpack::Link&) const noexcept {
    return {};
  }
};

template <slimpack::CostModel Cost>
std::int64_t price(const Cost& cost) {
  return cost.forward({}, {}).value;
}

}  // namespace

int main() {
  return static_cast<int>(price(Free{}));
}
