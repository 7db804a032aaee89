// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack_processes/launch.hpp"

namespace launch_test {

using namespace slimpack;
using processes::Launch;

namespace {

using Set = std::map<std::string, std::string>;

Launch read(const Set& variables) {
  return processes::launch_of([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Set with(Set variables, const Set& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}
Set without(Set variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void refused(const Set& variables, const std::string& sentence) {
  CHECK_THROWS_WITH_AS(static_cast<void>(read(variables)), sentence.c_str(), InvalidInput);
}

const Set kTorch{{"RANK", "3"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
                 {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}, {"LOCAL_WORLD_SIZE", "2"}};
const Set kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_NAMESPACE", "123@1"}};
const Set kMpich{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Set kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                 {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", "gpu[003-004],gpu9"},
                 {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "2"}};

}  // namespace

TEST_CASE("launch: a process that nobody started is alone") {
  const Launch launch = read({{"PATH", "/bin"}, {"MASTER_PORT", "7"}});
  CHECK(launch.rank == 0);
  CHECK(launch.size == 1);
  CHECK(launch == Launch{});
}

TEST_CASE("launch: torchrun's variables") {
  const Launch launch = read(kTorch);
  CHECK(launch.rank == 3);
  CHECK(launch.size == 8);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_size == 2);
  CHECK(launch.host == "n0");
  CHECK(launch.port == 29500);
  CHECK(launch.by == "torchrun");
  CHECK(read(with(kTorch, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).port == 29501);
  CHECK(read(with(kTorch, {{"TORCHELASTIC_RUN_ID", "a"}})).job !=
        read(with(kTorch, {{"TORCHELASTIC_RUN_ID", "b"}})).job);
  CHECK(read(with(kTorch, {{"SLIMPACK_JOB", "mine"}})).job == "mine");
  CHECK_FALSE(read(without(kTorch, "LOCAL_WORLD_SIZE")).local_size.has_value());
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size == 1);
}

TEST_CASE("launch: Open MPI, MPICH and Slurm") {
  const Launch open_mpi = read(kOpenMpi);
  CHECK(open_mpi.rank == 2);
  CHECK(open_mpi.host == "127.0.0.1");
  CHECK(open_mpi.job == "123@1");
  CHECK(open_mpi.port >= 20000);
  CHECK(open_mpi.port < 30000);
  CHECK(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}))
            .port == open_mpi.port);
  CHECK(read(with(kOpenMpi, {{"MASTER_PORT", "4000"}, {"MASTER_ADDR", "::1"}})).port == 4000);
  CHECK(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"SLURM_NODELIST", "a[7-8]"}}))
            .host == "a7");
  CHECK(read(kMpich).local_rank == 1);
  CHECK(read(kMpich).by == "MPICH's mpirun");
  const Launch slurm = read(kSlurm);
  CHECK(slurm.rank == 5);
  CHECK(slurm.size == 8);
  CHECK(slurm.local_rank == 1);
  CHECK(slurm.host == "gpu003");
  CHECK(slurm.job == "77.2");
  CHECK(read(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "6"}})).size == 6);
  CHECK(read(with(kSlurm, {{"MASTER_ADDR", "other"}})).host == "other");
}

TEST_CASE("launch: the launcher that is nearest has the say") {
  CHECK(read(with(kSlurm, kOpenMpi)).by == "Open MPI's mpirun");
  CHECK(read(with(kSlurm, kMpich)).by == "MPICH's mpirun");
  CHECK(read(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})).by == "Slurm's srun");
  CHECK(read(with(kSlurm, kTorch)).by == "torchrun");
  const Set same = with(kOpenMpi, {{"RANK", "2"},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_RANK", "2"},
                                   {"MASTER_ADDR", "n0"},
                                   {"MASTER_PORT", "29500"}});
  CHECK(read(same).by == "torchrun");
  refused(with(same, {{"RANK", "1"}, {"LOCAL_RANK", "1"}}),
          "RANK: must be what OMPI_COMM_WORLD_RANK is (2), or one of them be unset, got 1");
  refused(with(same, {{"WORLD_SIZE", "3"}}),
          "WORLD_SIZE: must be what OMPI_COMM_WORLD_SIZE is (4), or one of them be unset, got 3");
  CHECK(read(with(same, {{"WORLD_SIZE", "3"}, {"TORCHELASTIC_RUN_ID", "none"}})).size == 3);
}

TEST_CASE("launch: the first host of a list") {
  const auto first = [](const std::string& list) { return processes::first_host("LIST", list); };
  CHECK(first("one") == "one");
  CHECK(first("one,two") == "one");
  CHECK(first("gpu[003-005,9],login") == "gpu003");
  CHECK(first("rack[1-2]node[7,9]-ib,x") == "rack1node7-ib");
  CHECK(first("a[12]") == "a12");
  CHECK_THROWS_WITH_AS(first("a[1-2"), "LIST: must close its brackets, got 'a[1-2'", InvalidInput);
  CHECK_THROWS_WITH_AS(first(""), "LIST: must be a list of hosts, got ''", InvalidInput);
  CHECK_THROWS_WITH_AS(first(",a"), "LIST: must be a list of hosts, got ',a'", InvalidInput);
}

TEST_CASE("launch: nonsense is refused by the variable's name") {
  refused(with(kTorch, {{"RANK", "eight"}}), "RANK: must be a whole number >= 0, got 'eight'");
  refused(with(kTorch, {{"RANK", "-1"}}), "RANK: must be a whole number >= 0, got '-1'");
  refused(with(kTorch, {{"RANK", ""}}), "RANK: must be a whole number >= 0, got ''");
  refused(with(kTorch, {{"WORLD_SIZE", "99999999999"}}),
          "WORLD_SIZE: must be a whole number >= 0, got '99999999999'");
  refused(with(kTorch, {{"RANK", "8"}}), "RANK: must be below WORLD_SIZE (8), got 8");
  refused(with(kTorch, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE: must be >= 1, got 0");
  refused(with(kTorch, {{"LOCAL_RANK", "2"}}),
          "LOCAL_RANK: must be below LOCAL_WORLD_SIZE (2), got 2");
  refused(with(kTorch, {{"LOCAL_WORLD_SIZE", "9"}}),
          "LOCAL_WORLD_SIZE: must be from 1 to WORLD_SIZE (8), got 9");
  refused(with(without(kTorch, "LOCAL_WORLD_SIZE"), {{"LOCAL_RANK", "4"}}),
          "LOCAL_RANK: must be at most RANK (3), got 4");
  refused(without(kTorch, "RANK"), "RANK: must be set, since WORLD_SIZE is");
  refused(without(kTorch, "WORLD_SIZE"), "WORLD_SIZE: must be set, since RANK is");
  refused(without(kTorch, "LOCAL_RANK"), "LOCAL_RANK: must be set, since RANK is");
  refused(without(kTorch, "MASTER_ADDR"), "MASTER_ADDR: must be set, since RANK is");
  refused(without(kTorch, "MASTER_PORT"), "MASTER_PORT: must be set, since RANK is");
  refused(with(kTorch, {{"MASTER_PORT", "0"}}), "MASTER_PORT: must be a port, 1 to 65535, got 0");
  refused(with(kTorch, {{"MASTER_PORT", "65536"}}),
          "MASTER_PORT: must be a port, 1 to 65535, got 65536");
  refused(with(kTorch, {{"MASTER_PORT", "65535"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
          "MASTER_PORT: must leave one port above for ranks, 1 to 65534, got 65535");
  refused(
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
      "MASTER_ADDR: must be set to the host of rank 0, since Open MPI's mpirun does not tell it");
  refused(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1"}}),
          "SLURM_STEP_NODELIST: must close its brackets, got 'gpu[1'");
  refused(without(kSlurm, "SLURM_LOCALID"), "SLURM_LOCALID: must be set, since SLURM_PROCID is");
}

}  // namespace launch_test
