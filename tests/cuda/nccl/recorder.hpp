// SPDX-License-Identifier: Apache-2.0
// Notes what every rank asks of NCCL, and replays it as devices that do one thing after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack_cuda/nccl/api.hpp"
#include "slimpack_cuda/nccl/control.hpp"

namespace slimpack::test {

namespace nccl = cuda::nccl;

/// One operation of a rank.
struct Operation {
  enum class Kind : std::uint8_t {
    send,
    receive,
    broadcast,
    all_reduce,
    all_gather,
    reduce_scatter,
    reduce
  };
  Kind kind = Kind::send;
  std::size_t comm = 0, size = 0, self = 0;  ///< the communicator, its size, the rank in it
  std::size_t peer = 0;                      ///< or root, or the reduction and number
  std::size_t bytes = 0;
  cuda::StreamView stream;
  bool urgent = false;  ///< whether the stream has high priority
};

/// Operations that a rank queues together.
using Group = std::vector<Operation>;
/// All that a rank queues, in its order.
using Record = std::vector<Group>;

/// Ids are numbers: ranks that join by the same one are members of the same communicator.
class RecordingNccl : public nccl::NcclApi {
 public:
  [[nodiscard]] nccl::Id new_id() override { return {}; }
  [[nodiscard]] nccl::Comm join(const nccl::Id& id, std::size_t size, std::size_t rank,
                                int most_blocks) override {
    most_blocks_ = most_blocks;
    std::size_t number = 0;
    std::memcpy(&number, id.data(), sizeof(number));
    joined_.push_back(std::make_unique<Operation>());
    joined_.back()->comm = number;
    joined_.back()->size = size;
    joined_.back()->self = rank;
    return reinterpret_cast<nccl::Comm>(joined_.back().get());
  }
  [[nodiscard]] bool settled(nccl::Comm) override { return true; }
  void leave(nccl::Comm) override { ++left_; }
  void abort(nccl::Comm) noexcept override { ++aborted_; }
  void group_begin() override { open_.emplace(); }
  void group_end() override {
    record.push_back(std::move(*open_));
    open_.reset();
  }
  void send(nccl::Comm comm, const void*, std::size_t bytes, std::size_t to,
            cuda::StreamView stream) override {
    add(comm, Operation::Kind::send, bytes, to, stream);
  }
  void receive(nccl::Comm comm, void*, std::size_t bytes, std::size_t from,
               cuda::StreamView stream) override {
    add(comm, Operation::Kind::receive, bytes, from, stream);
  }
  void broadcast(nccl::Comm comm, void*, std::size_t bytes, std::size_t root,
                 cuda::StreamView stream) override {
    add(comm, Operation::Kind::broadcast, bytes, root, stream);
  }
  void all_reduce(nccl::Comm comm, void*, std::size_t count, nccl::Number number,
                  runtime::Reduction reduction, cuda::StreamView stream) override {
    const std::size_t element = nccl::bytes_of(number);
    add(comm, Operation::Kind::all_reduce, count * element,
        element * 2 + (reduction == runtime::Reduction::sum ? 0 : 1), stream);
  }
  void all_gather(nccl::Comm comm, void*, std::size_t part, cuda::StreamView stream) override {
    add(comm, Operation::Kind::all_gather, part, 0, stream);
  }

  void reduce_scatter(nccl::Comm comm, void*, std::size_t part, nccl::Number,
                      cuda::StreamView stream) override {
    add(comm, Operation::Kind::reduce_scatter, part, 0, stream);
  }
  void reduce(nccl::Comm comm, void*, std::size_t count, nccl::Number, std::size_t root,
              cuda::StreamView stream) override {
    add(comm, Operation::Kind::reduce, count, root, stream);
  }

  Record record;
  [[nodiscard]] int most_blocks() const noexcept { return most_blocks_; }
  [[nodiscard]] std::size_t joined() const noexcept { return joined_.size(); }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  [[nodiscard]] std::size_t aborted() const noexcept { return aborted_; }

 private:
  void add(nccl::Comm comm, Operation::Kind kind, std::size_t bytes, std::size_t peer,
           cuda::StreamView stream) {
    Operation operation = *reinterpret_cast<const Operation*>(comm);
    operation.kind = kind;
    operation.bytes = bytes;
    operation.peer = peer;
    operation.stream = stream;
    operation.urgent = stream.priority() == cuda::StreamPriority::high;
    if (open_) return open_->push_back(operation);
    record.push_back({operation});
  }

  std::vector<std::unique_ptr<Operation>> joined_;
  std::optional<Group> open_;
  std::size_t left_ = 0, aborted_ = 0;
  int most_blocks_ = -1;
};

/// The host's side of a rank in tests: ids are counted, alike on all ranks.
class CountingControl : public nccl::Control {
 public:
  explicit CountingControl(std::size_t rank) : rank_(rank) {}
  [[nodiscard]] std::size_t rank() const override { return rank_; }
  void check() const override {}
  void abort(const std::string& sentence) override { said = sentence; }
  void announce(const std::string& text) override { place = text; }
  void inside(bool step) override { in_step = step; }
  [[nodiscard]] std::vector<nccl::Id> agree(
      std::span<const std::optional<nccl::Id>> mine) override {
    std::vector<nccl::Id> ids(mine.size());
    for (nccl::Id& id : ids) {
      ++count_;
      std::memcpy(id.data(), &count_, sizeof(count_));
    }
    return ids;
  }

  std::string said, place;
  bool in_step = false;

 private:
  std::size_t rank_, count_ = 0;
};

/// Replays what ranks have queued on devices that have room for one group at a time, each in the
/// order in which it was queued: the least that a device may do. What ends so ends on devices that
/// do more at once. A group's operations go on side by side; messages of a pair meet in order, and
/// collective operations when all members have come to the same. Gives what is wrong: an operation
/// whose other side has another size or kind, or the ranks that wait for ever; empty for nothing.
class DeviceReplay {
 public:
  explicit DeviceReplay(std::span<const Record> records)
      : records_(records), next_(records.size()), done_(records.size()) {}

  [[nodiscard]] std::string run() {
    for (std::size_t rank = 0; rank < records_.size(); ++rank) begin(rank);
    for (bool moved = true; moved && wrong_.empty();) {
      moved = false;
      for (std::size_t rank = 0; rank < records_.size(); ++rank) {
        while (wrong_.empty() && advance(rank)) moved = true;
      }
    }
    if (!wrong_.empty()) return wrong_;
    for (std::size_t rank = 0; rank < records_.size(); ++rank) {
      if (next_[rank] == records_[rank].size()) continue;
      wrong_ += (wrong_.empty() ? "for ever: " : "; ") + name(rank, records_[rank][next_[rank]]);
    }
    return wrong_;
  }

 private:
  using Pair = std::pair<std::size_t, std::size_t>;
  /// Where the members of a communicator are.
  struct CommState {
    std::map<std::size_t, std::pair<std::size_t, std::size_t>> at;  ///< member: its rank, place
  };

  [[nodiscard]] static std::string name(std::size_t rank, const Group& group) {
    static constexpr const char* kKinds[] = {
        "send", "receive", "broadcast", "all_reduce", "all_gather", "reduce_scatter", "reduce"};
    std::string text = "rank " + std::to_string(rank) + ":";
    for (const Operation& one : group) {
      text += " " + std::string(kKinds[static_cast<int>(one.kind)]) + " of " +
              std::to_string(one.bytes) + " bytes, communicator " + std::to_string(one.comm) +
              ", peer " + std::to_string(one.peer);
    }
    return text;
  }

  void begin(std::size_t rank) {
    done_[rank].clear();
    if (next_[rank] == records_[rank].size()) return;
    const Group& group = records_[rank][next_[rank]];
    done_[rank].assign(group.size(), false);
    for (std::size_t i = 0; i < group.size(); ++i)
      comms_[group[i].comm].at[group[i].self].first = rank;
  }

  /// The first operation of the rank's current group that is not done and that a message of this
  /// kind and pair, or else this communicator, would meet.
  [[nodiscard]] std::optional<std::size_t> find(std::size_t rank, const Operation& like,
                                                bool message, Operation::Kind kind,
                                                std::size_t peer) const {
    if (next_[rank] == records_[rank].size()) return std::nullopt;
    const Group& group = records_[rank][next_[rank]];
    for (std::size_t i = 0; i < group.size(); ++i) {
      if (done_[rank][i] || group[i].comm != like.comm) continue;
      const bool is_message =
          group[i].kind == Operation::Kind::send || group[i].kind == Operation::Kind::receive;
      if (message ? group[i].kind == kind && group[i].peer == peer : !is_message) return i;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool meet(std::size_t rank, std::size_t place) {
    const Operation& mine = records_[rank][next_[rank]][place];
    const auto& at = comms_[mine.comm].at;
    const bool message =
        mine.kind == Operation::Kind::send || mine.kind == Operation::Kind::receive;
    std::vector<Pair> all{{rank, place}};
    for (std::size_t member = 0; member < mine.size; ++member) {
      if (member == mine.self || (message && member != mine.peer)) continue;
      const auto there = at.find(member);
      if (there == at.end()) return false;
      const std::size_t other = there->second.first;
      const auto other_kind =
          mine.kind == Operation::Kind::send ? Operation::Kind::receive : Operation::Kind::send;
      const auto found = find(other, mine, message, other_kind, mine.self);
      if (!found) return false;
      const Operation& theirs = records_[other][next_[other]][*found];
      if (theirs.bytes != mine.bytes || theirs.size != mine.size ||
          (!message && (theirs.kind != mine.kind || theirs.peer != mine.peer))) {
        wrong_ = "differ: " + name(rank, {mine}) + " and " + name(other, {theirs});
        return false;
      }
      all.emplace_back(other, *found);
    }
    for (const auto& [one, operation] : all) done_[one][operation] = true;
    return true;
  }

  [[nodiscard]] bool advance(std::size_t rank) {
    if (next_[rank] == records_[rank].size()) return false;
    const Group& group = records_[rank][next_[rank]];
    bool moved = false, all = true;
    for (std::size_t i = 0; i < group.size() && wrong_.empty(); ++i) {
      // Of one pair, or one communicator, only the first that is not done may go on.
      const bool message =
          group[i].kind == Operation::Kind::send || group[i].kind == Operation::Kind::receive;
      if (!done_[rank][i] && find(rank, group[i], message, group[i].kind, group[i].peer) == i) {
        moved = meet(rank, i) || moved;
      }
      all = all && done_[rank][i];
    }
    if (!all) return moved;
    ++next_[rank];
    begin(rank);
    return true;
  }

  std::span<const Record> records_;
  std::vector<std::size_t> next_;        ///< group of each rank that is not done
  std::vector<std::vector<bool>> done_;  ///< operations of that group
  std::map<std::size_t, CommState> comms_;
  std::string wrong_;
};

}  // namespace slimpack::test
