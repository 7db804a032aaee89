// SPDX-License-Identifier: Apache-2.0
// Which rank of how many this process is, as torchrun, mpirun or srun have told it in variables.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "slimpack/core/error.hpp"

namespace slimpack::processes {

/// What a rank has to know to find the others.
struct Launch {
  std::size_t rank = 0, size = 1;
  std::size_t local_rank = 0;             ///< among the ranks of this machine
  std::optional<std::size_t> local_size;  ///< ranks of this machine, where it was told
  std::string host = "127.0.0.1";         ///< where rank 0 is
  std::uint16_t port = 0;                 ///< at which it listens
  std::string job;                        ///< the same on all ranks of a job and on no others
  std::string by = "nobody";              ///< who started it, for sentences
  friend bool operator==(const Launch&, const Launch&) = default;
};

/// The value of a variable, if it is set.
using Variables = std::function<std::optional<std::string>(const std::string&)>;

[[nodiscard]] inline Variables environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

/// The first host of a Slurm list such as "login,gpu[003-005,9]-ib[1-2]". Throws InvalidInput
/// naming the variable where there is none.
[[nodiscard]] inline std::string first_host(const std::string& name, const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = list.find(']', i);
    require(close != std::string::npos, name + ": must close its brackets", list);
    host += list.substr(i + 1, list.find_first_of(",-]", i) - i - 1);
    i = close;
  }
  require(!host.empty() && host.find_first_of("[] \t") == std::string::npos,
          name + ": must be a list of hosts", list);
  return host;
}

namespace detail {

/// Reads variables as numbers and names.
class LaunchReader {
 public:
  explicit LaunchReader(const Variables& variables) : variables_(variables) {}

  [[nodiscard]] bool has(const std::string& name) const { return variables_(name).has_value(); }
  [[nodiscard]] std::optional<std::string> text(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (auto value = variables_(name); value && !value->empty()) return value;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::size_t> number(const std::string& name) const {
    const auto text = variables_(name);
    if (!text) return std::nullopt;
    std::uint32_t value = 0;
    const char* const end = text->data() + text->size();
    const auto [last, error] = std::from_chars(text->data(), end, value);
    require(error == std::errc{} && last == end && value < (1U << 24U),
            name + ": must be a whole number >= 0", *text);
    return value;
  }
  [[nodiscard]] std::size_t need(const std::string& name, const std::string& because) const {
    const auto value = number(name);
    require(value.has_value(), name + ": must be set, since " + because + " is");
    return *value;
  }
  [[nodiscard]] std::optional<std::uint16_t> port(const std::string& name) const {
    const auto value = number(name);
    if (!value) return std::nullopt;
    require(*value >= 1 && *value <= 65535, name + ": must be a port, 1 to 65535",
            static_cast<std::int64_t>(*value));
    return static_cast<std::uint16_t>(*value);
  }

 private:
  const Variables& variables_;
};

/// Names of the variables of a launcher.
struct LauncherNames {
  const char* by;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// A launcher above the others has the say: mpirun inside a Slurm job sees Slurm's variables too,
/// and torchrun may be started by either.
inline constexpr std::array kLaunchers{
    LauncherNames{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    LauncherNames{"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    LauncherNames{"MPICH's mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    LauncherNames{"Slurm's srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""}};

/// A port of a job that names none: the same on all its ranks, most likely another one for another
/// job of the machine, and below those that systems give to connections.
[[nodiscard]] inline std::uint16_t port_of_job(std::string_view job) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return static_cast<std::uint16_t>(20000U + hash % 10000U);
}

inline void check_counts(const Launch& launch, const LauncherNames& names) {
  const auto number = [](std::size_t value) { return std::to_string(value); };
  require(launch.size >= 1, std::string(names.size) + ": must be >= 1", std::int64_t{0});
  require(
      launch.rank < launch.size,
      std::string(names.rank) + ": must be below " + names.size + " (" + number(launch.size) + ")",
      static_cast<std::int64_t>(launch.rank));
  if (!launch.local_size) {
    require(launch.local_rank <= launch.rank,
            std::string(names.local_rank) + ": must be at most " + names.rank + " (" +
                number(launch.rank) + ")",
            static_cast<std::int64_t>(launch.local_rank));
    return;
  }
  require(*launch.local_size >= 1 && *launch.local_size <= launch.size,
          std::string(names.local_size) + ": must be from 1 to " + names.size + " (" +
              number(launch.size) + ")",
          static_cast<std::int64_t>(*launch.local_size));
  require(launch.local_rank < *launch.local_size,
          std::string(names.local_rank) + ": must be below " + names.local_size + " (" +
              number(*launch.local_size) + ")",
          static_cast<std::int64_t>(launch.local_rank));
}

/// torchrun's variables set by hand under mpirun must say what mpirun says.
inline void check_agreement(const LaunchReader& read, const Launch& launch) {
  if (read.has("TORCHELASTIC_RUN_ID")) return;  // torchrun itself may be what mpirun started
  for (const LauncherNames& other : {kLaunchers[1], kLaunchers[2]}) {
    for (const auto& [mine, theirs, value] : {std::tuple{"RANK", other.rank, launch.rank},
                                              std::tuple{"WORLD_SIZE", other.size, launch.size}}) {
      const auto told = read.number(theirs);
      require(!told || *told == value,
              std::string(mine) + ": must be what " + theirs + " is (" +
                  std::to_string(told.value_or(0)) + "), or one of them be unset",
              static_cast<std::int64_t>(value));
    }
  }
}

}  // namespace detail

/// Reads the variables of the first launcher in this order: torchrun (or whoever sets its
/// variables), Open MPI, MPICH and its kin, Slurm. Without any of them the process is alone.
/// MASTER_ADDR and MASTER_PORT say where rank 0 listens; without them it is on this machine if all
/// ranks are, or on the first host of Slurm's list, at a port that follows from the job's number.
/// Throws InvalidInput naming variable, rule and value.
[[nodiscard]] inline Launch launch_of(const Variables& variables) {
  const detail::LaunchReader read(variables);
  Launch launch;
  const detail::LauncherNames* names = nullptr;
  for (const detail::LauncherNames& one : detail::kLaunchers) {
    // srun speaks PMI too, but tells local ranks in words of its own.
    const bool other = one.rank == std::string_view("PMI_RANK") && read.has("SLURM_PROCID") &&
                       !read.has(one.local_rank);
    const bool torch_alone = one.rank == std::string_view("RANK") && read.has("WORLD_SIZE");
    if (names == nullptr && !other && (read.has(one.rank) || torch_alone)) names = &one;
  }
  if (names == nullptr) return launch;
  const std::string by = names->by;
  const bool torch = names == &detail::kLaunchers[0], slurm = names == &detail::kLaunchers[3];
  launch.by = by;
  launch.rank = read.need(names->rank, names->size);
  launch.size = read.need(names->size, names->rank);
  if (slurm) launch.size = read.number("SLURM_STEP_NUM_TASKS").value_or(launch.size);
  if (*names->local_size != 0) launch.local_size = read.number(names->local_size);
  if (const auto local = read.number(names->local_rank)) {
    launch.local_rank = *local;
  } else {
    require(launch.size == 1,
            std::string(names->local_rank) + ": must be set, since " + names->rank + " is");
  }
  detail::check_counts(launch, *names);
  if (torch) detail::check_agreement(read, launch);

  const auto slurm_step = read.text({"SLURM_STEP_ID"});
  const auto slurm_job = read.text({"SLURM_JOB_ID"});
  if (const auto own = read.text({"SLIMPACK_JOB"})) {
    launch.job = *own;
  } else if (torch) {
    launch.job = read.text({"TORCHELASTIC_RUN_ID"}).value_or("") + "." +
                 read.text({"TORCHELASTIC_RESTART_COUNT"}).value_or("0");
  } else if (slurm) {
    launch.job = slurm_job.value_or("") + "." + slurm_step.value_or("");
  } else {
    launch.job = read.text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_PORT", "PMI_KVS"})
                     .value_or("");
  }

  const auto host = read.text({"MASTER_ADDR"});
  const auto list = read.text({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  const bool together = launch.size == 1 || launch.local_size == launch.size;
  if (host) {
    launch.host = *host;
  } else if (torch && launch.size > 1) {
    throw InvalidInput("MASTER_ADDR: must be set, since RANK is");
  } else if (!together && list) {
    const char* const name = read.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST"
                             : read.has("SLURM_NODELIST")    ? "SLURM_NODELIST"
                                                             : "SLURM_JOB_NODELIST";
    launch.host = first_host(name, *list);
  } else if (!together) {
    throw InvalidInput("MASTER_ADDR: must be set to the host of rank 0, since " + by +
                       " does not tell it");
  }
  const auto port = read.port("MASTER_PORT");
  if (torch && launch.size > 1) {
    require(port.has_value(), "MASTER_PORT: must be set, since RANK is");
  }
  launch.port = port.value_or(detail::port_of_job(launch.job));
  // torchrun then listens at that port itself.
  if (read.text({"TORCHELASTIC_USE_AGENT_STORE"}) == "True" && port) {
    require(*port < 65535, "MASTER_PORT: must leave one port above for ranks, 1 to 65534",
            static_cast<std::int64_t>(*port));
    ++launch.port;
  }
  return launch;
}

}  // namespace slimpack::processes
