// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks that somebody else launched find the first of them: it leaves a note under a name that follows from what
// the launcher told all of them, in a directory that only this user can enter. The note is gone when all have joined;
// one that a killed process left is not believed, and swept by the next start.
#pragma once

#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/comm/launch.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/process_identity.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A note of where the doorway of a job is. Removed by its destructor, in the process that left it.
class bootstrap_file {
 public:
  struct content {
    std::string door;
    token secret = {};
  };

  /// Left by the first rank. Throws file_error.
  [[nodiscard]] static bootstrap_file leave(const launch& job, const bootstrap_socket& door, where at) {
    bootstrap_file out;
    out.owner_ = ::getpid();
    const std::string name = name_of(job);
    const std::uint64_t started = start_time_of(out.owner_, at);
    std::string text =
        "belay 1 " + std::to_string(out.owner_) + " " + std::to_string(started) + " " + door.path() + " ";
    for (const auto byte : door.secret()) append_hex(text, static_cast<unsigned char>(byte), 2);
    text += '\n';
    const std::string fresh = std::string(unfinished) + std::to_string(out.owner_) + "-" + std::to_string(started);
    do {
      out.folder_ = private_directory::make(folder_path(), at);
      sweep(*out.folder_);
      static_cast<void>(out.folder_->open(name, at));  // anything but a note is left alone, and told
    } while (!out.folder_->put(name, fresh, text, at));
    out.name_ = name;
    return out;
  }

  /// Found by the others; waits until it is there. Throws comm_error (timeout); file_error at once where there is
  /// something else in the place of the note or of its directory.
  [[nodiscard]] static content find(const launch& job, std::chrono::steady_clock::time_point until, where at) {
    const std::string name = name_of(job);
    while (true) {
      if (const auto folder = private_directory::find(folder_path(), at)) {
        if (auto found = read(*folder, name, at)) return std::move(*found);
      }
      if (std::chrono::steady_clock::now() >= until) {
        comm_error::details what;
        what.fault = comm_fault::timeout;
        what.culprits = {0};
        what.operation = "from_env";
        what.here = at;
        what.message = "rank 0 of " + job.text() + " left no note at " + folder_path() + "/" + name +
                       ": was it started, on this host?";
        throw comm_error(std::move(what));
      }
      const timespec millisecond{0, 1'000'000};  // nothing tells of a file that another process will make
      ::nanosleep(&millisecond, nullptr);
    }
  }

  /// The directory of all notes of this user.
  [[nodiscard]] static std::string folder_path() {
    return bootstrap_socket::base_directory() + "/belay-" + std::to_string(::geteuid());
  }

  bootstrap_file(bootstrap_file&& other) noexcept
      : owner_(other.owner_), name_(std::exchange(other.name_, {})), folder_(std::move(other.folder_)) {}
  bootstrap_file& operator=(bootstrap_file&&) = delete;
  ~bootstrap_file() { remove(); }

  /// The directory goes with its last note.
  void remove() noexcept {
    if (!name_.empty() && ::getpid() == owner_) {
      folder_->remove(name_);
      folder_->remove_if_empty();
    }
    name_.clear();
  }

 private:
  bootstrap_file() noexcept = default;

  // What all ranks of a job are told alike, and no other job is; else the launcher's process that started them.
  [[nodiscard]] static std::string name_of(const launch& job) {
    std::string told = std::string(job.launcher) + "/" + std::to_string(job.size);
    bool any = false;
    for (const char* variable :
         {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_MCA_ess_base_jobid",
          "PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
      const char* const value = std::getenv(variable);
      if (value == nullptr || *value == '\0') continue;
      told += std::string("/") + variable + "=" + value;
      any = true;
    }
    if (!any) {
      const auto parent = read_process_status(::getppid());
      told += "/" + std::to_string(::getppid()) + "/" + std::to_string(parent ? parent->start_time : 0);
    }
    std::string name(prefix);
    append_hex(name, fnv1a().add_text(told).value(), 16);
    return name;
  }

  // A note that was left by a process that still runs. Throws where it is no note.
  [[nodiscard]] static std::optional<content> read(const private_directory& folder, const std::string& name, where at) {
    const unique_fd file = folder.open(name, at);
    if (!file) return std::nullopt;
    const auto refuse = [&](const char* why) { throw file_error(folder.path_of(name), 0, why, at); };
    char text[512];
    const ssize_t length = ::read(file.get(), text, sizeof text);
    if (length <= 0 || text[length - 1] != '\n') refuse("is no note of a job: cut off");
    std::string_view rest(text, static_cast<std::size_t>(length) - 1);
    const auto word = [&] {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string_view out = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      return out;
    };
    if (word() != "belay" || word() != "1") refuse("is no note of a job, or of another version");
    const std::string_view pid = word(), start = word();
    int number = 0;
    std::uint64_t ticks = 0;
    std::from_chars(pid.data(), pid.data() + pid.size(), number);
    std::from_chars(start.data(), start.data() + start.size(), ticks);
    if (number <= 0 || !still_runs(number, ticks)) return std::nullopt;
    content out;
    const std::size_t end = std::min(rest.rfind(' '), rest.size());  // a path may have spaces
    out.door = std::string(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (rest.size() != 2 * out.secret.size()) refuse("is no note of a job: its token has another length");
    for (std::size_t i = 0; i < out.secret.size(); ++i) {
      unsigned value = 0;
      const auto done = std::from_chars(rest.data() + 2 * i, rest.data() + 2 * i + 2, value, 16);
      if (done.ptr != rest.data() + 2 * i + 2) refuse("is no note of a job: its token is none");
      out.secret[i] = static_cast<token::value_type>(value);
    }
    return out;
  }

  // What processes left that are gone, and nothing else.
  static void sweep(const private_directory& folder) {
    for (const std::string& name : folder.names(prefix)) {
      try {
        if (!read(folder, name, {})) folder.remove(name);
      } catch (const file_error&) {  // no note
      }
    }
    for (const std::string& name : folder.names(unfinished)) {
      int number = 0;
      std::uint64_t ticks = 0;
      const char* const end = name.data() + name.size();
      const auto first = std::from_chars(name.data() + std::string_view(unfinished).size(), end, number);
      if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '-') continue;
      if (std::from_chars(first.ptr + 1, end, ticks).ptr == end && !still_runs(number, ticks)) folder.remove(name);
    }
  }

  static constexpr char prefix[] = "job-";
  static constexpr char unfinished[] = "unfinished-";

  pid_t owner_ = 0;
  std::string name_;
  std::optional<private_directory> folder_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
