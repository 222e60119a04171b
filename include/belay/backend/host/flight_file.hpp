// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flight recorder of a whole world as a file: what each rank did last, and why the world stopped. It is written by
// who holds the shared block, once, into the folder that BELAY_FLIGHT_DIR names; belay-fr reads it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

#include "belay/backend/host/flight_picture.hpp"
#include "belay/backend/host/flight_verdict.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/json_text.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/missing_folder.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

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

  void commit() {
    flush();
    if (Files::sync(file_) != 0) fail("cannot be synchronised");
    if (Files::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot get its name");
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
  flight_writer(const health& world, const std::string& said, flight_output<Files>& out)
      : world_(&world), said_(&said), out_(&out) {
    if (world.stopped()) cause_ = world.cause();
    end_us_ = world.stopped() && cause_.at_us > 0 ? cause_.at_us : health::microseconds(health::clock::now());
  }

  void write() {
    const control_shape& shape = world_->shared().shape();
    out_->put("{\"belay_flight\": 1");
    number("job", shape.job);
    number("epoch", shape.epoch);
    number("ranks", shape.ranks);
    text("transport", shape.space == address_space::one ? "threads" : "processes");
    out_->put(",\n\"cause\": {");
    text("kind", world_->stopped() ? belay::name(cause_.fault) : "none", "");
    list("culprits", cause_.culprits);
    text("message", cause_.message);
    text("there", cause_.there);
    number("signal", cause_.signal);
    number("exit_code", cause_.exit_code);
    out_->put("},\n\"verdict\": ");
    append_json(out_->text(), *said_);
    groups();
    out_->put(",\n\"by_rank\": [");
    for (int rank = 0; rank < world_->ranks(); ++rank) {
      out_->put(rank == 0 ? "\n{" : ",\n{");
      number("rank", rank, "");
      number("pid", world_->pid_of(rank));
      text("state", host::name(state_of(*world_, rank)));
      out_->put(", \"lanes\": {\n");
      recorder("caller", world_->recorder(rank, lane::caller));
      out_->put(",\n");
      recorder("stream", world_->recorder(rank, lane::stream));
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
    for (const known_group& group : groups_of(*world_)) {
      out_->put(std::exchange(before, ", "));
      number("group", group.number, "{");
      list("members", group.members);
      out_->put("}");
    }
    out_->put("]");
  }

  // All that is in the ring; what a running rank overwrites meanwhile counts as dropped.
  void recorder(const char* lane_name, const flight_recorder<>& from) {
    const std::uint64_t end = from.count();
    std::uint64_t kept = 0;
    key(lane_name, "");
    out_->put("{\"entries\": [");
    for (std::uint64_t turn = end - std::min<std::uint64_t>(end, from.capacity()); turn < end; ++turn) {
      const flight_record entry = from[turn];
      if (entry.what == operation::none) continue;
      number("n", turn, kept++ == 0 ? "\n{" : ",\n{");
      text("op", belay::name(entry.what));
      number("group", entry.group);
      number("number", entry.number);
      number("bytes", entry.bytes);
      text("site", entry.site);
      out_->put(entry.finished ? ", \"finished\": true" : ", \"finished\": false");
      const bool waits = entry.waiting_us > 0 && end_us_ > entry.waiting_us;
      number("waited_us", waits ? end_us_ - entry.waiting_us : entry.waited_us);
      out_->put("}");
    }
    out_->put("]");
    number("dropped", end - kept);
    out_->put("}");
  }

  const health* world_;
  const std::string* said_;
  flight_output<Files>* out_;
  first_cause cause_;
  std::uint64_t end_us_ = 0;
};

/// "belay-flight-JOB.json"; survivors that went on without others add how often they did.
[[nodiscard]] inline std::string flight_file_name(const control_shape& shape) {
  const std::string again = shape.epoch == 0 ? "" : "-" + std::to_string(shape.epoch);
  return "belay-flight-" + std::to_string(shape.job) + again + ".json";
}

/// Writes the recorders, the first cause and the verdict `said` as belay-flight-JOB.json into `folder`, which is made if
/// only it is missing; returns the path. The file appears when it is whole. May be called while ranks run. Throws
/// file_error.
template <files_policy Files = posix_files>
std::string write_flight_file(const health& world, const std::string& folder, const std::string& said) {
  const std::string path = folder + (folder.ends_with('/') ? "" : "/") + flight_file_name(world.shared().shape());
  static_cast<void>(::mkdir(folder.c_str(), S_IRWXU));  // what went wrong is said when the file cannot be created
  flight_output<Files> out(path);
  flight_writer<Files>(world, said, out).write();
  out.commit();
  return path;
}
template <files_policy Files = posix_files>
std::string write_flight_file(const health& world, const std::string& folder) {
  return write_flight_file<Files>(world, folder, verdict(world));
}

/// BELAY_FLIGHT_DIR: the folder for flight files; nothing when it is not set.
[[nodiscard]] inline std::optional<std::string> flight_folder() {
  const char* const text = std::getenv("BELAY_FLIGHT_DIR");
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

/// For who holds the shared block of a world that has stopped: where BELAY_FLIGHT_DIR is set, writes the flight file
/// and prints the verdict with the file's name, or why there is none, as one line to standard error. Call it once.
inline void report_failure(const health& world) noexcept {
  try {
    const std::optional<std::string> folder = flight_folder();
    if (!folder) return;
    const std::string said = verdict(world);
    std::string line = "belay: " + said;
    try {
      line += " [" + write_flight_file(world, *folder, said) + "]";
    } catch (const std::exception& problem) {
      line += " [no flight file: " + std::string(problem.what()) + "]";
    }
    // One line, whatever a message holds; and nothing that a terminal would obey.
    const auto obeyed = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    std::replace_if(line.begin(), line.end(), obeyed, ' ');
    line += '\n';
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (...) {  // too little memory for words: the ranks' own errors say it
  }
}

/// The same by whoever of all ranks and their holder comes first.
inline void report_failure_once(const health& world) noexcept {
  if (world.shared().header().reported.exchange(1, std::memory_order_relaxed) == 0) report_failure(world);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
