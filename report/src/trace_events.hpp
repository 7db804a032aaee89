// SPDX-License-Identifier: Apache-2.0
// Chrome trace events, one by one: the same file from simulated and from measured times.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

/// A member of an event's `args`.
struct TraceArgument {
  std::string_view name;
  std::variant<std::int64_t, std::string> value;
};

/// The threads of a device in a trace: its stage's streams. A stage has one send and one receive
/// stream for each peer, hence for each direction of data.
enum class TraceStream : std::uint8_t { compute, gap, reduce, send, receive };

/// The process of a data-parallel rank; from 1, because viewers take 0 for the idle process.
[[nodiscard]] constexpr std::int64_t trace_process(std::int32_t dp) noexcept {
  return std::int64_t{dp} + 1;
}

/// The thread of a stream, from 1 as well. `peer` is the other stage of a send or receive, 0
/// elsewhere; `stages` is how many there are. Streams of one stage are neighbours, compute first.
[[nodiscard]] constexpr std::int64_t trace_thread(std::int32_t stages, std::int32_t pp,
                                                  TraceStream stream,
                                                  std::int32_t peer = 0) noexcept {
  const std::int64_t base = 1 + std::int64_t{pp} * (3 + 2 * std::int64_t{stages});
  switch (stream) {
    case TraceStream::send:
      return base + 3 + peer;
    case TraceStream::receive:
      return base + 3 + stages + peer;
    default:
      return base + static_cast<std::int64_t>(stream);
  }
}

/// Writes `{"traceEvents": [...]}` as it is told. Times are microseconds with three decimals, so a
/// nanosecond is never lost. A process is a data-parallel rank, given as such.
class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out) : text_(out) { text_ << "{\"traceEvents\": ["; }

  /// Names the process of a data-parallel rank; processes are listed by rank.
  void process(std::int32_t dp, std::string_view name) {
    metadata("process_name", dp, 0, "name", name);
    metadata("process_sort_index", dp, 0, "sort_index", {}, dp);
  }
  /// Names a thread; threads are sorted by number.
  void thread(std::int32_t dp, std::int64_t thread, std::string_view name) {
    metadata("thread_name", dp, thread, "name", name);
    metadata("thread_sort_index", dp, thread, "sort_index", {}, thread);
  }

  /// What ran on a thread from `begin` to `end`. Throws InvalidInput if it ends before it begins.
  void span(std::int32_t dp, std::int64_t thread, std::string_view name, std::string_view category,
            Nanos begin, Nanos end, std::span<const TraceArgument> arguments = {}) {
    require(begin <= end, "TraceWriter::span: begin must be <= end", begin.value);
    next();
    text_ << "{\"name\": \"" << json_escaped(name) << "\", \"cat\": \"" << json_escaped(category)
          << "\", \"ph\": \"X\", \"pid\": " << trace_process(dp) << ", \"tid\": " << thread
          << ", \"ts\": " << micros_text(begin) << ", \"dur\": " << micros_text(end - begin);
    if (!arguments.empty()) write_arguments(arguments);
    text_ << '}';
  }

  /// Values of a counter track from `at` on, one series an argument.
  void counter(std::int32_t dp, std::string_view name, Nanos time,
               std::span<const TraceArgument> values) {
    next();
    text_ << "{\"name\": \"" << json_escaped(name)
          << "\", \"ph\": \"C\", \"pid\": " << trace_process(dp)
          << ", \"ts\": " << micros_text(time);
    write_arguments(values);
    text_ << '}';
  }

  /// Ends the document; `about` becomes `otherData`.
  void finish(std::span<const TraceArgument> about = {}) {
    text_ << "\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": ";
    write_object(about);
    text_ << "}\n";
    text_.flush();
  }

 private:
  void next() {
    text_ << (first_ ? "\n" : ",\n");
    first_ = false;
  }
  void metadata(std::string_view kind, std::int32_t dp, std::int64_t thread, std::string_view key,
                std::string_view name, std::int64_t place = 0) {
    next();
    text_ << "{\"name\": \"" << kind << "\", \"ph\": \"M\", \"pid\": " << trace_process(dp)
          << ", \"tid\": " << thread << ", \"args\": {\"" << key << "\": ";
    if (key == "name") {
      text_ << '"' << json_escaped(name) << '"';
    } else {
      text_ << place;
    }
    text_ << "}}";
  }
  void write_arguments(std::span<const TraceArgument> arguments) {
    text_ << ", \"args\": ";
    write_object(arguments);
  }
  void write_object(std::span<const TraceArgument> members) {
    text_ << '{';
    bool first = true;
    for (const TraceArgument& member : members) {
      if (!first) text_ << ", ";
      first = false;
      text_ << '"' << json_escaped(member.name) << "\": ";
      if (const auto* number = std::get_if<std::int64_t>(&member.value)) {
        text_ << *number;
      } else {
        text_ << '"' << json_escaped(std::get<std::string>(member.value)) << '"';
      }
    }
    text_ << '}';
  }

  TextWriter text_;
  bool first_ = true;
};

}  // namespace slimpack::report::detail
