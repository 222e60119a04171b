// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks that somebody else launched find the first of them: it leaves a note, readable by its user alone, under a
// name that follows from what the launcher told all of them. The note is gone when all have joined; one that a killed
// process left is not believed, and swept by the next start.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "belay/backend/host/descriptor.hpp"
#include "belay/backend/host/doorway.hpp"
#include "belay/backend/host/process.hpp"
#include "belay/comm/launch.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A note of where the doorway of a job is. Removed by its destructor, in the process that left it.
class job_note {
 public:
  struct content {
    std::string door;
    token secret = {};
  };

  /// Left by the first rank. Throws file_error.
  [[nodiscard]] static job_note leave(const launch& job, const doorway& door, where at) {
    sweep();
    job_note out;
    out.owner_ = ::getpid();
    out.path_ = path_of(job);
    const auto self = look_at_process(out.owner_);
    std::string text = "belay 1 " + std::to_string(out.owner_) + " " + std::to_string(self ? self->start_time : 0) + " " +
                       door.path() + " ";
    for (const auto byte : door.secret()) {
      text += "0123456789abcdef"[static_cast<unsigned>(byte) >> 4 & 15];
      text += "0123456789abcdef"[static_cast<unsigned>(byte) & 15];
    }
    text += '\n';
    const std::string fresh = out.path_ + "." + std::to_string(out.owner_);
    const descriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    const auto refuse = [&](const char* call) {
      const int why = errno;
      ::unlink(fresh.c_str());
      throw file_error(fresh, 0, std::string(call) + ": " + std::strerror(why), at);
    };
    if (!file) throw file_error(fresh, 0, std::string("open: ") + std::strerror(errno), at);
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) refuse("write");
    if (::rename(fresh.c_str(), out.path_.c_str()) != 0) refuse("rename");
    return out;
  }

  /// Found by the others; waits until it is there. Throws comm_error (timeout).
  [[nodiscard]] static content find(const launch& job, std::chrono::steady_clock::time_point until, where at) {
    const std::string path = path_of(job);
    while (true) {
      if (auto found = read(path)) return std::move(*found);
      if (std::chrono::steady_clock::now() >= until) {
        comm_error::details what;
        what.fault = comm_fault::timeout;
        what.culprits = {0};
        what.operation = "from_env";
        what.here = at;
        what.message = "rank 0 of " + job.text() + " left no note at " + path + ": was it started, on this host?";
        throw comm_error(std::move(what));
      }
      const timespec millisecond{0, 1'000'000};  // nothing tells of a file that another process will make
      ::nanosleep(&millisecond, nullptr);
    }
  }

  job_note(job_note&& other) noexcept : owner_(other.owner_), path_(std::exchange(other.path_, {})) {}
  job_note& operator=(job_note&&) = delete;
  ~job_note() { remove(); }

  void remove() noexcept {
    if (!path_.empty() && ::getpid() == owner_) ::unlink(path_.c_str());
    path_.clear();
  }

 private:
  job_note() noexcept = default;

  // What all ranks of a job are told alike, and no other job is; else the launcher's process that started them.
  [[nodiscard]] static std::string path_of(const launch& job) {
    std::string told = std::string(job.launcher) + "/" + std::to_string(job.size);
    bool any = false;
    for (const char* variable : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                 "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
      const char* const value = std::getenv(variable);
      if (value == nullptr || *value == '\0') continue;
      told += std::string("/") + variable + "=" + value;
      any = true;
    }
    if (!any) {
      const auto parent = look_at_process(::getppid());
      told += "/" + std::to_string(::getppid()) + "/" + std::to_string(parent ? parent->start_time : 0);
    }
    std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (const char each : told) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3ULL;
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[hash >> shift & 15];
    return doorway::base_directory() + "/" + prefix() + digits;
  }
  [[nodiscard]] static std::string prefix() { return "belay-" + std::to_string(::geteuid()) + "-job-"; }

  // A whole note of this user, left by a process that still runs.
  [[nodiscard]] static std::optional<content> read(const std::string& path) {
    const descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
        (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      return std::nullopt;
    }
    char text[512];
    const ssize_t length = ::read(file.get(), text, sizeof text);
    if (length <= 0 || text[length - 1] != '\n') return std::nullopt;
    std::string_view rest(text, static_cast<std::size_t>(length) - 1);
    const auto word = [&] {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string_view out = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      return out;
    };
    if (word() != "belay" || word() != "1") return std::nullopt;
    const std::string_view pid = word(), start = word();
    int number = 0;
    std::uint64_t ticks = 0;
    std::from_chars(pid.data(), pid.data() + pid.size(), number);
    std::from_chars(start.data(), start.data() + start.size(), ticks);
    if (number <= 0 || !still_runs(number, ticks)) return std::nullopt;
    content out;
    out.door = std::string(word());
    if (rest.size() != 2 * out.secret.size()) return std::nullopt;
    for (std::size_t i = 0; i < out.secret.size(); ++i) {
      unsigned value = 0;
      const auto done = std::from_chars(rest.data() + 2 * i, rest.data() + 2 * i + 2, value, 16);
      if (done.ptr != rest.data() + 2 * i + 2) return std::nullopt;
      out.secret[i] = static_cast<token::value_type>(value);
    }
    return out;
  }

  static void sweep() {
    const std::string base = doorway::base_directory(), begin = prefix();
    DIR* const list = ::opendir(base.c_str());
    if (list == nullptr) return;
    while (const dirent* const entry = ::readdir(list)) {
      if (std::string_view(entry->d_name).substr(0, begin.size()) != begin) continue;
      const std::string path = base + "/" + entry->d_name;
      struct stat status = {};
      if (::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && !read(path)) {
        ::unlink(path.c_str());
      }
    }
    ::closedir(list);
  }

  pid_t owner_ = 0;
  std::string path_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
