// SPDX-License-Identifier: Apache-2.0
// Steps without end, in which one rank fails: what faults.py looks at from outside.
//   mpi_faults FOLDER FAULT RANK STEP CALL [threads DP PP]
// At the CALL-th F, B or H of STEP the rank RANK throws, waits for ever, stops or kills itself, or
// leaves (FAULT throw, hang, stop, kill, leave), or nothing happens (none). Ranks are processes
// under mpirun, else threads. In FOLDER each process writes its number to `pid.RANK`, and `fault`
// has the place before it happens; `begun.RANK` says that the rank is in its third step.
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_mpi/run_step.hpp"
#include "slimpack_processes/together.hpp"
#include "support/random_plan.hpp"

namespace {

using namespace slimpack;

struct Order {
  std::filesystem::path folder;
  std::string fault;
  std::size_t rank = 0;
  int step = 0, call = 0;
};

void write(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path draft = path.string() + ".draft";
  std::ofstream(draft) << text;
  std::filesystem::rename(draft, path);
}

class FaultyDevice : public cpu::Device {
 public:
  using cpu::Device::Device;
  const Order* order = nullptr;  ///< where this is the device that fails
  int left = 0;                  ///< calls until then
  std::string place = "unknown";

  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    count(link);
    cpu::Device::forward(call, link);
  }
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    count(link);
    cpu::Device::backward(call, link);
  }
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    count(link);
    cpu::Device::head(call, link);
  }

 private:
  template <class Link>
  void count(Link& link) {
    if (order == nullptr || left-- != 0) return;
    if constexpr (std::is_same_v<Link, mpi::MpiTransport>) {
      place = link.session().monitor().whereabouts();
    }
    write(order->folder / "fault", place);
    if (order->fault == "throw") throw std::runtime_error("out of luck");
    if (order->fault == "stop") ::raise(SIGSTOP);
    if (order->fault == "kill") ::raise(SIGKILL);
    if (order->fault == "leave") ::_exit(0);
    if (order->fault == "hang") {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable().wait(lock, [] { return false; });
    }
  }
};

struct Degrees {
  std::int32_t dp = 1, pp = 1, tp = 1;
};

Plan plan_of(std::int32_t dp, std::int32_t pp, std::int32_t tp) {
  test::RandomPlanOptions options;
  options.dp = dp;
  options.pp = pp;
  options.tp = tp;
  options.min_samples = 8;
  options.min_tokens = 40;
  Plan plan = test::random_plan(5, options);
  plan.memory.head_tile = Tokens{64};  // few collectives of tensor-parallel devices: steps are fast
  return plan;
}

FaultyDevice device_of(const Plan& plan, std::size_t rank, const Order& order) {
  FaultyDevice device(plan, rank, 1);
  if (rank == order.rank && order.fault != "none") device.order = &order;
  return device;
}

runtime::StepData data_of(const Plan& plan, int step) {
  return cpu::step_data(plan, cpu::random_tokens(plan, static_cast<std::uint64_t>(step)));
}

void arm(FaultyDevice& device, const Order& order, int step) {
  device.left = step == order.step ? order.call : -1;
}

int run_processes(int argc, char** argv, const Order& order, const Degrees& degrees) {
  return mpi::run(argc, argv, {}, [&](mpi::Session& session) {
    const Plan plan = plan_of(degrees.dp, degrees.pp, degrees.tp);
    const runtime::Program program = runtime::make_program(plan);
    mpi::MpiTransport link(session);
    FaultyDevice device = device_of(plan, session.rank(), order);
    const std::string rank = std::to_string(session.rank());
    write(order.folder / ("pid." + rank), std::to_string(::getpid()));
    for (int step = 0;; ++step) {
      if (step == 2) write(order.folder / ("begun." + rank), {});
      arm(device, order, step);
      mpi::check_same_plan(link, plan);
      static_cast<void>(mpi::run_step(link, plan, program, data_of(plan, step), device));
    }
    return 0;
  });
}

int run_threads(const Order& order, const Degrees& degrees) {
  const Plan plan = plan_of(degrees.dp, degrees.pp, degrees.tp);
  const runtime::Program program = runtime::make_program(plan);
  std::vector<FaultyDevice> devices;
  for (std::size_t rank = 0; rank < device_count(plan); ++rank) {
    devices.push_back(device_of(plan, rank, order));
    devices.back().place = processes::device_of(plan, rank);
  }
  runtime::DeviceThreads device_threads(devices.size(), {{}, runtime::HangTimeouts{}});
  write(order.folder / "pid.0", std::to_string(::getpid()));
  try {
    for (int step = 0;; ++step) {
      if (step == 2) write(order.folder / "begun.0", {});
      for (FaultyDevice& device : devices) arm(device, order, step);
      static_cast<void>(runtime::run_step(device_threads, plan, program, data_of(plan, step),
                                          std::span(devices)));
    }
  } catch (const std::exception& error) {
    runtime::end_process(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  const Order order{argv[1], argv[2], std::stoul(argv[3]), std::stoi(argv[4]), std::stoi(argv[5])};
  const Degrees degrees{std::stoi(argv[7]), std::stoi(argv[8]), std::stoi(argv[9])};
  if (std::string_view(argv[6]) == "threads") return run_threads(order, degrees);
  return run_processes(argc, argv, order, degrees);
}
