// SPDX-License-Identifier: Apache-2.0
// Sockets that listen and that connect, IPv4 and IPv6, none of which waits longer than it is told.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "slimpack_processes/wire.hpp"

namespace slimpack::processes {

using Clock = std::chrono::steady_clock;

/// Milliseconds until then for poll(2), at most `most` and at least 0.
[[nodiscard]] inline int until(Clock::time_point deadline, int most) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, most));
}

/// "node3, port 29500".
[[nodiscard]] inline std::string place_of(const std::string& host, std::uint16_t port) {
  return host + ", port " + std::to_string(port);
}

namespace detail {

/// A listening socket of one family; not open, with `errno` set, where it cannot be had.
[[nodiscard]] inline Descriptor listen_family(int family, bool loopback, std::uint16_t port,
                                              int connections) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) return socket;
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    auto& six = reinterpret_cast<sockaddr_in6&>(address);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    six.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    size = sizeof(six);
  } else {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    size = sizeof(four);
  }
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(socket.get(), connections) != 0) {
    const int why = errno;
    socket.close();
    errno = why;
  }
  return socket;
}

[[nodiscard]] inline std::uint16_t port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  check_system(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0,
               "cannot listen");
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// On the loopback a connection to a port where nobody listens may find itself.
[[nodiscard]] inline bool is_own(const Descriptor& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

}  // namespace detail

/// A socket that takes connections at a port that the system chooses, on the loopback only or on
/// all networks, and the port.
[[nodiscard]] inline std::pair<Descriptor, std::uint16_t> listen_socket(bool loopback,
                                                                        int connections) {
  Descriptor socket = detail::listen_family(AF_INET, loopback, 0, connections);
  check_system(socket.open(), "cannot listen");
  const std::uint16_t port = detail::port_of(socket);
  return {std::move(socket), port};
}

/// A socket that takes connections at `port` on all networks, by IPv6 and IPv4 where the system has
/// both. Throws std::runtime_error with the system's reason, e.g. a port that is taken.
[[nodiscard]] inline Descriptor listen_at(std::uint16_t port, int connections) {
  Descriptor socket = detail::listen_family(AF_INET6, false, port, connections);
  if (!socket.open() && errno != EADDRINUSE && errno != EACCES) {
    socket = detail::listen_family(AF_INET, false, port, connections);
  }
  check_system(socket.open(), "rank 0 cannot listen at port " + std::to_string(port));
  return socket;
}

/// The other side's address as text.
[[nodiscard]] inline std::string peer_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                    nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return host.data();
}

/// Connects to a host by name or number within the time. Not open where nobody takes the
/// connection; `why` then has the system's reason.
[[nodiscard]] inline Descriptor try_connect(const std::string& host, std::uint16_t port,
                                            Clock::time_point deadline, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    why = std::string("host '") + host + "' is not known (" + ::gai_strerror(error) + ")";
    return {};
  }
  Descriptor socket;
  for (const addrinfo* one = found; one != nullptr && !socket.open(); one = one->ai_next) {
    Descriptor candidate(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                                  one->ai_protocol));
    if (!candidate.open()) continue;
    int error = ::connect(candidate.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd wait{candidate.get(), POLLOUT, 0};
      error = ETIMEDOUT;
      socklen_t size = sizeof(error);
      if (::poll(&wait, 1, until(deadline, 5000)) > 0) {
        ::getsockopt(candidate.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0 && detail::is_own(candidate)) {
      why = "nobody listens";
    } else if (error == 0) {
      socket = std::move(candidate);
    } else {
      why = std::strerror(error);
    }
  }
  ::freeaddrinfo(found);
  return socket;
}

/// The same once. Throws std::runtime_error where it cannot be.
[[nodiscard]] inline Descriptor connect_socket(const std::string& host, std::uint16_t port) {
  std::string why = "no address";
  Descriptor socket = try_connect(host, port, Clock::now() + std::chrono::seconds(5), why);
  if (!socket.open()) {
    throw std::runtime_error("ranks: cannot connect to rank 0 at " + place_of(host, port) + ": " +
                             why);
  }
  return socket;
}

}  // namespace slimpack::processes
