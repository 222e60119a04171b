// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder that gets its name when all of it is written. Its owner holds a lock (flock) on it, which ends with the
// process in any case. A folder without a lock is removed by the next process that writes to the same path. Signals
// that end the process remove it first.
//
//   whole_folder::temporary_folder folder("my_model", {"config.json", "model.safetensors"});
//   ... write files into folder.path() ...
//   folder.put_in_place();                           // my_model is there, or what was there before still is
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/train/safetensors/file.hpp"
#include "whole_folder/folder_guard.hpp"

namespace whole_folder {

/// TARGET.tmp-belay-XXXXXX. Signals remove one at a time in a process; others are left for the next sweep.
class temporary_folder {
 public:
  /// Sweeps what killed processes left beside `target`, then makes an empty folder (mode 0755). Only folders of files
  /// whose names are in `files`, or begin with one and ".tmp-", are swept. Until it is destroyed, SIGINT, SIGTERM,
  /// SIGHUP and SIGQUIT remove it before they do what they did before, and SIGXFSZ is ignored, so that a write beyond
  /// the limit is an error; a process that would be killed with its parent gets a SIGTERM instead. Throws file_error.
  temporary_folder(std::string target, std::vector<std::string> files);
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  /// Removes it, with the files in it, unless it was put in its place; not in a forked child.
  ~temporary_folder();

  /// The folder's path, which has its final name after `put_in_place`.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Gives it the target's name. A folder that is there is replaced in one instant where the file system can exchange
  /// names; elsewhere it is first set aside under a name that stays complete. Signals wait until it is done. Throws
  /// file_error.
  void put_in_place();

 private:
  static constexpr std::string_view mark = ".tmp-belay-";
  enum class leftover { none, temporary, set_aside };

  [[noreturn]] static void fail(const std::string& path, const char* what, int number);
  [[nodiscard]] bool is_ours(std::string_view name) const;
  // Six letters or digits, as mkdtemp makes them; what was set aside has more.
  [[nodiscard]] static leftover leftover_of(std::string_view rest);
  void sweep() const;
  // On a file system without locks it is not known whether the owner still runs: nothing is removed.
  void sweep_folder(const std::string& path, leftover kind) const;
  void make();
  void exchange();

  std::string target_;
  std::vector<std::string> files_;
  std::string path_;
  belay::unique_fd folder_;
  pid_t process_ = ::getpid();
  bool guarded_ = false;  // signals remove it
};

inline temporary_folder::temporary_folder(std::string target, std::vector<std::string> files)
    : target_(std::move(target)), files_(std::move(files)) {
  sweep();
  guarded_ = folder_guard::begin();
  try {
    make();
  } catch (...) {
    if (guarded_) folder_guard::end();
    throw;
  }
  if (guarded_) folder_guard::arm(path_, folder_.get());
}

inline temporary_folder::~temporary_folder() {
  if (process_ != ::getpid()) return;
  if (guarded_ && !path_.empty() && !folder_guard::defer()) {
    static_cast<void>(folder_.release());  // a signal handler is removing it and ends the process
    return;
  }
  if (!path_.empty()) remove_folder(path_.c_str(), folder_.get());
  folder_.reset();
  if (guarded_) folder_guard::end();
}

inline void temporary_folder::put_in_place() {
  if (guarded_ && !folder_guard::defer())
    throw belay::file_error(target_, 0, "is not replaced: a signal ends this process");
  try {
    exchange();
  } catch (...) {
    if (guarded_) folder_guard::arm(path_, folder_.get());
    throw;
  }
  folder_.reset();
  if (std::exchange(guarded_, false)) folder_guard::end();
}

inline void temporary_folder::fail(const std::string& path, const char* what, int number) {
  throw belay::file_error(path, 0, what + (": " + belay::safetensors::reason(number)));
}

inline bool temporary_folder::is_ours(std::string_view name) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const std::string& each) { return name == each || name.starts_with(each + ".tmp-"); });
}

inline auto temporary_folder::leftover_of(std::string_view rest) -> leftover {
  constexpr std::size_t letters = 6;
  const std::string_view random = rest.substr(0, letters);
  const bool made = random.size() == letters && std::all_of(random.begin(), random.end(), [](unsigned char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
                    });
  rest.remove_prefix(random.size());
  if (made && rest.empty()) return leftover::temporary;
  return made && rest == "-old" ? leftover::set_aside : leftover::none;
}

inline void temporary_folder::sweep() const {
  const std::string beside = belay::safetensors::folder_of(target_);
  const std::string stem = target_.substr(target_.rfind('/') + 1) + std::string(mark);
  const belay::unique_fd folder = open_folder(beside);
  if (!folder) return;
  std::vector<std::string> found;
  each_entry(folder.get(), [&](const char* name) { return found.emplace_back(name), true; });
  for (const std::string& name : found) {
    if (!name.starts_with(stem)) continue;
    const leftover kind = leftover_of(std::string_view(name).substr(stem.size()));
    if (kind != leftover::none) sweep_folder(beside + "/" + name, kind);
  }
}

inline void temporary_folder::sweep_folder(const std::string& path, leftover kind) const {
  const belay::unique_fd folder = open_folder(path);
  struct stat facts = {};
  if (!folder || ::fstat(folder.get(), &facts) != 0 || facts.st_uid != ::geteuid()) return;
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return;
  struct stat present = {};
  const bool replaced = ::lstat(target_.c_str(), &present) == 0 && S_ISDIR(present.st_mode);
  if (kind == leftover::set_aside && !replaced) return;  // it is the only copy
  if (each_entry(folder.get(), [&](const char* name) { return is_ours(name); }))
    remove_folder(path.c_str(), folder.get());
}

inline void temporary_folder::make() {
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

inline void temporary_folder::exchange() {
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
  const belay::unique_fd old = open_folder(path_);  // the new one stands; what it replaced is only in the way
  if (old) remove_folder(path_.c_str(), old.get());
  path_.clear();
}

}  // namespace whole_folder
