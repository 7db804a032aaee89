// SPDX-License-Identifier: Apache-2.0
// A connection between two ranks for whole messages, which waits as long as it is let.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slimpack_processes/wire.hpp"

namespace slimpack::processes {

/// The other side has gone, or speaks another language.
class LineBroken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sends and takes messages of any length. While it waits it calls `check` some fifty times a
/// second, which throws to give up.
class Line {
 public:
  Line() = default;
  explicit Line(Descriptor socket) : socket_(std::move(socket)) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  }
  [[nodiscard]] bool open() const noexcept { return socket_.open(); }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  [[nodiscard]] const Descriptor& socket() const noexcept { return socket_; }
  [[nodiscard]] Descriptor take_socket() { return std::move(socket_); }

  template <std::invocable Check>
  void send(std::span<const std::byte> message, Check check) {
    const std::uint64_t size = message.size();
    send_all(std::as_bytes(std::span(&size, 1)), check);
    send_all(message, check);
  }

  /// Throws LineBroken, too, where the message is longer than `longest`.
  template <std::invocable Check>
  [[nodiscard]] std::vector<std::byte> take(Check check, std::uint64_t longest = 1ULL << 40U) {
    std::uint64_t size = 0;
    take_all(std::as_writable_bytes(std::span(&size, 1)), check);
    if (size > longest) throw LineBroken("the other side speaks another language");
    std::vector<std::byte> message(size);
    take_all(message, check);
    return message;
  }

 private:
  template <class Check>
  void wait(short what, Check& check) {
    pollfd wait{socket_.get(), what, 0};
    ::poll(&wait, 1, 20);
    check();
  }

  template <class Check>
  void send_all(std::span<const std::byte> bytes, Check& check) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN || errno == EINTR) {
        wait(POLLOUT, check);
      } else {
        throw LineBroken(std::string("a connection has ended: ") + std::strerror(errno));
      }
    }
  }
  template <class Check>
  void take_all(std::span<std::byte> bytes, Check& check) {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (count > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      } else if (count == 0) {
        throw LineBroken("a connection has ended");
      } else if (errno == EAGAIN || errno == EINTR) {
        wait(POLLIN, check);
      } else {
        throw LineBroken(std::string("a connection has ended: ") + std::strerror(errno));
      }
    }
  }

  Descriptor socket_;
};

}  // namespace slimpack::processes
