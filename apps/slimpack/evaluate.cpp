// SPDX-License-Identifier: Apache-2.0
// slimpack evaluate: whole matrices of settings by every planner, each at its best degrees.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cell_result.hpp"
#include "command.hpp"
#include "common.hpp"
#include "evaluation_export.hpp"
#include "matrix.hpp"
#include "progress.hpp"
#include "result_store.hpp"
#include "sizes.hpp"
#include "slimpack/core/version.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::app {
namespace {

struct EvaluateOptions {
  std::string matrix, store;
  std::vector<std::string> planners;
  std::string csv, json, limit, sample, commit, threads = "auto";
};

/// A result that is not there yet.
struct Job {
  const EvaluationCell* cell = nullptr;
  const planners::PlannerInfo* planner = nullptr;
};

/// Planners that the command line asks for, out of those that a group has.
void restrict_planners(EvaluationMatrix& matrix, const std::vector<std::string>& names) {
  if (names.empty()) return;
  for (const std::string& name : names) {
    static_cast<void>(planners::find_planner(name));
    require(std::count(names.begin(), names.end(), name) == 1,
            "--planners: a planner must be listed once", name);
  }
  const auto other = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) == names.end();
  };
  for (EvaluationGroup& group : matrix.groups) std::erase_if(group.planners, other);
}

/// What is left to do, in the order of the file, of one in `every` families and of at most
/// `most_cells` cells.
[[nodiscard]] std::vector<Job> jobs_of(const EvaluationMatrix& matrix, const ResultStore& store,
                                       std::int64_t every, std::optional<std::int64_t> most_cells) {
  const std::vector<std::vector<bool>> sampled = sampled_cells(matrix, every);
  std::vector<Job> jobs;
  std::set<std::string> queued;  // groups share cells
  std::vector<bool> begun(matrix.cells.size());
  std::int64_t cells = 0;
  for (std::size_t at = 0; at < matrix.groups.size(); ++at) {
    const EvaluationGroup& group = matrix.groups[at];
    for (std::size_t place = 0; place < group.cells.size(); ++place) {
      if (!sampled[at][place]) continue;
      const std::size_t i = group.cells[place];
      const EvaluationCell& cell = matrix.cells[i];
      for (const std::string& name : group.planners) {
        const std::string key = result_key(cell, name);
        if (store.has(key) || queued.contains(key)) continue;
        if (!begun[i]) {
          if (most_cells && cells == *most_cells) break;
          begun[i] = true;
          ++cells;
        }
        queued.insert(key);
        jobs.push_back({&cell, &planners::find_planner(name)});
      }
    }
  }
  return jobs;
}

[[nodiscard]] std::string time_left(std::chrono::steady_clock::duration spent, std::size_t done,
                                    std::size_t all) {
  if (done == 0) return {};
  const double each = std::chrono::duration<double>(spent).count() / static_cast<double>(done);
  const auto left = static_cast<std::int64_t>(each * static_cast<double>(all - done));
  return fmt::format("about {}:{:02}:{:02} left", left / 3600, left / 60 % 60, left % 60);
}

/// Runs all jobs; what fails is said at the end and costs no other job. The number that failed.
[[nodiscard]] std::size_t run_jobs(const std::vector<Job>& jobs, ResultStore& store,
                                   const std::string& commit, std::int32_t threads) {
  Progress progress("evaluating");
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::vector<std::string> failures;
  std::exception_ptr stopped;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      const Job& job = jobs[i];
      std::string line, failure;
      try {
        line = result_line(*job.cell, evaluate_cell(*job.cell, *job.planner), commit);
      } catch (const std::exception& error) {
        failure = fmt::format("{}: {}", result_key(*job.cell, job.planner->name), error.what());
      }
      const std::lock_guard lock(mutex);
      if (stopped) return;
      try {
        if (failure.empty()) store.append(line);
      } catch (...) {
        stopped = std::current_exception();
        return;
      }
      if (!failure.empty()) failures.push_back(std::move(failure));
      ++done;
      progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(jobs.size()),
               time_left(std::chrono::steady_clock::now() - start, done, jobs.size()));
    }
  };
  std::vector<std::thread> workers;
  for (std::int32_t i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (stopped) std::rethrow_exception(stopped);
  for (const std::string& failure : failures) {
    std::cerr << fmt::format("slimpack: evaluate: {}\n", failure);
  }
  return failures.size();
}

int run(const EvaluateOptions& options) {
  const std::int32_t threads =
      options.threads == "auto"
          ? std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()))
          : parse_count("--threads", options.threads);
  std::optional<std::int64_t> limit;
  if (!options.limit.empty()) limit = parse_size("--limit", options.limit);
  const std::int64_t every = options.sample.empty() ? 1 : parse_size("--sample", options.sample);
  const bool to_standard = check_outputs({{"--json", options.json}, {"--csv", options.csv}});
  EvaluationMatrix matrix = read_matrix(options.matrix);
  restrict_planners(matrix, options.planners);
  ResultStore store(options.store);
  if (store.dropped_torn()) {
    std::cerr << fmt::format("{}: a last line that a killed run left was cut off\n", options.store);
  }
  if (options.planners.empty()) store.describe(matrix_line(matrix));
  const std::vector<Job> jobs = jobs_of(matrix, store, every, limit);
  const std::size_t failed = run_jobs(jobs, store, options.commit, threads);

  write_report(options.json, [&](auto& out) { write_evaluation_json(out, matrix, store); });
  write_report(options.csv, [&](auto& out) { write_evaluation_csv(out, matrix, store); });
  if (!to_standard) {
    write_evaluation_text(std::cout, matrix, store, jobs.size() - failed);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

Run add_evaluate(CLI::App& command) {
  auto options = std::make_shared<EvaluateOptions>();
  command.add_option("MATRIX", options->matrix, "which cells there are, JSON (docs/schemas.md)")
      ->required();
  command
      .add_option("--store", options->store,
                  "results as JSON lines: read, and what it lacks is computed and appended")
      ->required();
  add_with_alias(command, "--planners", "--planner", options->planners,
                 "only these, names with commas between [those of the matrix]");
  command.add_option("--limit", options->limit, "compute at most so many cells, then stop");
  command.add_option("--sample", options->sample,
                     "compute one in so many settings of each name of groups, those with the "
                     "smallest digests [1: all]");
  options->commit = "slimpack " SLIMPACK_VERSION_TEXT;
  command
      .add_option("--commit", options->commit,
                  "which planner this is, written beside each new result")
      ->capture_default_str();
  command.add_option("--csv", options->csv, "write a row for each result of the matrix");
  command.add_option("--json", options->json, "write all results of the matrix as one JSON");
  command
      .add_option("--threads", options->threads,
                  "results computed at a time, never changes them; auto: all cores")
      ->capture_default_str();
  return [options] { return run(*options); };
}

}  // namespace slimpack::app
