// SPDX-License-Identifier: Apache-2.0
// Messages on their way: MPI requests with the bytes that each has to bring.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"

namespace slimpack::mpi {

/// MPI itself said no; `what()` has its words.
class MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws unless `code` is success: InvalidInput where a message is longer than its receiver
/// posted, else MpiError.
inline void check_mpi(int code) {
  if (code == MPI_SUCCESS) return;
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  require(kind != MPI_ERR_TRUNCATE, "transport: both sides must post as many bytes");
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(code, text.data(), &size);
  throw MpiError(std::string(text.data(), static_cast<std::size_t>(size)));
}

/// Transfers that end together. Spans stay valid until `ended`; a flight that is given up leaves
/// its requests to MPI, so nothing of MPI may be called after that.
class Flight {
 public:
  Flight() = default;
  Flight(Flight&&) = default;
  Flight& operator=(Flight&&) = default;

  /// Ends when the receiver has posted and begun to take it.
  void send(MPI_Comm comm, std::size_t to, int tag, std::span<const std::byte> bytes) {
    for_each_part(bytes, [&](std::span<const std::byte> part) {
      check_mpi(MPI_Issend(part.data(), static_cast<int>(part.size()), MPI_BYTE,
                           static_cast<int>(to), tag, comm, &add(kSend)));
    });
  }
  void receive(MPI_Comm comm, std::size_t from, int tag, std::span<std::byte> bytes) {
    for_each_part(bytes, [&](std::span<std::byte> part) {
      check_mpi(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE,
                          static_cast<int>(from), tag, comm,
                          &add(static_cast<std::int64_t>(part.size()))));
    });
  }

  /// Whether all have ended. Throws as check_mpi, and InvalidInput if a message was shorter than
  /// its receiver posted.
  [[nodiscard]] bool ended() {
    while (!requests_.empty()) {
      int done = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&requests_.back(), &done, &status));
      if (done == 0) return false;
      const std::int64_t expected = bytes_.back();
      requests_.pop_back();
      bytes_.pop_back();
      if (expected == kSend) continue;
      int count = 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &count));
      require(count == expected, "transport: both sides must post as many bytes", expected);
    }
    return true;
  }

 private:
  static constexpr std::int64_t kSend = -1;
  /// MPI counts bytes in an int: longer messages go in parts, cut alike on both sides.
  static constexpr std::size_t kPart = std::size_t{1} << 30U;

  template <class Byte, std::invocable<std::span<Byte>> Visit>
  static void for_each_part(std::span<Byte> bytes, Visit visit) {
    do {
      const std::span<Byte> part = bytes.first(std::min(bytes.size(), kPart));
      visit(part);
      bytes = bytes.subspan(part.size());
    } while (!bytes.empty());
  }

  MPI_Request& add(std::int64_t bytes) {
    bytes_.push_back(bytes);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  std::vector<MPI_Request> requests_;
  std::vector<std::int64_t> bytes_;  ///< that each must bring; of sends `kSend`
};

}  // namespace slimpack::mpi
