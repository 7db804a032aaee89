// SPDX-License-Identifier: Apache-2.0
// How ranks that know nothing but where rank 0 is find each other.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack_processes/launch.hpp"
#include "slimpack_processes/line.hpp"
#include "slimpack_processes/sockets.hpp"
#include "slimpack_processes/wire.hpp"

namespace slimpack::processes {

/// The ranks did not find each other; `what()` says whom and what was waited for.
class BootstrapError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct BootstrapOptions {
  std::chrono::milliseconds deadline{60000};  ///< until all ranks must have arrived
  std::chrono::milliseconds stranger{5000};   ///< until a connection must have said who it is
  bool tell_strangers = true;                 ///< say on standard error who was sent away
};

/// All ranks as they have found each other.
struct Ring {
  Launch launch;
  std::string token;               ///< of this run, known to its ranks alone
  std::vector<std::string> hosts;  ///< of all ranks
  bool one_machine = true;         ///< all ranks have one host's name
  std::vector<Line> lines;         ///< rank 0: to each other rank, its own is not open
  Line root;                       ///< the others: to rank 0
  Descriptor listener;             ///< rank 0: takes what comes later
};

namespace detail {

inline constexpr std::uint64_t kGreeting = 0x31'6b'63'61'70'6d'69'6c;  // "limpack1" on the wire
inline constexpr std::uint64_t kLongestWord = 1U << 20U;

[[nodiscard]] inline std::vector<std::byte> words(std::initializer_list<std::string> all) {
  std::string text;
  for (const std::string& word : all) text += word + '\n';
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
[[nodiscard]] inline std::vector<std::string> words_of(std::span<const std::byte> bytes) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::vector<std::string> all;
  for (std::string word; std::getline(text, word);) all.push_back(word);
  return all;
}
[[nodiscard]] inline std::string own_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}
[[nodiscard]] inline std::string written(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}
[[nodiscard]] inline std::string ranks_of(const Launch& launch) {
  return std::to_string(launch.size) + " ranks";
}

/// Rank 0: takes connections until every rank has come.
class Gate {
 public:
  Gate(const Launch& launch, const BootstrapOptions& options)
      : launch_(launch), options_(options), lines_(launch.size), hosts_(launch.size) {
    try {
      listener_ = listen_at(launch.port, static_cast<int>(launch.size) + 16);
    } catch (const std::runtime_error& error) {
      throw BootstrapError(std::string(error.what()) + "; MASTER_PORT names another one");
    }
    hosts_[0] = own_host();
  }

  [[nodiscard]] Ring wait() {
    const auto deadline = Clock::now() + options_.deadline;
    while (const std::size_t left = missing().size()) {
      if (Clock::now() >= deadline)
        fail(names(missing()) + " of " + ranks_of(launch_) + (left == 1 ? " has" : " have") +
             " not arrived at " + place_of(launch_.host, launch_.port) + " within " +
             written(options_.deadline));
      look(until(deadline, 200));
    }
    Ring ring;
    ring.launch = launch_;
    ring.token = random_token();
    ring.hosts = hosts_;
    ring.one_machine = std::all_of(hosts_.begin(), hosts_.end(),
                                   [&](const std::string& host) { return host == hosts_[0]; });
    std::vector<std::byte> welcome = words({"welcome", ring.token});
    for (const std::string& host : hosts_) {
      const auto word = words({host});
      welcome.insert(welcome.end(), word.begin(), word.end());
    }
    for (std::size_t rank = 1; rank < lines_.size(); ++rank) say(rank, welcome);
    ring.lines = std::move(lines_);
    ring.listener = std::move(listener_);
    return ring;
  }

 private:
  /// A connection that has not yet said who it is.
  struct Stranger {
    Line line;
    std::string heard;
    Clock::time_point since;
    std::string address;
  };

  [[nodiscard]] std::vector<std::size_t> missing() const {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 1; rank < lines_.size(); ++rank) {
      if (!lines_[rank].open()) ranks.push_back(rank);
    }
    return ranks;
  }
  /// "rank 2", "ranks 1, 3 and 12 more".
  [[nodiscard]] static std::string names(const std::vector<std::size_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size() && i < 16; ++i) {
      text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    }
    return ranks.size() <= 16 ? text : text + " and " + std::to_string(ranks.size() - 16) + " more";
  }

  void say(std::size_t rank, std::span<const std::byte> message) {
    const auto limit = Clock::now() + options_.stranger;
    try {
      lines_[rank].send(message, [&] {
        if (Clock::now() >= limit) throw LineBroken("it takes nothing");
      });
    } catch (const LineBroken&) {
      lines_[rank] = Line();
      fail(gone(rank));
    }
  }
  [[nodiscard]] std::string gone(std::size_t rank) const {
    return "rank " + std::to_string(rank) + " of " + ranks_of(launch_) + ", on " + hosts_[rank] +
           ", has ended before all had arrived";
  }

  /// Tells all that have arrived, then throws.
  [[noreturn]] void fail(const std::string& sentence) {
    for (Line& line : lines_) {
      if (!line.open()) continue;
      try {
        line.send(words({"fail", sentence}), [] { throw LineBroken("it takes nothing"); });
      } catch (const LineBroken&) {
        continue;  // it is gone, and nobody is left to be told
      }
    }
    throw BootstrapError(sentence);
  }

  void note(const Stranger& stranger, const std::string& why) const {
    if (!options_.tell_strangers) return;
    std::fprintf(stderr, "rank 0 of %zu: sent away a connection from %s: %s\n", launch_.size,
                 stranger.address.c_str(), why.c_str());
  }
  void send_away(Stranger& stranger, const std::string& why) {
    note(stranger, why);
    try {
      stranger.line.send(words({"refused", why}), [] { throw LineBroken("it takes nothing"); });
    } catch (const LineBroken&) {
      // It will see that the connection has ended.
    }
    stranger.line = Line();
  }

  void look(int timeout) {
    std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
    for (const Line& line : lines_) {
      if (line.open()) waits.push_back({line.descriptor(), POLLIN, 0});
    }
    for (const Stranger& one : strangers_) waits.push_back({one.line.descriptor(), POLLIN, 0});
    ::poll(waits.data(), waits.size(), timeout);
    for (std::size_t rank = 1; rank < lines_.size(); ++rank) {
      char byte = 0;
      if (lines_[rank].open() &&
          ::recv(lines_[rank].descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
        lines_[rank] = Line();
        fail(gone(rank));
      }
    }
    for (;;) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.open()) break;
      std::string address = peer_of(socket);
      const std::uint64_t greeting = kGreeting;
      static_cast<void>(::send(socket.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL));
      strangers_.push_back({Line(std::move(socket)), {}, Clock::now(), std::move(address)});
    }
    for (Stranger& one : strangers_) hear(one);
    std::erase_if(strangers_, [](const Stranger& one) { return !one.line.open(); });
  }

  void hear(Stranger& one) {
    std::array<char, 512> part{};
    const ssize_t count = ::recv(one.line.descriptor(), part.data(), part.size(), MSG_DONTWAIT);
    if (count > 0) one.heard.append(part.data(), static_cast<std::size_t>(count));
    const bool ended = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    const std::size_t lines =
        static_cast<std::size_t>(std::count(one.heard.begin(), one.heard.end(), '\n'));
    if (lines >= 5) return sample_workload(one);
    if (one.heard.size() > 4096 ||
        one.heard.compare(0, 9, "slimpack ", 0, std::min<std::size_t>(9, one.heard.size())) != 0) {
      return send_away(one, "it is no rank of slimpack");
    }
    if (ended) {
      note(one, "it has ended without saying who it is");
      one.line = Line();
    } else if (Clock::now() - one.since >= options_.stranger) {
      send_away(one, "it does not say who it is");
    }
  }

  void sample_workload(Stranger& one) {
    const auto word = words_of(std::as_bytes(std::span(one.heard)));
    const auto rank = static_cast<std::size_t>(std::strtoul(word[3].c_str(), nullptr, 10));
    if (word[0] != kVersion) {
      return send_away(
          one, "it is of another version of slimpack (" + word[0] + ", not " + kVersion + ")");
    }
    if (word[1] != launch_.job) {
      return send_away(one, "it is of another job ('" + word[1] + "', not '" + launch_.job + "')");
    }
    if (word[2] != std::to_string(launch_.size)) {
      return send_away(
          one, "it is one of " + word[2] + " ranks, not of " + std::to_string(launch_.size));
    }
    if (rank == 0 || rank >= lines_.size() || lines_[rank].open()) {
      return send_away(one, "rank " + word[3] + " is here already");
    }
    hosts_[rank] = word[4];
    lines_[rank] = std::move(one.line);
    one.line = Line();
  }

 public:
  static constexpr const char* kVersion = "slimpack 1";

 private:
  const Launch& launch_;
  const BootstrapOptions& options_;
  Descriptor listener_;
  std::vector<Line> lines_;
  std::vector<std::string> hosts_;
  std::vector<Stranger> strangers_;
};

/// Any other rank: knocks until it is let in.
[[nodiscard]] inline Ring knock(const Launch& launch, const BootstrapOptions& options) {
  const auto deadline = Clock::now() + options.deadline;
  const std::string where = place_of(launch.host, launch.port);
  std::string why = "nobody answers";
  Descriptor socket;
  for (std::chrono::milliseconds pause{20};;
       pause = std::min(2 * pause, std::chrono::milliseconds(500))) {
    socket = try_connect(launch.host, launch.port, deadline, why);
    if (socket.open()) break;
    if (Clock::now() + pause >= deadline) {
      throw BootstrapError("rank 0 of " + ranks_of(launch) + " has not answered at " + where +
                           " within " + written(options.deadline) + ": " + why);
    }
    std::this_thread::sleep_for(pause);
  }
  Ring ring;
  ring.launch = launch;
  ring.root = Line(std::move(socket));
  // Rank 0 knows better who is missing: it is given time to say so.
  const auto limit = deadline + options.stranger;
  const auto check = [&] {
    if (Clock::now() < limit) return;
    throw BootstrapError("rank 0 of " + ranks_of(launch) + " has not answered at " + where +
                         " within " + written(options.deadline));
  };
  try {
    const auto greeting_by = Clock::now() + options.stranger;
    std::array<std::byte, sizeof(kGreeting)> greeting{};
    for (std::size_t got = 0; got < greeting.size();) {
      pollfd wait{ring.root.descriptor(), POLLIN, 0};
      ::poll(&wait, 1, 20);
      const ssize_t count =
          ::recv(ring.root.descriptor(), greeting.data() + got, greeting.size() - got, 0);
      if (count > 0) got += static_cast<std::size_t>(count);
      const bool ended = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
      if (ended || (got < greeting.size() && Clock::now() >= greeting_by)) {
        throw BootstrapError("what is at " + where + " is no rank 0 of slimpack");
      }
    }
    if (std::memcmp(greeting.data(), &kGreeting, sizeof(kGreeting)) != 0) {
      throw BootstrapError("what is at " + where + " is no rank 0 of slimpack");
    }
    std::string hello = std::string(Gate::kVersion) + '\n' + launch.job + '\n' +
                        std::to_string(launch.size) + '\n' + std::to_string(launch.rank) + '\n' +
                        own_host() + '\n';
    if (::send(ring.root.descriptor(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(hello.size())) {
      throw LineBroken("it takes nothing");
    }
    const auto word = words_of(ring.root.take(check, kLongestWord));
    if (word.size() == 2 && word[0] == "refused") {
      throw BootstrapError("rank 0 at " + where + " has sent rank " + std::to_string(launch.rank) +
                           " away: " + word[1]);
    }
    if (word.size() == 2 && word[0] == "fail") throw BootstrapError(word[1]);
    if (word.size() != launch.size + 2 || word[0] != "welcome") throw LineBroken("it is unknown");
    ring.token = word[1];
    ring.hosts.assign(word.begin() + 2, word.end());
  } catch (const LineBroken&) {
    throw BootstrapError("rank 0 at " + where + " has ended before all ranks had arrived");
  }
  ring.one_machine =
      std::all_of(ring.hosts.begin(), ring.hosts.end(),
                  [&](const std::string& host) { return host == ring.hosts.front(); });
  return ring;
}

}  // namespace detail

/// All ranks of a job call it once; it returns when all have arrived. Connections of others are
/// sent away and told why. Throws BootstrapError within the deadline (and a little more for rank
/// 0's words) naming the ranks that are missing or gone, on every rank that has arrived.
[[nodiscard]] inline Ring find_each_other(const Launch& launch,
                                          const BootstrapOptions& options = {}) {
  if (launch.size > 1 && launch.rank > 0) return detail::knock(launch, options);
  if (launch.size > 1) return detail::Gate(launch, options).wait();
  Ring ring;
  ring.launch = launch;
  ring.token = random_token();
  ring.hosts = {detail::own_host()};
  ring.lines.resize(1);
  return ring;
}

}  // namespace slimpack::processes
