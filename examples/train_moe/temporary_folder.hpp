// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder that gets its name when all of it is written. Its owner holds a lock (flock) on it, which ends with the
// process in any case. A folder without a lock is removed by the next process that writes to the same path. Signals
// that end the process remove it first.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "belay/core/unique_fd.hpp"

namespace train_moe {

/// TARGET.tmp-belay-XXXXXX. Signals remove one at a time in a process; others are left for the next sweep.
class temporary_folder {
 public:
  /// Sweeps, then makes an empty folder (mode 0755). Until it is destroyed, SIGINT, SIGTERM, SIGHUP and SIGQUIT remove
  /// it before they do what they did before, and SIGXFSZ is ignored, so that a write beyond the limit is an error; a
  /// process that would be killed with its parent gets a SIGTERM instead. Throws belay::file_error.
  explicit temporary_folder(std::string target);
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  /// Removes it, with the files in it, unless it was put in its place; not in a forked child.
  ~temporary_folder();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Gives it the target's name. A folder that is there is replaced in one instant where the file system can exchange
  /// names; elsewhere it is first set aside under a name that stays complete. Signals wait until it is done. Throws
  /// belay::file_error.
  void put_in_place();

 private:
  void make();
  void exchange();

  std::string target_;
  std::string path_;
  belay::unique_fd folder_;
  pid_t process_ = ::getpid();
  bool guarded_ = false;  // signals remove it
};

}  // namespace train_moe
