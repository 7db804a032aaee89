// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/checkpoint.hpp"

#include <doctest/doctest.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/checkpoint_folder.hpp"
#include "slimpack/core/random.hpp"
#include "support/draws.hpp"
#include "support/skip.hpp"
#include "support/temporary.hpp"

namespace checkpoint_test {

using namespace slimpack;

namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::set<std::string> whole(std::int64_t step) {
  return {"config.json", "model.safetensors", "training-" + std::to_string(step) + ".safetensors"};
}

/// Runs `work` in a process of its own; its wait status.
int in_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      work();
    } catch (...) {
      std::_Exit(7);
    }
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

/// All moments of a saving, in order.
std::vector<std::string> moments_of(const std::string& folder, const runtime::CheckpointForm& form,
                                    std::int64_t step) {
  std::vector<std::string> moments;
  test::save(folder, form, step, [&](std::string_view moment) { moments.emplace_back(moment); });
  return moments;
}

}  // namespace

TEST_CASE("checkpoint: every bit comes back, whatever the ranges, in each type") {
  for (const bool tied : {false, true}) {
    for (const runtime::ElementType type : {runtime::ElementType::f32, runtime::ElementType::f64}) {
      CAPTURE(tied);
      const test::TemporaryFolder folder;
      runtime::CheckpointForm form{test::small_llama(tied), type, type};
      form.model.bytes_per_element = runtime::element_bytes(type);
      const std::string path = folder.file("run");
      runtime::CheckpointDraft draft(path, form, test::state_after(12));
      Bytes written;
      for (const std::int64_t part : {2, 0, 1}) {
        written += type == runtime::ElementType::f32
                       ? test::write_part<float>(path, form, 12, part, 3)
                       : test::write_part<double>(path, form, 12, part, 3);
      }
      CHECK(written == draft.bytes());
      draft.commit(written);
      CHECK((type == runtime::ElementType::f32 ? test::whole_step<float>(path, form)
                                               : test::whole_step<double>(path, form)) == 12);
      CHECK(names_in(path) == whole(12));
      CHECK(runtime::Checkpoint::open(path).model() == form.model);
      CHECK(runtime::LlamaFolder::open(path)
                .file_of("model.norm.weight")
                .header()
                .metadata.at("format") == "pt");
    }
  }
}

TEST_CASE("checkpoint: bf16 weights beside fp32 master weights and moments") {
  const test::TemporaryFolder folder;
  runtime::CheckpointForm form{test::small_llama(), runtime::ElementType::bf16,
                               runtime::ElementType::f32, true};
  form.model.bytes_per_element = 2;
  const std::string path = folder.file("");
  test::save(path, form, 3);
  const runtime::Checkpoint saved = runtime::Checkpoint::open(path);
  REQUIRE(saved.has_master());
  for (const runtime::NamedShape& tensor : saved.weights().tensors()) {
    const auto count = static_cast<std::size_t>(tensor.elements());
    std::vector<float> weight(count), master(count);
    saved.read(runtime::Stored::weight, tensor.name, 0, std::span<float>(weight));
    saved.read(runtime::Stored::master, tensor.name, 0, std::span<float>(master));
    CHECK(master ==
          test::stored_values<float>(runtime::Stored::master, tensor, 3, 0, tensor.elements()));
    const auto exact =
        test::stored_values<float>(runtime::Stored::weight, tensor, 3, 0, tensor.elements());
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(std::abs(weight[i] - exact[i]) <= std::abs(exact[i]) / 256);
    }
  }
}

TEST_CASE("checkpoint: parts are written by threads at the same time") {
  const test::TemporaryFolder folder;
  const runtime::CheckpointForm form{test::small_llama()};
  const std::string path = folder.file("");
  runtime::CheckpointDraft draft(path, form, test::state_after(5));
  constexpr std::int64_t kParts = 4;
  std::array<Bytes, kParts> written{};
  std::vector<std::thread> threads;
  for (std::int64_t part = 0; part < kParts; ++part) {
    threads.emplace_back([&, part] {
      written[static_cast<std::size_t>(part)] =
          test::write_part<float>(path, form, 5, part, kParts);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Bytes sum;
  for (const Bytes bytes : written) sum += bytes;
  draft.commit(sum);
  CHECK(test::whole_step(path, form) == 5);
}

TEST_CASE("checkpoint: parts are written by processes that share the folder") {
  const test::TemporaryFolder folder;
  const runtime::CheckpointForm form{test::small_llama()};
  const std::string path = folder.file("");
  runtime::CheckpointDraft draft(path, form, test::state_after(5));
  for (std::int64_t part = 0; part < 3; ++part) {
    CHECK(in_child([&] { (void)test::write_part<float>(path, form, 5, part, 3); }) == 0);
  }
  draft.commit(draft.bytes());
  CHECK(test::whole_step(path, form) == 5);
}

TEST_CASE("checkpoint: the moments of a saving, in their order") {
  const test::TemporaryFolder folder;
  const runtime::CheckpointForm form{test::small_llama()};
  const std::vector<std::string> again{"remove what is left over",
                                       "make training.safetensors.part",
                                       "write the header of training.safetensors.part",
                                       "make model.safetensors.part",
                                       "write the header of model.safetensors.part",
                                       "write the parts",
                                       "write the last part",
                                       "rename the training file",
                                       "make its name durable",
                                       "rename the weights",
                                       "make their name durable",
                                       "remove the old training file",
                                       "end"};
  std::vector<std::string> first{"make the folder", "remove what is left over", "write config.json",
                                 "rename config.json"};
  first.insert(first.end(), again.begin() + 1, again.end());
  CHECK(moments_of(folder.file("run"), form, 1) == first);
  CHECK(moments_of(folder.file("run"), form, 2) == again);
}

TEST_CASE("checkpoint: killed at any moment, the folder is the old or the new one, whole") {
  const runtime::CheckpointForm form{test::small_llama()};
  for (const bool first : {true, false}) {
    std::size_t count = 0;
    {
      const test::TemporaryFolder folder;
      if (!first) test::save(folder.file("run"), form, 1);
      count = moments_of(folder.file("run"), form, 2).size();
    }
    std::int64_t old_ones = 0, new_ones = 0;
    for (std::size_t fault = 0; fault < count; ++fault) {
      const test::TemporaryFolder folder;
      const std::string path = folder.file("run");
      if (!first) test::save(path, form, 1);
      std::string last;
      std::size_t seen = 0;
      const int status = in_child([&] {
        test::save(path, form, 2, [&](std::string_view) {
          if (seen++ == fault) ::kill(::getpid(), SIGKILL);
        });
      });
      CAPTURE(first);
      CAPTURE(fault);
      CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
      if (first && !std::filesystem::exists(path + "/model.safetensors")) {
        ++old_ones;
      } else {
        const std::int64_t step = test::whole_step(path, form);
        CHECK((step == 2 || (!first && step == 1)));
        ++(step == 2 ? new_ones : old_ones);
      }
      // The next saving works and removes what was left.
      test::save(path, form, 3);
      CHECK(test::whole_step(path, form) == 3);
      CHECK(names_in(path) == whole(3));
    }
    // Only the moments after the one renaming leave the new one.
    CHECK(new_ones == 3);
    CHECK(old_ones == static_cast<std::int64_t>(count) - 3);
  }
}

TEST_CASE("checkpoint: killed again and again at random times, resumed each time") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  const runtime::CheckpointForm form{test::small_llama()};
  test::save(path, form, 0);
  Random random(11);
  std::int64_t step = 0, kills = 0;
  for (int trial = 0; trial < test::draws(60); ++trial) {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // A byte for each moment tells how far it has come, however slow the disk.
      const auto tell = [&pipe](std::string_view) {
        if (::write(pipe[1], "", 1) != 1) std::_Exit(8);
      };
      try {
        const std::int64_t begin = runtime::Checkpoint::open(path).state().step;
        for (std::int64_t next = begin + 1;; ++next) test::save(path, form, next, tell);
      } catch (...) {
        std::_Exit(7);
      }
    }
    ::close(pipe[1]);
    char byte = 0;
    for (std::int64_t moment = random.between(0, 30); moment > 0; --moment) {
      REQUIRE(::read(pipe[0], &byte, 1) == 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 3000)));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    ::close(pipe[0]);
    kills += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 1 : 0;
    const std::int64_t now = test::whole_step(path, form);
    CHECK(now >= step);
    step = now;
  }
  CHECK(kills == test::draws(60));
  CHECK(step > 0);
}

TEST_CASE("checkpoint: a failure at any moment keeps the old one and leaves nothing behind") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  test::save(path, form, 1);
  for (std::size_t fault = 0; fault < 10; ++fault) {  // up to the one renaming
    CAPTURE(fault);
    std::size_t seen = 0;
    CHECK_THROWS_WITH_AS(test::save(path, form, 2,
                                    [&](std::string_view) {
                                      if (seen++ == fault)
                                        throw InvalidInput("No space left on device");
                                    }),
                         "No space left on device", InvalidInput);
    CHECK(test::whole_step(path, form) == 1);
    CHECK(names_in(path) == whole(1));
  }
}

TEST_CASE("checkpoint: a full disk loses nothing and leaves no part") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  test::save(path, form, 1);
  const auto size = static_cast<rlim_t>(std::filesystem::file_size(path + "/model.safetensors"));
  for (const rlim_t most : {rlim_t{0}, rlim_t{100}, size - 1, size}) {
    CAPTURE(most);
    // The file size that the system allows stands for the space that is left.
    const int status = in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{most, most};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(3);
      try {
        test::save(path, form, 2);
      } catch (const InvalidInput& error) {
        const std::string message = error.what();
        const bool named = message.starts_with("cannot write '" + path + "/") &&
                           message.find(": File too large") != std::string::npos;
        std::_Exit(named ? 5 : 6);
      }
    });
    CHECK(WEXITSTATUS(status) == 5);
    CHECK(test::whole_step(path, form) == 1);
    CHECK(names_in(path) == whole(1));
  }
}

TEST_CASE("checkpoint: a disk that is full loses nothing, whatever its size" *
          doctest::test_suite("needs-disk")) {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string disk = folder.file("disk"), path = disk + "/run";
  std::filesystem::create_directory(disk);
  constexpr int kNoDisk = 77, kRefused = 5, kSaved = 6, kBroken = 9;
  int refused = 0, saved = 0;
  for (int kilobytes = 40; kilobytes <= 120; kilobytes += 8) {
    CAPTURE(kilobytes);
    // A file system in memory that no other process sees.
    const int status = in_child([&] {
      const std::string size = "size=" + std::to_string(kilobytes) + "k";
      if ((::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0) &&
          ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        std::_Exit(kNoDisk);
      }
      if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) {
        std::_Exit(kNoDisk);
      }
      test::save(path, form, 1);
      try {
        test::save(path, form, 2);
      } catch (const InvalidInput& error) {
        const std::string message = error.what();
        const bool kept = test::whole_step(path, form) == 1 && names_in(path) == whole(1);
        const bool named = message.starts_with("cannot write '" + path + "/") &&
                           message.ends_with(": No space left on device");
        std::_Exit(kept && named ? kRefused : kBroken);
      }
      std::_Exit(test::whole_step(path, form) == 2 ? kSaved : kBroken);
    });
    if (WEXITSTATUS(status) == kNoDisk) {
      test::skip("disk", "no file system can be mounted here");
      return;
    }
    CHECK((WEXITSTATUS(status) == kRefused || WEXITSTATUS(status) == kSaved));
    refused += WEXITSTATUS(status) == kRefused ? 1 : 0;
    saved += WEXITSTATUS(status) == kSaved ? 1 : 0;
  }
  CHECK(refused > 0);
  CHECK(saved > 0);
}

TEST_CASE("checkpoint: a step saved again keeps the one before until the end") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  test::save(path, form, 4);
  test::save(path, form, 4);
  CHECK(test::whole_step(path, form) == 4);
  CHECK(names_in(path) ==
        std::set<std::string>{"config.json", "model.safetensors", "training-4-2.safetensors"});
  test::save(path, form, 4);
  CHECK(names_in(path) == whole(4));
}

TEST_CASE("checkpoint: a missing or double part is no checkpoint") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  test::save(path, form, 1);
  for (const int parts : {1, 3}) {
    runtime::CheckpointDraft draft(path, form, test::state_after(2));
    Bytes written;
    for (int part = 0; part < parts; ++part) {
      written += test::write_part<float>(path, form, 2, part % 2, 2);
    }
    CHECK_THROWS_WITH_AS(
        draft.commit(written),
        (path + ": the parts of a checkpoint must have " + std::to_string(draft.bytes().value) +
         " bytes together, found " + std::to_string(written.value))
            .c_str(),
        InvalidInput);
  }
  CHECK(test::whole_step(path, form) == 1);
  CHECK(names_in(path) == whole(1));
  CHECK_THROWS_AS(runtime::CheckpointPart{path}, InvalidInput);
}

TEST_CASE("checkpoint: elements beyond a tensor and unknown tensors are refused") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  const runtime::CheckpointDraft draft(path, form, test::state_after(2));
  runtime::CheckpointPart part(path);
  const std::vector<float> values(9);
  CHECK_THROWS_WITH_AS(
      part.write(runtime::Stored::weight, "model.norm.weight", 0, std::span<const float>(values)),
      (path + "/model.safetensors.part: model.norm.weight: elements 0 .. 9 are not within its 8")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_WITH_AS(
      part.write(runtime::Stored::master, "model.norm.weight", 0, std::span<const float>(values)),
      (path + "/training.safetensors.part: the tensor 'master.model.norm.weight' is not in the "
              "checkpoint")
          .c_str(),
      InvalidInput);
}

TEST_CASE("checkpoint: another model's folder is left alone") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run");
  test::save(path, form, 1);
  runtime::CheckpointForm wider = form;
  wider.model.ffn = 16;
  CHECK_THROWS_WITH_AS(test::save(path, wider, 2),
                       (path + "/config.json: is of another model or element type; save into "
                               "another folder")
                           .c_str(),
                       InvalidInput);
  runtime::CheckpointForm narrow{form.model, runtime::ElementType::bf16, runtime::ElementType::f32,
                                 true};
  CHECK_THROWS_AS(test::save(path, narrow, 2), InvalidInput);
  CHECK(test::whole_step(path, form) == 1);
  write_file(folder.file("run/model.safetensors.index.json"), "{}");
  CHECK_THROWS_WITH_AS(
      test::save(path, form, 2),
      (path + ": holds a model in several files; save into another folder").c_str(), InvalidInput);
  const std::string taken = folder.file("taken");
  write_file(taken, "x");
  CHECK_THROWS_AS(test::save(taken, form, 1), InvalidInput);
  CHECK_THROWS_AS(test::save(folder.file("taken/run"), form, 1), InvalidInput);
}

TEST_CASE("checkpoint: what cannot be resumed is named") {
  const runtime::CheckpointForm form{test::small_llama()};
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run"), weights = path + "/model.safetensors";
  const auto refused = [&](const std::string& message) {
    CHECK_THROWS_WITH_AS((void)runtime::Checkpoint::open(path), message.c_str(), InvalidInput);
  };
  test::save(path, form, 1);
  const std::string training = path + "/training-1.safetensors";
  const std::string good = read_file(training);
  std::filesystem::remove(training);
  refused("cannot open '" + training + "': No such file or directory");
  write_file(training, good.substr(0, good.size() - 1));
  CHECK_THROWS_AS((void)runtime::Checkpoint::open(path), InvalidInput);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    write_file(training, text);
  };
  changed("slimpack_state", "slimpack_other");
  refused(training + ": holds no state of a run (metadata slimpack_state)");
  changed("\\\"step\\\": 1,", "\\\"step\\\": 9,");
  refused(training + ": must be of the step of the weights, 1, found 9");
  changed("first_moment.model.norm", "other_moment.model.norm");
  refused(training + ": the tensor 'first_moment.model.norm.weight' is missing");

  runtime::SafetensorsHeader plain = runtime::SafetensorsFile::open(weights).header();
  const std::string data = read_file(weights).substr(static_cast<std::size_t>(plain.data_begin));
  plain.metadata["slimpack_training"] = "../x";
  write_file(weights, runtime::safetensors_header(plain) + data);
  refused(weights + ": the training must be a file of the same folder, found '../x'");
  plain.metadata = {{"format", "pt"}};
  write_file(weights, runtime::safetensors_header(plain) + data);
  refused(weights + ": holds weights alone, no training to resume");
}

TEST_CASE("training state: read back it is the same, to the last bit") {
  for (const double loss : {0.1, 1e-308, -3.5, std::numeric_limits<double>::max()}) {
    runtime::TrainingState state = test::state_after(9);
    state.loss = loss;
    state.settings["a \"word\"\n"] = "";
    CHECK(runtime::training_state_from_json(runtime::training_state_json(state), "x") == state);
  }
  std::string text = runtime::training_state_json(test::state_after(9));
  const auto refused = [&](const std::string& from, const std::string& to, const char* message) {
    std::string wrong = text;
    wrong.replace(wrong.find(from), from.size(), to);
    CHECK_THROWS_WITH_AS((void)runtime::training_state_from_json(wrong, "x"), message,
                         InvalidInput);
  };
  refused("\"step\": 9", "\"step\": -9",
          "x: step: must be an integer in 0 .. 9223372036854775807, found -9");
  refused("\"18446744073709551608\"", "\"18446744073709551616\"",
          "x: seed: must be a decimal integer of 64 bits in quotes, found '18446744073709551616'");
  refused("\"18446744073709551608\"", "\"1x\"",
          "x: seed: must be a decimal integer of 64 bits in quotes, found '1x'");
  refused("\"8192\"", "8192", "x: settings.context: must be a string, found 8192");
}

TEST_CASE("training state: a setting that differs is named") {
  const runtime::TrainingState saved = test::state_after(1);
  runtime::require_same_settings(saved, saved.settings, "run");
  const auto refused = [&](std::map<std::string, std::string> now, const char* message) {
    CHECK_THROWS_WITH_AS(runtime::require_same_settings(saved, now, "run"), message, InvalidInput);
  };
  refused({{"context", "4096"}, {"learning rate", "0.001"}},
          "run: context must be as it was saved, '8192', to resume, found '4096'");
  refused({{"context", "8192"}},
          "run: learning rate must be as it was saved, '0.001', to resume, found ''");
  refused({{"clip", "1"}, {"context", "8192"}, {"learning rate", "0.001"}},
          "run: clip must be as it was saved, '', to resume, found '1'");
}

}  // namespace checkpoint_test
