// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Removes one folder of this process when a signal ends it. For `temporary_folder`.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/unique_fd.hpp"

namespace whole_folder {

[[nodiscard]] inline belay::unique_fd open_folder(const std::string& path) {
  return belay::unique_fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/// Whether `path` is the name of the folder that is open.
[[nodiscard]] inline bool is_name_of(const char* path, int folder) noexcept {
  struct stat named = {}, opened = {};
  return ::lstat(path, &named) == 0 && ::fstat(folder, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

/// Calls `visit(name)` for every entry, as long as it says true: whether it did of all, and all could be listed. Calls
/// only what a signal handler may.
template <class Visit>
bool each_entry(int folder, Visit visit) {
  alignas(dirent64) char entries[4096];
  ::lseek(folder, 0, SEEK_SET);
  ssize_t got = 0;
  while ((got = ::getdents64(folder, entries, sizeof entries)) > 0) {
    for (ssize_t at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
      if (!visit(entry->d_name)) return false;
    }
  }
  return got == 0;
}

/// Removes a folder of files. Calls only what a signal handler may.
inline void remove_folder(const char* path, int folder) noexcept {
  if (!is_name_of(path, folder)) return;
  for (bool removed = true; removed;) {  // entries may be skipped while others go
    removed = false;
    each_entry(folder, [&](const char* name) {
      removed = ::unlinkat(folder, name, 0) == 0 || removed;
      return true;
    });
  }
  ::rmdir(path);
}

/// One folder of the process at a time. A signal handler is given a number and can be given nothing else, so what it
/// finds is static.
class folder_guard {
 public:
  /// Defers signals from here on; false where another folder is guarded.
  [[nodiscard]] static bool begin() noexcept {
    stage idle = stage::idle;
    if (!guarded_folder_.now.compare_exchange_strong(idle, stage::deferred)) return false;
    guarded_folder_.owner = ::getpid();
    struct sigaction ours = {};
    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    for (const int number : ending) ::sigaddset(&ours.sa_mask, number);
    for (std::size_t i = 0; i < ending.size(); ++i) {
      ::sigaction(ending[i], nullptr, &guarded_folder_.before[i]);
      if (!is_ignored(ending[i])) ::sigaction(ending[i], &ours, nullptr);
    }
    struct sigaction ignored = {};
    ignored.sa_handler = SIG_IGN;
    ::sigaction(SIGXFSZ, &ignored, &guarded_folder_.before_limit);
    // A rank that ends with its parent gets a signal that it can handle.
    ::prctl(PR_GET_PDEATHSIG, &guarded_folder_.before_parents_death);
    if (guarded_folder_.before_parents_death == SIGKILL) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    return true;
  }

  /// From here on signals remove the folder.
  static void arm(const std::string& path, int folder) noexcept {
    guard_state& all = guarded_folder_;
    all.folder = folder;
    path.copy(all.path, sizeof all.path - 1);
    all.path[belay::lesser_of(path.size(), sizeof all.path - 1)] = '\0';
    all.now = stage::armed;
    raise_put_off();
  }

  /// Defers signals; false where one is removing the folder already.
  [[nodiscard]] static bool defer() noexcept {
    stage armed = stage::armed;
    return guarded_folder_.now.compare_exchange_strong(armed, stage::deferred);
  }

  /// Restores the earlier handlers, and raises a signal that was deferred.
  static void end() noexcept {
    for (std::size_t i = 0; i < ending.size(); ++i) ::sigaction(ending[i], &guarded_folder_.before[i], nullptr);
    ::sigaction(SIGXFSZ, &guarded_folder_.before_limit, nullptr);
    if (guarded_folder_.before_parents_death == SIGKILL) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    guarded_folder_.now = stage::idle;
    raise_put_off();
  }

 private:
  // The signals that end a process which could still clean up.
  static constexpr std::array ending{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  enum class stage { idle, deferred, armed, removing };
  struct guard_state {
    std::atomic<stage> now;
    std::atomic<int> put_off;
    pid_t owner;  // a forked child has a copy of all this, and removes nothing
    int folder;
    char path[PATH_MAX];
    std::array<struct sigaction, ending.size()> before;
    struct sigaction before_limit;
    int before_parents_death;
  };
  static_assert(std::atomic<stage>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

  static void on_signal(int number) {
    guard_state& all = guarded_folder_;
    const int error = errno;
    const bool is_owner = ::getpid() == all.owner;
    while (is_owner && all.now == stage::deferred) {
      all.put_off = number;
      if (all.now == stage::deferred || all.put_off.exchange(0) == 0) {
        errno = error;
        return;
      }
    }
    stage armed = stage::armed;
    if (is_owner && all.now.compare_exchange_strong(armed, stage::removing)) {
      remove_folder(all.path, all.folder);
    } else if (is_owner && armed == stage::removing) {
      return;  // the thread that removes it ends the process
    }
    const auto which = static_cast<std::size_t>(std::find(ending.begin(), ending.end(), number) - ending.begin());
    ::sigaction(number, &all.before[which], nullptr);
    ::raise(number);  // delivered when this handler returns
    errno = error;
  }

  // What is ignored stays ignored.
  [[nodiscard]] static bool is_ignored(int number) noexcept {
    struct sigaction found = {};
    return ::sigaction(number, nullptr, &found) == 0 && (found.sa_flags & SA_SIGINFO) == 0 &&
           found.sa_handler == SIG_IGN;
  }
  static void raise_put_off() noexcept {
    if (const int number = guarded_folder_.put_off.exchange(0); number != 0) ::raise(number);
  }

  static inline constinit guard_state guarded_folder_{{stage::idle}, {0}, 0, -1, {}, {}, {}, 0};
};

}  // namespace whole_folder
