// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The text of flight files, and the line to standard error.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <system_error>
#include <vector>

#include "belay/comm/flight_diagnosis.hpp"
#include "belay/comm/flight_file.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/environment.hpp"
#include "belay/core/json_text.hpp"
#include "belay/core/missing_folder.hpp"
#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

/// Writes the members of a flight file.
class flight_writer {
 public:
  flight_writer(const flight_snapshot& world, const std::string& said, function_ref<void(std::string_view)> put)
      : world_(&world), said_(&said), put_(put) {}

  void write() {
    text_ += "{\"belay_flight\": 1";
    number("job", world_->job);
    number("epoch", world_->epoch);
    number("ranks", world_->size());
    text("transport", world_->transport);
    if (world_->told_by >= 0) number("told_by", world_->told_by);
    const abort_cause cause = world_->cause.value_or(abort_cause{});
    text_ += ",\n\"cause\": {";
    text("kind", world_->cause ? belay::name(cause.fault) : "none", "");
    list("culprits", cause.culprits);
    text("message", cause.message);
    text("there", cause.there);
    number("signal", cause.signal);
    number("exit_code", cause.exit_code);
    text_ += "},\n\"verdict\": ";
    append_json(text_, *said_);
    groups();
    text_ += ",\n\"by_rank\": [";
    for (int rank = 0; rank < world_->size(); ++rank) {
      text_ += rank == 0 ? "\n{" : ",\n{";
      number("rank", rank, "");
      number("pid", world_->rank(rank).pid);
      text("state", belay::name(world_->rank(rank).state));
      text_ += ", \"lanes\": {\n";
      history("caller", world_->rank(rank).called);
      text_ += ",\n";
      history("stream", world_->rank(rank).started);
      text_ += "}}";
    }
    text_ += "]}\n";
    put_(text_);
  }

 private:
  [[gnu::cold, gnu::noinline]] void key(const char* name, const char* before) {
    text_.append(before).append("\"").append(name).append("\": ");
  }
  template <class Number>
  void number(const char* name, Number value, const char* before = ", ") {
    key(name, before);
    put_number(std::to_string(value));
  }
  [[gnu::cold, gnu::noinline]] void put_number(const std::string& digits) { text_ += digits; }
  [[gnu::cold, gnu::noinline]] void text(const char* name, std::string_view value, const char* before = ", ") {
    key(name, before);
    append_json(text_, value);
  }
  void list(const char* name, const std::vector<int>& values) {
    key(name, ", ");
    for (std::size_t i = 0; i < values.size(); ++i) text_ += (i == 0 ? "[" : ", ") + std::to_string(values[i]);
    text_ += values.empty() ? "[]" : "]";
  }

  void groups() {
    text_ += ",\n\"groups\": [";
    const char* before = "";
    for (const known_group& group : world_->groups) {
      text_ += std::exchange(before, ", ");
      number("group", group.number, "{");
      list("members", group.members);
      text_ += "}";
    }
    text_ += "]";
  }

  // All that is kept; what a running rank overwrites meanwhile counts as dropped.
  [[gnu::cold, gnu::noinline]] void history(const char* lane_name, const flight_history& from) {
    const std::uint64_t end = from.count();
    std::uint64_t kept = 0;
    key(lane_name, "");
    text_ += "{\"entries\": [";
    for (std::uint64_t position = from.first(); position < end; ++position) {
      const flight_record entry = from[position];
      if (entry.what == operation::none) continue;
      number("n", position, kept++ == 0 ? "\n{" : ",\n{");
      text("op", belay::name(entry.what));
      number("group", entry.group);
      number("number", entry.number);
      number("bytes", entry.bytes);
      text("site", entry.site);
      text_ += std::string(", \"finished\": ") + (entry.reported ? "null" : entry.finished ? "true" : "false");
      const bool waits = entry.waiting_us > 0 && world_->until_us > entry.waiting_us;
      number("waited_us", waits ? world_->until_us - entry.waiting_us : entry.waited_us);
      text_ += "}";
      if (text_.size() >= 1 << 16) {
        put_(text_);
        text_.clear();
      }
    }
    text_ += "]";
    number("dropped", end - kept);
    text_ += "}";
  }

  const flight_snapshot* world_;
  const std::string* said_;
  function_ref<void(std::string_view)> put_;
  std::string text_;  // not yet put
};

[[gnu::cold]] BELAY_DECL void put_flight_json(const flight_snapshot& world, const std::string& said,
                                              function_ref<void(std::string_view)> put) {
  flight_writer(world, said, put).write();
}

[[gnu::cold]] BELAY_DECL std::string flight_output_text(const std::string& path, const char* what, int error) {
  const std::string folder = error == ENOENT || error == ENOTDIR ? missing_folder(path) : "";
  return std::string(what) + ": " + std::generic_category().message(error) + folder;
}

[[gnu::cold]] BELAY_DECL std::string flight_path(const std::string& folder, std::uint64_t job, std::uint64_t epoch) {
  const std::string again = epoch == 0 ? "" : "-" + std::to_string(epoch);
  return folder + (folder.ends_with('/') ? "" : "/") + "belay-flight-" + std::to_string(job) + again + ".json";
}

[[gnu::cold]] BELAY_DECL std::optional<std::string> flight_folder() {
  const char* const text = environment_variable("BELAY_FLIGHT_DIR");
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

[[gnu::cold]] BELAY_DECL void report_flight(const flight_snapshot& world, const std::string& folder) {
  const std::string said = verdict(world);
  std::string line = "belay: " + said;
  try {
    line += " [" + write_flight_file(world, folder, said) + "]";
  } catch (const std::exception& problem) {
    line += " [no flight file: " + std::string(problem.what()) + "]";
  }
  line = printable(line) + '\n';  // one line, whatever a message holds
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace belay::inline BELAY_ABI
