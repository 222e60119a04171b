// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A directory with a name that can be guessed, which no other user can enter, and files in it. Whoever has put
// something else in its place, or in a file's, is named at once and waited for by nobody.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What is wrong with a file that shall be of `kind` (S_IFREG, S_IFDIR), of this user, and have exactly this mode;
/// empty: nothing.
[[nodiscard]] inline std::string wrong_with(const struct stat& status, mode_t kind, mode_t mode) {
  const auto octal = [](mode_t bits) {
    std::string digits = "0";
    for (int shift = 6; shift >= 0; shift -= 3) digits += static_cast<char>('0' + (bits >> shift & 7));
    return digits;
  };
  const mode_t found = status.st_mode & S_IFMT;
  if (found != kind) {
    const char* const what = found == S_IFIFO    ? "a fifo"
                             : found == S_IFDIR  ? "a directory"
                             : found == S_IFREG  ? "a file"
                             : found == S_IFSOCK ? "a socket"
                             : found == S_IFLNK  ? "a symbolic link"
                                                 : "a device";
    return std::string("is ") + what + ", expected " + (kind == S_IFDIR ? "a directory" : "a regular file");
  }
  if (status.st_uid != ::geteuid()) {
    return "belongs to user " + std::to_string(status.st_uid) + ", expected " + std::to_string(::geteuid());
  }
  const mode_t bits = status.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
  return bits == mode ? std::string() : "has mode " + octal(bits) + ", expected " + octal(mode);
}

/// An open directory of this user, mode 0700.
class private_directory {
 public:
  /// Makes it where there is none. Throws `file_error` where it cannot be made, or is anything else.
  [[nodiscard]] static private_directory make(const std::string& path, where at) {
    // Another process may remove it between the two calls, because it is empty; not for ever.
    for (int attempt = 0; attempt < 1000; ++attempt) {
      if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
        throw file_error(path, 0, "mkdir: " + error_text(errno), at);
      if (auto found = find(path, at)) return std::move(*found);
    }
    throw file_error(path, 0, "is removed again and again", at);
  }

  /// Nothing where there is none. Throws `file_error` where it is anything else.
  [[nodiscard]] static std::optional<private_directory> find(const std::string& path, where at) {
    struct stat status = {};
    unique_fd file(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const int why = errno;
    if (!file && why == ENOENT) return std::nullopt;
    const bool known = (file ? ::fstat(file.get(), &status) : ::lstat(path.c_str(), &status)) == 0;
    if (known) expect(path, status, S_IFDIR, S_IRWXU, at);
    if (!file) throw file_error(path, 0, "open: " + error_text(why), at);
    return private_directory(path, std::move(file));
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  /// Opens a regular file of this user, mode 0600, to be read; no descriptor where there is none. Does not wait.
  /// Throws `file_error` where it is anything else.
  [[nodiscard]] unique_fd open(const std::string& name, where at) const {
    struct stat status = {};
    unique_fd file(::openat(file_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const int why = errno;
    if (!file && why == ENOENT) return file;
    const bool known =
        (file ? ::fstat(file.get(), &status) : ::fstatat(file_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW)) == 0;
    if (known) expect(path_of(name), status, S_IFREG, S_IRUSR | S_IWUSR, at);
    if (!file) throw file_error(path_of(name), 0, "open: " + error_text(why), at);
    return file;
  }

  /// Puts a file with this text there, mode 0600, whole from its first moment; `fresh` is its name until then. Throws
  /// `file_error`; false where the directory is gone.
  [[nodiscard]] bool put(const std::string& name, const std::string& fresh, const std::string& text, where at) const {
    ::unlinkat(file_.get(), fresh.c_str(), 0);
    const unique_fd file(
        ::openat(file_.get(), fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file && errno == ENOENT) return false;
    const auto refuse = [&](const char* call) {
      const int why = errno;
      ::unlinkat(file_.get(), fresh.c_str(), 0);
      throw file_error(path_of(name), 0, std::string(call) + ": " + error_text(why), at);
    };
    if (!file) refuse("open");
    if (::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) refuse("fchmod");
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) refuse("write");
    if (::renameat(file_.get(), fresh.c_str(), file_.get(), name.c_str()) != 0) refuse("rename");
    return true;
  }

  void remove(const std::string& name) const noexcept { ::unlinkat(file_.get(), name.c_str(), 0); }
  /// The directory itself, if nothing is in it.
  void remove_if_empty() const noexcept { ::rmdir(path_.c_str()); }

  /// The names of what is in it that begin so.
  [[nodiscard]] std::vector<std::string> names(const std::string& beginning) const {
    std::vector<std::string> out;
    const int folder = ::openat(file_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const list = folder < 0 ? nullptr : ::fdopendir(folder);
    if (list == nullptr) {
      if (folder >= 0) ::close(folder);
      return out;
    }
    while (const dirent* const entry = ::readdir(list)) {
      const std::string name = entry->d_name;
      if (name.compare(0, beginning.size(), beginning) == 0) out.push_back(name);
    }
    ::closedir(list);
    return out;
  }

 private:
  private_directory(std::string path, unique_fd file) noexcept : path_(std::move(path)), file_(std::move(file)) {}

  static void expect(const std::string& path, const struct stat& status, mode_t kind, mode_t mode, where at) {
    const std::string wrong = wrong_with(status, kind, mode);
    if (!wrong.empty()) throw file_error(path, 0, wrong, at);
  }

  std::string path_;
  unique_fd file_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
