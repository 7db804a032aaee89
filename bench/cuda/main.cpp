// SPDX-License-Identifier: Apache-2.0
// Times the CUDA backend's kernels, each as a share of what this card has been measured to do:
//   bench_cuda [--json FILE] [--only TEXT] [--budget-ms N] [--seconds N]
//   bench_cuda --list
// Prints a Markdown table row by row; FILE gets the same and what other programs need to time the
// same shapes. --only: cases with TEXT in "operation: name". --seconds: no case begins later.
// --list prints the cases as JSON and needs no device. Ends with 1 if there is no device or a case
// failed, with 2 on bad usage.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../backends/cuda/src/check.hpp"
#include "cases.hpp"
#include "fill.hpp"
#include "json.hpp"
#include "measure.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::bench {
namespace {

struct Options {
  std::string json, only;
  double budget_ms = 300;
  double seconds = 1e9;
  bool list = false;
};

constexpr const char* kUsage =
    "usage: bench_cuda [--json FILE] [--only TEXT] [--budget-ms N] [--seconds N] | --list\n";

std::optional<Options> parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--list") {
      options.list = true;
      continue;
    }
    if (i + 1 == count) return std::nullopt;
    const char* const value = words[++i];
    const auto number = [value](double& to) {
      const char* const end = value + std::strlen(value);
      return std::from_chars(value, end, to).ptr == end && to > 0 && std::isfinite(to);
    };
    if (word == "--json") {
      options.json = value;
    } else if (word == "--only") {
      options.only = value;
    } else if (word == "--budget-ms") {
      if (!number(options.budget_ms)) return std::nullopt;
    } else if (word == "--seconds") {
      if (!number(options.seconds)) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

/// A gigabyte to another place by cudaMemcpyAsync: what memory can do, read and written.
Case copy_case() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30U;
  Case copy = row_case(
      kCopyOperation, kBytes / 4096, 1024, 2.0 * static_cast<double>(kBytes),
      [](const Machine& machine, std::int64_t set) {
        const auto seed = static_cast<std::uint64_t>(set);
        const auto from = shared(random_buffer<float>(kBytes / 4, 1, seed, machine.stream));
        const auto to = shared(random_buffer<float>(kBytes / 4, 1, seed, machine.stream));
        return [from, to, stream = machine.stream] {
          SLIMPACK_CUDA_CHECK(cudaMemcpyAsync(to->span().data, from->span().data,
                                              static_cast<std::size_t>(kBytes),
                                              cudaMemcpyDeviceToDevice, stream.get()));
        };
      });
  copy.name = "1 GiB within the device";
  copy.path = "cudaMemcpyAsync";
  return copy;
}

std::vector<Case> all_cases(int major, int minor) {
  std::vector<Case> cases{copy_case()};
  for (auto& more : {gemm_cases(), attention_cases(major, minor), row_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

JsonObject description(const Case& of) {
  JsonObject object, shape;
  object.add("operation", of.operation).add("name", of.name).add("path", of.path);
  for (const auto& [name, number] : of.shape) shape.add(name, number);
  object.raw("shape", shape.text());
  if (!of.documents.empty()) {
    std::string groups;
    for (const Documents& group : of.documents) {
      groups += (groups.empty() ? "[" : ", [") + std::to_string(group.prefix) + ", " +
                std::to_string(group.rows) + ", " + std::to_string(group.count) + "]";
    }
    object.raw("documents", "[" + groups + "]");
  }
  object.add("flop", of.flop).add("bytes", of.bytes).add("set_bytes", of.set_bytes);
  return object;
}

struct Rates {
  double copy = 0, peak = 0;  ///< bytes and operations a second; 0 where not measured
};

/// A row of the table; of `documents` it has the name only, the JSON all.
void print_row(const Case& of, const Times& times, const Rates& rates) {
  const double seconds = times.median * 1e-3;
  char rate[64], share[32] = "";
  if (of.flop > 0) {
    std::snprintf(rate, sizeof(rate), "%.1f TFLOP/s", of.flop / seconds * 1e-12);
    if (rates.peak > 0) {
      std::snprintf(share, sizeof(share), "%.1f %%", 100 * of.flop / seconds / rates.peak);
    }
  } else {
    std::snprintf(rate, sizeof(rate), "%.2f TB/s", of.bytes / seconds * 1e-12);
    if (rates.copy > 0) {
      std::snprintf(share, sizeof(share), "%.1f %%", 100 * of.bytes / seconds / rates.copy);
    }
  }
  std::printf("| %s | %s | %s | %.4f | %.4f to %.4f | %s | %s |\n", of.operation.c_str(),
              of.name.c_str(), of.path.c_str(), times.median, times.low, times.high, rate, share);
  std::fflush(stdout);
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  char text[32];
  gmtime_r(&time, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int list() {
  const std::vector<Case> cases = all_cases(9, 0);
  std::printf("{\"cases\": [");
  for (const Case& one : cases) {
    std::printf("%s\n%s", &one == cases.data() ? "" : ",", description(one).text().c_str());
  }
  std::printf("\n]}\n");
  return 0;
}

/// Written beside its name and renamed: never half a file.
bool write_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::FILE* const file = std::fopen(part.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written && std::rename(part.c_str(), path.c_str()) == 0;
}

int run(const Options& options) {
  const auto began = std::chrono::steady_clock::now();
  const cuda::Stream stream;
  const cuda::DeviceBuffer<std::byte> workspace(cuda::kGemmWorkspaceBytes);
  cuda::Gemm gemm(workspace.span());
  Machine machine{cuda::device_properties(), 0, stream.view(), &gemm};
  int device = 0, cache = 0, runtime = 0, driver = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&device));
  SLIMPACK_CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
  SLIMPACK_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  SLIMPACK_CUDA_CHECK(cudaDriverGetVersion(&driver));
  machine.cache_bytes = cache;

  const std::string date = now();
  std::string rows;
  int failed = 0;
  Rates rates;
  const auto save = [&] {
    if (options.json.empty()) return;
    JsonObject versions, about, file;
    versions.add("cuda_runtime", runtime).add("cuda_driver", driver);
    versions.add("cublaslt", cuda::gemm_library_version());
    about.add("name", machine.properties.name)
        .add("compute_capability", std::to_string(machine.properties.major) + "." +
                                       std::to_string(machine.properties.minor))
        .add("multiprocessors", machine.properties.multiprocessors)
        .add("memory_bytes", machine.properties.memory)
        .add("cache_bytes", machine.cache_bytes);
    file.add("program", "bench_cuda").add("date", date);
    file.raw("device", about.text()).raw("versions", versions.text());
    file.add("copy_bytes_per_second", rates.copy).add("peak_flop_per_second", rates.peak);
    file.raw("rows", "[" + rows + "\n]");
    require(write_file(options.json, file.text() + "\n"), "--json: the file cannot be written",
            options.json);
  };
  save();  // a file that cannot be written is better known now
  const auto one = [&](const Case& of) -> std::optional<Times> {
    JsonObject row = description(of);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    std::optional<std::string> why = of.why_not;
    if (!why && spent.count() > options.seconds) why = "not begun: the time was over";
    std::optional<Times> times;
    if (!why) {
      try {
        times = measure(of, machine, options.budget_ms);
        row.add("milliseconds", times->median).add("low", times->low).add("high", times->high);
        row.add("samples", times->samples).add("batch", times->batch).add("sets", times->sets);
        print_row(of, *times, rates);
      } catch (const std::runtime_error& error) {
        ++failed;
        why = error.what();
      }
    }
    if (why) {
      row.add("why_not", *why);
      std::fprintf(stderr, "%s: %s by %s: %s\n", of.operation.c_str(), of.name.c_str(),
                   of.path.c_str(), why->c_str());
    }
    rows += (rows.empty() ? "\n" : ",\n") + row.text();
    save();  // who is cut off leaves what has been measured
    return times;
  };

  std::printf("| operation | shape | path | ms | 10 %% to 90 %% | rate | of measured peak |\n");
  std::printf("|---|---|---|---:|---:|---:|---:|\n");
  std::vector<Case> cases = all_cases(machine.properties.major, machine.properties.minor);
  const auto is_reference = [](const Case& of) {
    return of.operation == kCopyOperation ||
           (of.operation == kPeakOperation && of.name == kPeakName);
  };
  std::vector<Case> references;
  for (const Case& reference : cases) {
    if (!is_reference(reference)) continue;
    references.push_back(reference);
    if (const auto times = one(reference)) {
      const double seconds = times->median * 1e-3;
      if (reference.flop > 0) {
        rates.peak = reference.flop / seconds;
      } else {
        rates.copy = reference.bytes / seconds;
      }
    }
  }
  save();
  for (const Case& of : cases) {
    const std::string text = of.operation + ": " + of.name;
    if (!is_reference(of) && text.find(options.only) != std::string::npos) (void)one(of);
  }
  for (Case& again : references) {  // a card that has become warm may be slower
    again.name += ", again at the end";
    (void)one(again);
  }

  if (failed > 0) std::fprintf(stderr, "bench_cuda: %d cases failed\n", failed);
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace slimpack::bench

int main(int count, char** words) {
  const auto options = slimpack::bench::parse(count, words);
  if (!options) {
    std::fputs(slimpack::bench::kUsage, stderr);
    return 2;
  }
  try {
    if (options->list) return slimpack::bench::list();
    if (const auto why = slimpack::cuda::why_no_device()) {
      std::fprintf(stderr, "bench_cuda: %s\n", why->c_str());
      return 1;
    }
    return slimpack::bench::run(*options);
  } catch (const slimpack::InvalidInput& error) {
    std::fprintf(stderr, "bench_cuda: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda: %s\n", error.what());
    return 1;
  }
}
