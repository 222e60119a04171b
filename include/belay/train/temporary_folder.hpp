// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder that gets its name when all of it is written. Its owner holds a lock (flock) on it, which ends with the
// process in any case. A folder without a lock is removed by the next process that writes to the same path. Signals
// that end the process remove it first.
//
//   belay::temporary_folder folder("my_model", {"config.json", "model.safetensors"});
//   ... write files into folder.path() ...
//   folder.put_in_place();                           // my_model is there, or what was there before still is
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

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
  unique_fd folder_;
  pid_t process_ = ::getpid();
  bool guarded_ = false;  // signals remove it
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/temporary_folder.ipp"  // IWYU pragma: export
#endif
