// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the files of a job are and whose they are. A private directory has a name that can be guessed, and no other
// user can enter it. Anything else in the place of the directory or of a file in it is an error at once, which names
// it.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// $XDG_RUNTIME_DIR, or /tmp where that is not a directory of this user alone, or too long.
[[nodiscard]] BELAY_DECL std::string base_directory();
/// Why it is /tmp although XDG_RUNTIME_DIR names something else: "; XDG_RUNTIME_DIR was set aside: ..."; else empty.
[[nodiscard]] BELAY_DECL std::string base_set_aside();
/// `problem` with `base_set_aside()` behind its text.
[[nodiscard]] BELAY_DECL file_error with_base_set_aside(const file_error& problem);
/// "belay-1000": what the names of this user's directories begin with.
[[nodiscard]] BELAY_DECL std::string user_prefix();

/// The process that made a file, as the file's name tells: "PID-START-NAMESPACE". A name exists as soon as the file
/// does, so that each file has a known owner from the start.
struct file_owner {
  std::uint64_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t pid_namespace = 0;  // process numbers mean something only where they were given

  [[nodiscard]] static file_owner this_process(where at);
  /// Reads it from the beginning of `name` and removes that; nothing where it is written otherwise.
  [[nodiscard]] static std::optional<file_owner> read(std::string_view& name) noexcept;
  [[nodiscard]] std::string text() const;
  /// Both are false for a process of another pid namespace, which cannot be seen from here.
  [[nodiscard]] bool runs() const noexcept;
  [[nodiscard]] bool gone() const noexcept;
};

/// The names in the directory `folder` that begin so; none where it cannot be read.
[[nodiscard]] BELAY_DECL std::vector<std::string> names_in(int folder, const std::string& beginning);

/// An open directory of this user, mode 0700.
class private_directory {
 public:
  /// Opens the directory, and makes it where there is none. Throws `file_error` where it cannot be made, or is
  /// anything else.
  [[nodiscard]] static private_directory make(const std::string& path, where at);
  /// Makes the directory; nothing where the name is taken. Throws `file_error`.
  [[nodiscard]] static std::optional<private_directory> create(const std::string& path, where at);
  /// Opens the directory; nothing where there is none. Throws `file_error` where it is anything else.
  [[nodiscard]] static std::optional<private_directory> find(const std::string& path, where at);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::vector<std::string> names(const std::string& beginning) const {
    return names_in(file_.get(), beginning);
  }

  /// Opens a regular file of this user, mode 0600, to be read; no descriptor where there is none. Does not wait.
  /// Throws `file_error` where it is anything else.
  [[nodiscard]] unique_fd open(const std::string& name, where at) const;

  /// Writes a file with this text, mode 0600, under the name `fresh`, and renames it. Throws `file_error`; false where
  /// the directory is gone.
  [[nodiscard]] bool put(const std::string& name, const std::string& fresh, const std::string& text, where at) const;

  void remove(const std::string& name) const noexcept;
  /// Removes the directory itself if it is empty: whether it did.
  bool remove_if_empty() const noexcept;

 private:
  private_directory(std::string path, unique_fd file) noexcept : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  unique_fd file_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/private_directory.ipp"  // IWYU pragma: export
#endif
