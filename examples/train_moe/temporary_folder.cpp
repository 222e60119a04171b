// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/temporary_folder.hpp"

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
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/train/safetensors/file.hpp"

namespace train_moe {

namespace {

using belay::unique_fd;

constexpr std::string_view mark = ".tmp-belay-";

[[noreturn]] void fail(const std::string& path, const char* what, int number) {
  throw belay::file_error(path, 0, what + (": " + belay::safetensors::reason(number)));
}

unique_fd open_folder(const std::string& path) {
  return unique_fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Whether `path` is the name of the folder that is open.
bool is_name_of(const char* path, int folder) noexcept {
  struct stat named = {};
  struct stat opened = {};
  return ::lstat(path, &named) == 0 && ::fstat(folder, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

// Calls `visit(name)` for every entry, as long as it says true. Calls only what a signal handler may.
template <class Visit>
bool each_entry(int folder, Visit visit) noexcept {
  alignas(dirent64) char entries[4096];
  ::lseek(folder, 0, SEEK_SET);
  for (ssize_t got = 0; (got = ::getdents64(folder, entries, sizeof entries)) > 0;) {
    for (ssize_t at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
      if (!visit(entry->d_name)) return false;
    }
  }
  return true;
}

// Removes a folder of files. Calls only what a signal handler may.
void remove_folder(const char* path, int folder) noexcept {
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

// --- signals

// The signals that end a process which could still clean up.
constexpr std::array ending{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

enum class stage { idle, deferred, armed, removing };

// The state of the signal handler.
constinit std::atomic<stage> now{stage::idle};
constinit std::atomic<int> put_off{0};
constinit pid_t owner = 0;  // a forked child has a copy of all this, and removes nothing
constinit int guarded_folder = -1;
constinit char guarded_path[PATH_MAX] = {};
constinit std::array<struct sigaction, ending.size()> before = {};
constinit struct sigaction before_limit = {};
constinit int before_parents_death = 0;
static_assert(std::atomic<stage>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  const int error = errno;
  const bool is_owner = ::getpid() == owner;
  while (is_owner && now == stage::deferred) {
    put_off = number;
    if (now == stage::deferred || put_off.exchange(0) == 0) {
      errno = error;
      return;
    }
  }
  stage armed = stage::armed;
  if (is_owner && now.compare_exchange_strong(armed, stage::removing)) {
    remove_folder(guarded_path, guarded_folder);
  } else if (is_owner && armed == stage::removing) {
    return;  // the thread that removes it ends the process
  }
  const auto which = static_cast<std::size_t>(std::find(ending.begin(), ending.end(), number) - ending.begin());
  ::sigaction(number, &before[which], nullptr);
  ::raise(number);  // delivered when this handler returns
  errno = error;
}

// What is ignored stays ignored.
bool is_ignored(int number) noexcept {
  struct sigaction found = {};
  return ::sigaction(number, nullptr, &found) == 0 && (found.sa_flags & SA_SIGINFO) == 0 && found.sa_handler == SIG_IGN;
}

void raise_put_off() noexcept {
  if (const int number = put_off.exchange(0); number != 0) ::raise(number);
}

// Defers signals from here on; false where another folder is guarded.
bool begin_guard() noexcept {
  stage idle = stage::idle;
  if (!now.compare_exchange_strong(idle, stage::deferred)) return false;
  owner = ::getpid();
  struct sigaction ours = {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  for (const int number : ending) ::sigaddset(&ours.sa_mask, number);
  for (std::size_t i = 0; i < ending.size(); ++i) {
    ::sigaction(ending[i], nullptr, &before[i]);
    if (!is_ignored(ending[i])) ::sigaction(ending[i], &ours, nullptr);
  }
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignored, &before_limit);
  // A rank that ends with its parent gets a signal that it can handle.
  ::prctl(PR_GET_PDEATHSIG, &before_parents_death);
  if (before_parents_death == SIGKILL) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  return true;
}

// From here on signals remove the folder.
void arm_guard(const std::string& path, int folder) noexcept {
  guarded_folder = folder;
  path.copy(guarded_path, sizeof guarded_path - 1);
  guarded_path[std::min(path.size(), sizeof guarded_path - 1)] = '\0';
  now = stage::armed;
  raise_put_off();
}

// Defers signals; false where one is removing the folder already.
bool defer_guard() noexcept {
  stage armed = stage::armed;
  return now.compare_exchange_strong(armed, stage::deferred);
}

// Restores the earlier handlers, and raises a signal that was deferred.
void end_guard() noexcept {
  for (std::size_t i = 0; i < ending.size(); ++i) ::sigaction(ending[i], &before[i], nullptr);
  ::sigaction(SIGXFSZ, &before_limit, nullptr);
  if (before_parents_death == SIGKILL) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  now = stage::idle;
  raise_put_off();
}

// --- leftovers of other processes

bool is_ours(std::string_view name) {
  return name == "config.json" || name == "model.safetensors" || name.starts_with("model.safetensors.tmp-");
}

enum class leftover { none, temporary, set_aside };

// Six letters or digits, as mkdtemp makes them; what was set aside has more.
leftover leftover_of(std::string_view rest) {
  constexpr std::size_t letters = 6;
  const std::string_view random = rest.substr(0, letters);
  const bool made = random.size() == letters && std::all_of(random.begin(), random.end(), [](unsigned char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
                    });
  rest.remove_prefix(random.size());
  if (made && rest.empty()) return leftover::temporary;
  return made && rest == "-old" ? leftover::set_aside : leftover::none;
}

// On a file system without locks it is not known whether the owner still runs: nothing is removed.
void sweep_folder(const std::string& path, leftover kind, const std::string& target) {
  const unique_fd folder = open_folder(path);
  struct stat facts = {};
  if (!folder || ::fstat(folder.get(), &facts) != 0 || facts.st_uid != ::geteuid()) return;
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return;
  struct stat present = {};
  const bool replaced = ::lstat(target.c_str(), &present) == 0 && S_ISDIR(present.st_mode);
  if (kind == leftover::set_aside && !replaced) return;  // it is the only copy
  if (each_entry(folder.get(), [](const char* name) { return is_ours(name); }))
    remove_folder(path.c_str(), folder.get());
}

void sweep(const std::string& target) {
  std::error_code error;
  const std::string beside = belay::safetensors::folder_of(target);
  const std::string stem = std::filesystem::path(target).filename().string() + std::string(mark);
  std::filesystem::directory_iterator entries(beside, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(stem)) continue;
    const leftover kind = leftover_of(std::string_view(name).substr(stem.size()));
    if (kind != leftover::none) sweep_folder(beside + "/" + name, kind, target);
  }
}

}  // namespace

temporary_folder::temporary_folder(std::string target) : target_(std::move(target)) {
  sweep(target_);
  guarded_ = begin_guard();
  try {
    make();
  } catch (...) {
    if (guarded_) end_guard();
    throw;
  }
  if (guarded_) arm_guard(path_, folder_.get());
}

temporary_folder::~temporary_folder() {
  if (process_ != ::getpid()) return;  // a forked child's copy
  if (guarded_ && !path_.empty() && !defer_guard()) {
    static_cast<void>(folder_.release());  // a signal handler is removing it and ends the process
    return;
  }
  if (!path_.empty()) remove_folder(path_.c_str(), folder_.get());
  folder_.reset();
  if (guarded_) end_guard();
}

void temporary_folder::make() {
  // Until the lock is taken, another process that sweeps may remove the folder as a leftover.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::string name = target_ + std::string(mark) + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) fail(target_, "no folder can be made beside it", errno);
    folder_ = open_folder(name);
    if (!folder_) continue;
    const bool taken = ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (taken || !is_name_of(name.c_str(), folder_.get())) continue;
    if (::fchmod(folder_.get(), 0755) != 0) {
      const int number = errno;
      remove_folder(name.c_str(), folder_.get());
      fail(name, "cannot set its permissions", number);
    }
    path_ = std::move(name);
    return;
  }
  throw belay::file_error(target_, 0, "no folder beside it can be kept");
}

void temporary_folder::put_in_place() {
  if (guarded_ && !defer_guard()) throw belay::file_error(target_, 0, "is not replaced: a signal ends this process");
  try {
    exchange();
  } catch (...) {
    if (guarded_) arm_guard(path_, folder_.get());
    throw;
  }
  folder_.reset();
  if (std::exchange(guarded_, false)) end_guard();
}

void temporary_folder::exchange() {
  if (::rename(path_.c_str(), target_.c_str()) == 0) {
    path_.clear();
  } else if (errno != ENOTEMPTY && errno != EEXIST) {
    fail(target_, "cannot be put in its place", errno);
  } else if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail(target_, "cannot be replaced", errno);
    const std::string aside = path_ + "-old";
    if (::rename(target_.c_str(), aside.c_str()) != 0) fail(target_, "cannot be set aside", errno);
    if (::rename(path_.c_str(), target_.c_str()) != 0) {
      const int number = errno;
      ::rename(aside.c_str(), target_.c_str());
      fail(target_, "cannot be put in its place", number);
    }
    path_ = aside;
  }
  belay::safetensors::sync_folder(belay::safetensors::folder_of(target_));
  if (path_.empty()) return;
  const unique_fd old = open_folder(path_);  // the export stands; what it replaced is only in the way
  if (old) remove_folder(path_.c_str(), old.get());
  path_.clear();
}

}  // namespace train_moe
