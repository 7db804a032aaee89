// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/program.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tiny_plan.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("make_program: pieces partition every sample and lie in one pack of each pass") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const runtime::Program program = runtime::make_program(plan);
    std::vector<std::vector<int>> seen;
    for (const Tokens length : plan.samples) {
      seen.emplace_back(static_cast<std::size_t>(length.value), 0);
    }
    for (const runtime::Piece& piece : program.pieces) {
      for (Tokens t = piece.begin; t < piece.end; t += Tokens{1}) {
        ++seen[index(piece.sample)][static_cast<std::size_t>(t.value)];
      }
      CHECK(piece.recompute == plan.micropacks[index(piece.backward)].recompute);
    }
    for (const auto& sample : seen) {
      for (const int count : sample) CHECK(count == 1);
    }
    for (std::size_t id = 0; id < program.packs.size(); ++id) {
      for (std::size_t rank = 0; rank < program.packs[id].size(); ++rank) {
        Tokens rows;
        for (const runtime::Segment& segment : program.packs[id][rank].segments) {
          const CpShard shard = cp_shard_of(plan, segment.slice.sample, rank);
          CHECK(segment.shard.before(segment.slice.end) == shard.before(segment.slice.end));
          CHECK(segment.rows == shard.between(segment.slice.begin, segment.slice.end));
          Tokens last = segment.slice.begin;
          for (const std::size_t place : segment.pieces) {
            const runtime::Piece& piece = program.pieces[place];
            CHECK(piece.sample == segment.slice.sample);
            CHECK(piece.begin >= last);
            CHECK(piece.end <= segment.slice.end);
            CHECK(shard.between(piece.begin, piece.end) == piece.length());
            last = piece.end;
          }
          rows += segment.rows;
        }
        CHECK(rows == program.packs[id][rank].rows);
      }
    }
  }
}

TEST_CASE("make_program: every message has a sender and a receiver, neighbours of the line") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const runtime::Program program = runtime::make_program(plan);
    if (plan.parallel.pp == 1) CHECK(program.channels.empty());
    for (const runtime::ChannelWork& work : program.channels) {
      const auto device = [&](std::int32_t pp) -> const runtime::DeviceProgram& {
        return program.devices[device_index(plan, work.channel.dp, pp)];
      };
      for (const runtime::Message& message : work.messages) {
        const runtime::UnitWork& from = device(work.channel.from).units[message.sender_unit];
        const runtime::UnitWork& to = device(work.channel.to).units[message.receiver_unit];
        CHECK(from.unit.pack == message.pack);
        CHECK(to.unit.pack == message.pack);
        CHECK(to.virtual_stage - from.virtual_stage ==
              (work.channel.direction == runtime::Direction::down ? 1 : -1));
        CHECK(from.send == to.receive);
      }
    }
  }
}

TEST_CASE("make_program: what cannot be executed is refused with its place") {
  const Plan good = test::tiny_plan(2, {{0}, {1}, {0, 1}}, {{6, 0}, {5, 1}, {8, 2}});
  CHECK_NOTHROW((void)runtime::make_program(good));
  const auto refused = [&](const std::function<void(Plan&)>& change, const std::string& sentence) {
    Plan plan = good;
    change(plan);
    CHECK_THROWS_WITH_AS((void)runtime::make_program(plan), sentence.c_str(), InvalidInput);
  };
  refused([](Plan& p) { p.parallel.tp = 0; }, "execution: parallel.tp must be >= 1, got 0");
  refused([](Plan& p) { p.parallel.dp = 0; }, "execution: parallel.dp must be >= 1, got 0");
  refused([](Plan& p) { p.parallel.pp = 0; }, "execution: parallel.pp must be >= 1, got 0");
  refused([](Plan& p) { p.parallel.chunks = 0; }, "execution: parallel.chunks must be >= 1, got 0");
  refused([](Plan& p) { p.max_in_flight = 0; }, "execution: window must be >= 1, got 0");
  refused([](Plan& p) { p.memory.page_tokens = Tokens{0}; },
          "execution: memory.page_tokens must be >= 1, got 0");
  refused([](Plan& p) { p.memory.cp_block_tokens = Tokens{0}; },
          "execution: memory.share_tokens must be >= 1, got 0");
  refused([](Plan& p) { p.memory.head_tile = Tokens{0}; },
          "execution: memory.head_tile must be >= 1, got 0");
  refused([](Plan& p) { p.stages.clear(); },
          "execution: stages must have one entry a stage and chunk, got 0");
  refused([](Plan& p) { p.stages[0].chunk = 1; },
          "execution: stages[0] must be in the order of chunk, pp");
  refused([](Plan& p) { p.stages[0].first_layer = 1; },
          "execution: stages[0].layers must continue at 0, got 1");
  refused([](Plan& p) { p.stages[0].end_layer = 1; },
          "execution: stages must end at model.layers, got 1");
  refused([](Plan& p) { p.stages[0].embedding = false; },
          "execution: stages[0].embedding must be true of the first stage only");
  refused([](Plan& p) { p.schedule.pop_back(); },
          "execution: schedule must have one entry a device, got 1");
  refused([](Plan& p) { std::swap(p.schedule[0], p.schedule[1]); },
          "execution: schedule[0] must be sorted by dp, then pp");
  refused([](Plan& p) { p.groups[1].clear(); }, "execution: groups[1] must not be empty");
  refused([](Plan& p) { p.groups[2] = {1, 0}; },
          "execution: groups[2] must be ascending ranks below parallel.dp, got 0");
  refused([](Plan& p) { p.groups[2] = {1, 2}; },
          "execution: groups[2] must be ascending ranks below parallel.dp, got 2");
  refused([](Plan& p) { p.sample_group.pop_back(); },
          "execution: sample_group must have one entry a sample, got 2");
  refused([](Plan& p) { p.sample_group[1] = GroupId{7}; },
          "execution: sample_group[1] must be a group, got 7");
  refused([](Plan& p) { p.micropacks[2].group = GroupId{7}; },
          "execution: micropacks[2].group must be a group, got 7");
  refused([](Plan& p) { p.micropacks[4].exchange.clear(); },
          "execution: micropacks[4].exchange must have one entry a slice, got 0");
  refused([](Plan& p) { p.micropacks[0].slices[0].sample = SampleId{9}; },
          "execution: micropacks[0] must hold known samples, got 9");
  refused([](Plan& p) { p.micropacks[0].slices[0].sample = SampleId{1}; },
          "execution: micropacks[0] must hold samples of its own group only, not sample, got 1");
  refused([](Plan& p) { p.micropacks[2].slices[0].end = Tokens{4}; },
          "execution: the forward slices must partition sample, got 1");
  refused([](Plan& p) { p.micropacks[3].slices.clear(); },
          "execution: the backward slices must partition sample, got 1");
  const std::string first = "execution: unit 0 of device (dp 0, pp 0), ";
  refused([](Plan& p) { p.schedule[0].order[0].chunk = 1; },
          first + "F of MicroPack 0, chunk 1, must name a chunk of the plan");
  refused([](Plan& p) { p.schedule[0].order[0].pack = PackId{99}; },
          first + "F of MicroPack 99, chunk 0, must name a MicroPack of the plan");
  refused([](Plan& p) { p.schedule[0].order[0].pack = PackId{1}; },
          first + "F of MicroPack 1, chunk 0, must name a MicroPack of its pass");
  refused([](Plan& p) { p.schedule[0].order[0].pack = PackId{2}; },
          first + "F of MicroPack 2, chunk 0, must name a MicroPack of a group of its rank");
  refused([](Plan& p) { std::erase(p.schedule[1].order, Unit{UnitKind::forward, PackId{4}, 0}); },
          "execution: the ranks of group 2 must run their collectives in one order, not so device, "
          "got 1");
}

TEST_CASE("make_program: a receiver must consume in the order sent") {
  Plan plan = test::tiny_plan(1, {{0}}, {{6, 0}, {5, 0}});
  plan.parallel.pp = 2;
  plan.stages = {{0, 0, 0, 1, true}, {1, 0, 1, 2, false}};
  plan.schedule.push_back({0, 1, plan.schedule[0].order});
  auto& first = plan.schedule[0].order;
  std::erase_if(first, [](const Unit& unit) { return unit.kind == UnitKind::head; });
  CHECK_NOTHROW((void)runtime::make_program(plan));
  Plan swapped = plan;
  std::swap(swapped.schedule[0].order[0], swapped.schedule[0].order[1]);
  CHECK_THROWS_WITH_AS((void)runtime::make_program(swapped),
                       "execution: device (dp 0, pp 1) must consume in the order sent, not so at "
                       "unit 0, F of MicroPack 0, chunk 0",
                       InvalidInput);
  Plan missing = plan;
  std::erase(missing.schedule[1].order, Unit{UnitKind::forward, PackId{2}, 0});
  CHECK_THROWS_WITH_AS((void)runtime::make_program(missing),
                       "execution: every message must be consumed, not so on the channel of group "
                       "0, rank 0, activations from stage 0 to stage 1",
                       InvalidInput);
  plan.parallel.head = LmHead::shard;
  CHECK_THROWS_WITH_AS(
      (void)runtime::make_program(plan),
      "execution: the stages of rank 0 must run their collectives in one order, not so device, "
      "got 1",
      InvalidInput);
}
