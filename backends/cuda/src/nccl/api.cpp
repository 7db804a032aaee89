// SPDX-License-Identifier: Apache-2.0
// NCCL's calls with communicators that do not block.
#include "slimpack_cuda/nccl/api.hpp"

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

namespace slimpack::cuda::nccl {
namespace {

static_assert(sizeof(Id) == sizeof(ncclUniqueId));

class Nccl : public NcclApi {
 public:
  /// Kernels of different communicators begin in the order in which this process queues them, which
  /// is that of the plan on every rank.
  Nccl() { ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }  // NOLINT(concurrency-mt-unsafe)

  [[nodiscard]] Id new_id() override {
    ncclUniqueId made;
    check(ncclGetUniqueId(&made), "ncclGetUniqueId", nullptr);
    Id id{};
    std::memcpy(id.data(), &made, sizeof(made));
    return id;
  }

  [[nodiscard]] Comm join(const Id& id, std::size_t size, std::size_t rank,
                          int most_blocks) override {
    ncclUniqueId shared;
    std::memcpy(&shared, id.data(), sizeof(shared));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    Comm comm = nullptr;
    check(ncclCommInitRankConfig(&comm, static_cast<int>(size), shared, static_cast<int>(rank),
                                 &config),
          "ncclCommInitRankConfig", nullptr);
    return comm;
  }

  [[nodiscard]] bool settled(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError", comm);
    check(state, "a communicator", comm);
    return state == ncclSuccess;
  }

  void leave(Comm comm) override {
    check(ncclCommFinalize(comm), "ncclCommFinalize", comm);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!settled(comm)) {
      if (std::chrono::steady_clock::now() >= limit) throw NcclError("a communicator does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(ncclCommDestroy(comm), "ncclCommDestroy", nullptr);
  }
  void abort(Comm comm) noexcept override { static_cast<void>(ncclCommAbort(comm)); }

  void group_begin() override { check(ncclGroupStart(), "ncclGroupStart", nullptr); }
  void group_end() override { check(ncclGroupEnd(), "ncclGroupEnd", nullptr); }

  void send(Comm comm, const void* from, std::size_t bytes, std::size_t to,
            StreamView stream) override {
    check(ncclSend(from, bytes, ncclInt8, static_cast<int>(to), comm, stream.get()), "ncclSend",
          comm);
  }
  void receive(Comm comm, void* into, std::size_t bytes, std::size_t from,
               StreamView stream) override {
    check(ncclRecv(into, bytes, ncclInt8, static_cast<int>(from), comm, stream.get()), "ncclRecv",
          comm);
  }
  void broadcast(Comm comm, void* values, std::size_t bytes, std::size_t root,
                 StreamView stream) override {
    check(
        ncclBroadcast(values, values, bytes, ncclInt8, static_cast<int>(root), comm, stream.get()),
        "ncclBroadcast", comm);
  }
  void all_reduce(Comm comm, void* values, std::size_t count, Number number,
                  runtime::Reduction reduction, StreamView stream) override {
    check(
        ncclAllReduce(values, values, count, type_of(number),
                      reduction == runtime::Reduction::sum ? ncclSum : ncclMax, comm, stream.get()),
        "ncclAllReduce", comm);
  }
  void reduce_scatter(Comm comm, void* values, std::size_t part, Number number,
                      StreamView stream) override {
    const std::size_t bytes = part * bytes_of(number);
    check(ncclReduceScatter(values, part_of(comm, values, bytes), part, type_of(number), ncclSum,
                            comm, stream.get()),
          "ncclReduceScatter", comm);
  }
  void reduce(Comm comm, void* values, std::size_t count, Number number, std::size_t root,
              StreamView stream) override {
    check(ncclReduce(values, values, count, type_of(number), ncclSum, static_cast<int>(root), comm,
                     stream.get()),
          "ncclReduce", comm);
  }
  void all_gather(Comm comm, void* values, std::size_t part, StreamView stream) override {
    check(ncclAllGather(part_of(comm, values, part), values, part, ncclInt8, comm, stream.get()),
          "ncclAllGather", comm);
  }

 private:
  static ncclDataType_t type_of(Number number) {
    if (number == Number::bf16) return ncclBfloat16;
    return number == Number::f32 ? ncclFloat32 : ncclFloat64;
  }
  /// This member's place among parts of so many bytes.
  static void* part_of(Comm comm, void* values, std::size_t bytes) {
    int rank = 0;
    check(ncclCommUserRank(comm, &rank), "ncclCommUserRank", comm);
    return static_cast<char*>(values) + static_cast<std::size_t>(rank) * bytes;
  }
  /// What goes on in the background is no error.
  static void check(ncclResult_t result, const char* call, Comm comm) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    std::string text = std::string(call) + ": " + ncclGetErrorString(result);
    if (const char* const more = ncclGetLastError(comm); more != nullptr && *more != 0) {
      text += std::string(" (") + more + ")";
    }
    throw NcclError(text);
  }
};

}  // namespace

std::unique_ptr<NcclApi> make_nccl() {
  return std::make_unique<Nccl>();
}

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "unknown";
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

}  // namespace slimpack::cuda::nccl
