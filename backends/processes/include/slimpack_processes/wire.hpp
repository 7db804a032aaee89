// SPDX-License-Identifier: Apache-2.0
// Frames over sockets between ranks: what monitors say to each other.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace slimpack::processes {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { close(); }
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] bool open() const noexcept { return number_ >= 0; }
  void close() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

/// Throws std::runtime_error with the system's reason unless `good`.
inline void check_system(bool good, const std::string& what) {
  if (!good) throw std::runtime_error("ranks: " + what + ": " + std::strerror(errno));
}

/// 32 random hexadecimal digits.
[[nodiscard]] inline std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i) token += "0123456789abcdef"[random() % 16];
  return token;
}

/// What one rank tells another.
struct Frame {
  enum class Kind : std::uint8_t {
    hello,  ///< `number` is the rank that speaks
    beat,   ///< `number` counts what has ended, `state` and texts say what goes on
    abort,  ///< to rank 0: `text` is the sentence
    fail,   ///< `text` is the first cause; the rank that hears it ends
    bye     ///< all work is done; the connection may end
  };
  Kind kind = Kind::beat;
  std::uint8_t state = 0;
  std::uint64_t number = 0;
  std::string text, awaited;
};

/// A connection that sends and takes in whole frames and never blocks. After an error or the other
/// side's end it is not `open` any more; what came before can still be taken.
class Wire {
 public:
  Wire() = default;
  explicit Wire(Descriptor socket) : socket_(std::move(socket)) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
  }
  [[nodiscard]] bool open() const noexcept { return socket_.open(); }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  [[nodiscard]] bool sent() const noexcept { return out_.empty() || !open(); }

  void send(const Frame& frame) {
    if (!open()) return;
    const auto text = static_cast<std::uint32_t>(frame.text.size());
    const auto awaited = static_cast<std::uint32_t>(frame.awaited.size());
    const auto put = [&](const auto& value) {
      out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    put(frame.kind), put(frame.state), put(frame.number), put(text), put(awaited);
    out_ += frame.text + frame.awaited;
    flush();
  }

  /// Sends what the system takes now.
  void flush() {
    while (open() && !out_.empty()) {
      const ssize_t count = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
      if (count > 0) {
        out_.erase(0, static_cast<std::size_t>(count));
      } else {
        if (errno == EAGAIN || errno == EINTR) return;
        socket_.close();
      }
    }
  }

  /// Reads what has come.
  void fill() {
    char part[4096];
    while (open()) {
      const ssize_t count = ::recv(socket_.get(), part, sizeof(part), 0);
      if (count > 0) {
        in_.append(part, static_cast<std::size_t>(count));
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        socket_.close();
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }

  /// The next whole frame, if there is one.
  [[nodiscard]] std::optional<Frame> take() {
    constexpr std::size_t kHead = 1 + 1 + 8 + 4 + 4;
    constexpr std::uint32_t kLongest = 1U << 20U;
    if (in_.size() < kHead) return std::nullopt;
    Frame frame;
    std::size_t i = 0;
    const auto get = [&](auto& value) {
      std::memcpy(&value, in_.data() + i, sizeof(value));
      i += sizeof(value);
    };
    std::uint32_t text = 0, awaited = 0;
    get(frame.kind), get(frame.state), get(frame.number), get(text), get(awaited);
    if (text > kLongest || awaited > kLongest) {  // no rank says so much: a stranger
      socket_.close();
      in_.clear();
      return std::nullopt;
    }
    if (in_.size() < kHead + text + awaited) return std::nullopt;
    frame.text = in_.substr(kHead, text);
    frame.awaited = in_.substr(kHead + text, awaited);
    in_.erase(0, kHead + text + awaited);
    return frame;
  }

 private:
  Descriptor socket_;
  std::string in_, out_;
};

}  // namespace slimpack::processes
