// SPDX-License-Identifier: Apache-2.0
// The dozen calls of NCCL that the transport makes, so that tests can stand in for it. Needs no
// header of NCCL or CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/device.hpp"

struct ncclComm;

namespace slimpack::cuda::nccl {

/// NCCL said no; `what()` has its words.
class NcclError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the members of a communicator have to know of it before they join.
using Id = std::array<char, 128>;

/// A member's end of a communicator, owned by who joined.
using Comm = ncclComm*;

/// Type of the numbers that are summed.
enum class Number : std::uint8_t { f32, f64, bf16 };

/// Bytes of a number.
[[nodiscard]] constexpr std::size_t bytes_of(Number number) noexcept {
  return number == Number::bf16 ? 2 : number == Number::f32 ? 4 : 8;
}

/// One process' NCCL. Communicators do not block: after `join`, after each operation outside of a
/// group and after `group_end`, `settled` must have said true of each communicator concerned before
/// it is used again. Operations are queued on a stream of the device; buffers are device memory and
/// stay valid until they have run. All throw NcclError.
class NcclApi {
 public:
  NcclApi() = default;
  NcclApi(const NcclApi&) = delete;
  NcclApi& operator=(const NcclApi&) = delete;
  virtual ~NcclApi() = default;

  [[nodiscard]] virtual Id new_id() = 0;
  /// `most_blocks`: that its kernels may have, 0 for NCCL's own choice.
  [[nodiscard]] virtual Comm join(const Id& id, std::size_t size, std::size_t rank,
                                  int most_blocks) = 0;
  /// False while the last call goes on in the background. Throws where the communicator has failed,
  /// also on the device.
  [[nodiscard]] virtual bool settled(Comm comm) = 0;
  /// Ends a communicator whose operations have all run; all members call it.
  virtual void leave(Comm comm) = 0;
  /// Ends a communicator now, whatever its operations do. Never throws.
  virtual void abort(Comm comm) noexcept = 0;

  /// Operations between group_begin and group_end begin together, and none waits for another of
  /// them.
  virtual void group_begin() = 0;
  virtual void group_end() = 0;
  virtual void send(Comm comm, const void* from, std::size_t bytes, std::size_t to,
                    StreamView stream) = 0;
  virtual void receive(Comm comm, void* into, std::size_t bytes, std::size_t from,
                       StreamView stream) = 0;
  /// In place: `values` of member `root` become those of all.
  virtual void broadcast(Comm comm, void* values, std::size_t bytes, std::size_t root,
                         StreamView stream) = 0;
  /// In place: all members get the sum or maximum, with the same bits.
  virtual void all_reduce(Comm comm, void* values, std::size_t count, Number number,
                          runtime::Reduction reduction, StreamView stream) = 0;
  /// In place: the i-th `part` numbers of member i become the sum over all members.
  virtual void reduce_scatter(Comm comm, void* values, std::size_t part, Number number,
                              StreamView stream) = 0;
  /// In place: the numbers of member `root` become the sum over all members.
  virtual void reduce(Comm comm, void* values, std::size_t count, Number number, std::size_t root,
                      StreamView stream) = 0;
  /// In place: member i brings the i-th `part` bytes.
  virtual void all_gather(Comm comm, void* values, std::size_t part, StreamView stream) = 0;
};

/// NCCL itself, for the current device. Target slimpack_nccl has it.
[[nodiscard]] std::unique_ptr<NcclApi> make_nccl();

/// NCCL's version, e.g. "2.28.9".
[[nodiscard]] std::string nccl_version();

}  // namespace slimpack::cuda::nccl
