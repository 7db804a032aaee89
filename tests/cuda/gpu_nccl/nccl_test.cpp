// SPDX-License-Identifier: Apache-2.0
// NCCL's calls on one device: a communicator of one rank, which also sends to itself.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/nccl/api.hpp"

using namespace slimpack;
namespace nccl = cuda::nccl;

namespace {

void settle(nccl::NcclApi& api, nccl::Comm comm) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!api.settled(comm)) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("NCCL: a communicator of one rank gives back what it is given") {
  const auto api = nccl::make_nccl();
  const cuda::Stream stream;
  const nccl::Comm comm = api->join(api->new_id(), 1, 0, 0);
  settle(*api, comm);
  std::vector<float> values(10'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  const cuda::DeviceBuffer<float> one(10'000), two(10'000);
  cuda::upload(one.span(), std::span<const float>(values), stream.view());
  const std::size_t bytes = values.size() * sizeof(float);
  for (const runtime::Reduction reduction :
       {runtime::Reduction::sum, runtime::Reduction::maximum}) {
    api->all_reduce(comm, one.span().data, values.size(), nccl::Number::f32, reduction,
                    stream.view());
    settle(*api, comm);
  }
  api->broadcast(comm, one.span().data, bytes, 0, stream.view());
  settle(*api, comm);
  api->all_gather(comm, one.span().data, bytes, stream.view());
  settle(*api, comm);
  api->group_begin();
  api->send(comm, one.span().data, bytes, 0, stream.view());
  api->receive(comm, two.span().data, bytes, 0, stream.view());
  api->group_end();
  settle(*api, comm);
  CHECK(cuda::download(one.span(), stream.view()) == values);
  CHECK(cuda::download(two.span(), stream.view()) == values);
  api->leave(comm);
  MESSAGE("NCCL ", nccl::nccl_version());
}

TEST_CASE("NCCL: a communicator can be aborted, and another one made") {
  const auto api = nccl::make_nccl();
  const cuda::Stream stream;
  for (int turn = 0; turn < 2; ++turn) {
    const nccl::Comm comm = api->join(api->new_id(), 1, 0, 0);
    settle(*api, comm);
    const cuda::DeviceBuffer<double> sum(1);
    const std::vector<double> value{3};
    cuda::upload(sum.span(), std::span<const double>(value), stream.view());
    api->all_reduce(comm, sum.span().data, 1, nccl::Number::f64, runtime::Reduction::sum,
                    stream.view());
    settle(*api, comm);
    CHECK(cuda::download(sum.span(), stream.view()) == value);
    api->abort(comm);
  }
}
