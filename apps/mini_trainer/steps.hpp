// SPDX-License-Identifier: Apache-2.0
// From data to planned steps, the next one on a thread of its own while one is trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "options.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/sample_tokens.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::trainer {

/// Documents and what their tokens mean.
struct Corpus {
  std::vector<runtime::TokenSource> sources;
  runtime::TokenRules rules;
  std::vector<std::string> notes;  ///< what a user should know of these data
  /// Token counts of the documents of all sources, in their order.
  [[nodiscard]] std::vector<LengthSet> lengths() const;
};

/// The tokens of a model that takes all data: the largest token and those below it, rounded up to a
/// multiple of kVocabularyMultiple. Text has the end-of-document token behind its bytes. Reads
/// every token. Throws InvalidInput where no data have tokens.
[[nodiscard]] std::int64_t vocabulary_of_data(const Options& options);
inline constexpr std::int64_t kVocabularyMultiple = 64;

/// The model of the folder that a run begins from, else of --model with the tokens of --vocabulary;
/// elements as wide as `element`. Throws InvalidInput, also where --vocabulary is not what the
/// saved model has.
[[nodiscard]] ModelShape model_of(const Options& options, std::int64_t element);

/// Opens what is trained on, or evaluated on. Without paths: this repository's own text, without
/// or with the files that are held out; an empty corpus where there is none to evaluate on. Throws
/// InvalidInput.
[[nodiscard]] Corpus open_training(const Options& options, const ModelShape& model);
[[nodiscard]] Corpus open_held_out(const Options& options, const ModelShape& model);

/// A step that is ready to run.
struct PreparedStep {
  Plan plan;
  runtime::Program program;
  runtime::StepData data;                    ///< tokens and targets of the plan's samples
  std::vector<runtime::BufferLayout> arena;  ///< of each device of this process
  double seconds = 0;                        ///< that preparing it took
};

/// The ranks that plans and arenas are made for.
struct RankKind {
  Cluster cluster;
  ElementBytes element;
  std::size_t alignment = 1;        ///< of buffers in an arena, bytes
  std::size_t behind = 0;           ///< bytes behind each of them (runtime::buffer_layout)
  bool placed = false;              ///< whether devices follow runtime::buffer_layout
  Tokens granularity{64};           ///< of slices
  std::optional<Tokens> head_tile;  ///< tokens whose logits exist at one time; none: the planner's
  std::size_t count = 1;            ///< ranks of the run
  std::size_t first_here = 0;       ///< number of the first device of this process
  std::size_t here = 1;             ///< devices of this process
};

/// Prepares steps one after the other. All ranks prepare the same.
class StepMaker {
 public:
  /// `request` has everything but the batch. Steps after the first keep the partition of the first.
  /// Arenas are sized for the devices of this process.
  StepMaker(const Corpus& corpus, const Options& options, planners::PlanRequest request,
            bool shuffle, RankKind ranks);

  /// Passes over the first batches of a run.
  void skip(std::int64_t batches) { stream_.skip(batches); }
  /// Plans with the partition of this plan: its chunks, head, layers of the last stage, and whether
  /// ranks share weights.
  void keep_partition(const Plan& plan);
  /// Draws, reads and plans the next step. Throws InvalidInput, and Unplannable where no plan is
  /// feasible.
  [[nodiscard]] PreparedStep next();

 private:
  const Corpus& corpus_;
  const Options& options_;
  planners::PlanRequest request_;
  BatchStream stream_;
  RankKind ranks_;
  bool partitioned_ = false;
};

/// No plan is feasible; `what()` names constraint, needed and available.
class Unplannable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Makes step n + 1 while step n runs.
class StepAhead {
 public:
  explicit StepAhead(StepMaker maker) : maker_(std::move(maker)) {}
  StepAhead(const StepAhead&) = delete;
  StepAhead& operator=(const StepAhead&) = delete;
  ~StepAhead() {
    if (thread_.joinable()) thread_.join();
  }

  [[nodiscard]] StepMaker& maker() noexcept { return maker_; }
  /// Waits for the step that is under way, or makes it. Throws what making it has thrown.
  [[nodiscard]] PreparedStep take();
  /// Begins with the next one.
  void begin();

 private:
  StepMaker maker_;
  std::thread thread_;
  std::optional<PreparedStep> ready_;
  std::exception_ptr failure_;
};

/// The step of --plan, with tokens of the sources that it was made from. Throws InvalidInput where
/// the sources are not those of the corpus.
[[nodiscard]] PreparedStep step_of_plan(const Corpus& corpus, const Options& options,
                                        const Plan& plan, const RankKind& ranks);

/// What planners are told of this machine's cores as `devices` devices.
[[nodiscard]] Cluster cores_as_cluster(const Options& options, std::size_t devices);

/// The cost model of --cost, which must have been measured for this model on such a device; without
/// it the analytic one. What a user should know of it is added to `notes`. Throws InvalidInput.
[[nodiscard]] CostSpec cost_of(const Options& options, const ModelShape& model,
                               const MeasuredDevice& device, std::vector<std::string>& notes);

/// What planners are told about these ranks and the options, without a batch.
[[nodiscard]] planners::PlanRequest base_request(const Options& options, const ModelShape& model,
                                                 const CostSpec& cost, const RankKind& ranks,
                                                 const Corpus& corpus);

}  // namespace slimpack::trainer
