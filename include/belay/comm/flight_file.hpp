// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A flight scene as a file: what each rank did last, and why the world stopped. It is written once, into the folder
// that BELAY_FLIGHT_DIR names; belay-fr reads it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_diagnosis.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/json_text.hpp"
#include "belay/core/missing_folder.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

/// A new file (mode 0600) that has its name only when it is whole. Throws file_error, and removes what it wrote.
template <files_policy Files = posix_files>
class flight_output {
 public:
  explicit flight_output(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".tmp-" + std::to_string(::getpid())) {
    static_cast<void>(Files::remove(temporary_.c_str()));  // of a process of the same number that was killed at it
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    file_ = Files::open(temporary_.c_str(), flags, S_IRUSR | S_IWUSR);
    if (file_ < 0) fail("cannot be created");
  }
  flight_output(const flight_output&) = delete;
  flight_output& operator=(const flight_output&) = delete;
  ~flight_output() {
    if (file_ < 0) return;
    static_cast<void>(Files::close(file_));
    static_cast<void>(Files::remove(temporary_.c_str()));
  }

  void put(std::string_view text) {
    pending_ += text;
    if (pending_.size() >= 1 << 16) flush();
  }
  /// The text that is to be written next, to append to.
  [[nodiscard]] std::string& text() noexcept { return pending_; }

  /// The name comes first: whoever launched a job that fails may end all of it at any moment.
  void commit() {
    flush();
    if (Files::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot get its name");
    if (Files::sync(file_) != 0) {
      const int why = errno;
      static_cast<void>(Files::remove(path_.c_str()));
      errno = why;
      fail("cannot be synchronised");
    }
    static_cast<void>(Files::close(std::exchange(file_, -1)));
  }

 private:
  void flush() {
    std::string_view rest = pending_;
    while (!rest.empty()) {
      const ssize_t written = Files::write_at(file_, rest.data(), rest.size(), static_cast<off_t>(offset_));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("cannot be written");
      offset_ += static_cast<std::uint64_t>(written);
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    pending_.clear();
  }
  [[noreturn]] void fail(const char* what) const {
    const int number = errno;
    const std::string folder = number == ENOENT || number == ENOTDIR ? missing_folder(path_) : "";
    throw file_error(path_, offset_, std::string(what) + ": " + std::generic_category().message(number) + folder);
  }

  std::string path_, temporary_;
  int file_ = -1;
  std::uint64_t offset_ = 0;
  std::string pending_;
};

/// Writes the members of a flight file. See docs/howto/read_flight_files.md.
template <files_policy Files>
class flight_writer {
 public:
  flight_writer(const flight_snapshot& world, const std::string& said, flight_output<Files>& out)
      : world_(&world), said_(&said), out_(&out) {}

  void write() {
    out_->put("{\"belay_flight\": 1");
    number("job", world_->job);
    number("epoch", world_->epoch);
    number("ranks", world_->size());
    text("transport", world_->transport);
    if (world_->told_by >= 0) number("told_by", world_->told_by);
    const abort_cause cause = world_->cause.value_or(abort_cause{});
    out_->put(",\n\"cause\": {");
    text("kind", world_->cause ? belay::name(cause.fault) : "none", "");
    list("culprits", cause.culprits);
    text("message", cause.message);
    text("there", cause.there);
    number("signal", cause.signal);
    number("exit_code", cause.exit_code);
    out_->put("},\n\"verdict\": ");
    append_json(out_->text(), *said_);
    groups();
    out_->put(",\n\"by_rank\": [");
    for (int rank = 0; rank < world_->size(); ++rank) {
      out_->put(rank == 0 ? "\n{" : ",\n{");
      number("rank", rank, "");
      number("pid", world_->rank(rank).pid);
      text("state", belay::name(world_->rank(rank).state));
      out_->put(", \"lanes\": {\n");
      history("caller", world_->rank(rank).called);
      out_->put(",\n");
      history("stream", world_->rank(rank).started);
      out_->put("}}");
    }
    out_->put("]}\n");
  }

 private:
  void key(const char* name, const char* before) { out_->put(std::string(before) + "\"" + name + "\": "); }
  template <class Number>
  void number(const char* name, Number value, const char* before = ", ") {
    key(name, before);
    out_->put(std::to_string(value));
  }
  void text(const char* name, std::string_view value, const char* before = ", ") {
    key(name, before);
    append_json(out_->text(), value);
  }
  void list(const char* name, const std::vector<int>& values) {
    key(name, ", ");
    for (std::size_t i = 0; i < values.size(); ++i) out_->put((i == 0 ? "[" : ", ") + std::to_string(values[i]));
    out_->put(values.empty() ? "[]" : "]");
  }

  void groups() {
    out_->put(",\n\"groups\": [");
    const char* before = "";
    for (const known_group& group : world_->groups) {
      out_->put(std::exchange(before, ", "));
      number("group", group.number, "{");
      list("members", group.members);
      out_->put("}");
    }
    out_->put("]");
  }

  // All that is kept; what a running rank overwrites meanwhile counts as dropped.
  void history(const char* lane_name, const flight_history& from) {
    const std::uint64_t end = from.count();
    std::uint64_t kept = 0;
    key(lane_name, "");
    out_->put("{\"entries\": [");
    for (std::uint64_t turn = from.first(); turn < end; ++turn) {
      const flight_record entry = from[turn];
      if (entry.what == operation::none) continue;
      number("n", turn, kept++ == 0 ? "\n{" : ",\n{");
      text("op", belay::name(entry.what));
      number("group", entry.group);
      number("number", entry.number);
      number("bytes", entry.bytes);
      text("site", entry.site);
      out_->put(std::string(", \"finished\": ") + (entry.reported ? "null" : entry.finished ? "true" : "false"));
      const bool waits = entry.waiting_us > 0 && world_->until_us > entry.waiting_us;
      number("waited_us", waits ? world_->until_us - entry.waiting_us : entry.waited_us);
      out_->put("}");
    }
    out_->put("]");
    number("dropped", end - kept);
    out_->put("}");
  }

  const flight_snapshot* world_;
  const std::string* said_;
  flight_output<Files>* out_;
};

/// "FOLDER/belay-flight-JOB.json"; survivors that went on without others add how often they did.
[[nodiscard]] inline std::string flight_path(const std::string& folder, std::uint64_t job, std::uint64_t epoch) {
  const std::string again = epoch == 0 ? "" : "-" + std::to_string(epoch);
  return folder + (folder.ends_with('/') ? "" : "/") + "belay-flight-" + std::to_string(job) + again + ".json";
}

/// Writes histories, the first cause and the verdict `said` as belay-flight-JOB.json into `folder`, which is made if
/// only it is missing; returns the path. The file appears when it is whole. May be called while ranks run. Throws
/// file_error.
template <files_policy Files = posix_files>
std::string write_flight_file(const flight_snapshot& world, const std::string& folder, const std::string& said) {
  const std::string path = flight_path(folder, world.job, world.epoch);
  static_cast<void>(::mkdir(folder.c_str(), S_IRWXU));  // what went wrong is said when the file cannot be created
  flight_output<Files> out(path);
  flight_writer<Files>(world, said, out).write();
  out.commit();
  return path;
}

/// BELAY_FLIGHT_DIR: the folder for flight files; nothing when it is not set.
[[nodiscard]] inline std::optional<std::string> flight_folder() {
  const char* const text = std::getenv("BELAY_FLIGHT_DIR");
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

/// For who tells of a world that has stopped: writes the flight file into `folder` and prints the verdict with the
/// file's name, or why there is none, as one line to standard error. Call it once.
inline void report_flight(const flight_snapshot& world, const std::string& folder) {
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
