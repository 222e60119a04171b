// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Directories and files whose owner, kind and mode are checked after they are open.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Why a directory is not taken; empty where it is.
[[nodiscard]] BELAY_DECL std::string wrong_base(const char* path) {
  // A socket's path has 107 characters at most; the names below the base take up to 71 of them.
  constexpr std::size_t longest_base = 36;
  struct stat status = {};
  if (*path != '/') return "is no path from /";
  if (std::strlen(path) > longest_base)
    return "has " + std::to_string(std::strlen(path)) + " characters, at most " + std::to_string(longest_base) +
           " leave room for the names below";
  if (::stat(path, &status) != 0) return "cannot be looked at: " + error_text(errno);
  if (!S_ISDIR(status.st_mode)) return "is no directory";
  if (status.st_uid != ::geteuid())
    return "belongs to user " + std::to_string(status.st_uid) + ", expected " + std::to_string(::geteuid());
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "can be written by other users";
  if (::access(path, W_OK | X_OK) != 0) return "cannot be written: " + error_text(errno);
  return {};
}

BELAY_DECL std::string base_directory() {
  const char* const runtime = environment_variable("XDG_RUNTIME_DIR");
  return runtime != nullptr && wrong_base(runtime).empty() ? runtime : "/tmp";
}
BELAY_DECL std::string base_set_aside() {
  const char* const runtime = environment_variable("XDG_RUNTIME_DIR");
  if (runtime == nullptr || *runtime == '\0') return {};
  const std::string wrong = wrong_base(runtime);
  return wrong.empty() ? wrong : "; XDG_RUNTIME_DIR was set aside: " + std::string(runtime) + " " + wrong;
}
BELAY_DECL file_error with_base_set_aside(const file_error& problem) {
  return {problem.path(), problem.offset(), problem.message() + base_set_aside(), problem.at(), problem.rank()};
}

BELAY_DECL std::string user_prefix() { return "belay-" + std::to_string(::geteuid()); }

[[nodiscard]] BELAY_DECL std::uint64_t own_pid_namespace() noexcept {
  struct stat status = {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

BELAY_DECL file_owner file_owner::this_process(where at) {
  return {static_cast<std::uint64_t>(::getpid()), start_time_of(::getpid(), at), own_pid_namespace()};
}

BELAY_DECL std::optional<file_owner> file_owner::read(std::string_view& name) noexcept {
  std::uint64_t numbers[3] = {};
  for (std::uint64_t& number : numbers) {
    if (&number != numbers) {
      if (name.empty() || name.front() != '-') return std::nullopt;
      name.remove_prefix(1);
    }
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (wrong != std::errc{}) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  }
  if (numbers[0] == 0 || numbers[0] > 0x7fffffff) return std::nullopt;
  return file_owner{numbers[0], numbers[1], numbers[2]};
}

BELAY_DECL std::string file_owner::text() const {
  return std::to_string(pid) + "-" + std::to_string(start_time) + "-" + std::to_string(pid_namespace);
}

BELAY_DECL bool file_owner::runs() const noexcept {
  return pid_namespace == own_pid_namespace() && still_runs(static_cast<pid_t>(pid), start_time);
}
BELAY_DECL bool file_owner::gone() const noexcept {
  // A namespace that the system would not tell is 0, and may be any.
  return pid_namespace != 0 && pid_namespace == own_pid_namespace() && !still_runs(static_cast<pid_t>(pid), start_time);
}

// Throws file_error where a file is not of `kind` (S_IFREG, S_IFDIR), of this user, and of exactly this mode.
BELAY_DECL void expect_private(const std::string& path, const struct stat& status, mode_t kind, mode_t mode, where at) {
  const auto octal = [](mode_t bits) {
    std::string digits = "0";
    for (int shift = 6; shift >= 0; shift -= 3) digits += static_cast<char>('0' + (bits >> shift & 7));
    return digits;
  };
  const mode_t found = status.st_mode & S_IFMT;
  const mode_t bits = status.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
  std::string wrong;
  if (found != kind) {
    const char* const what = found == S_IFIFO    ? "a fifo"
                             : found == S_IFDIR  ? "a directory"
                             : found == S_IFREG  ? "a file"
                             : found == S_IFSOCK ? "a socket"
                             : found == S_IFLNK  ? "a symbolic link"
                                                 : "a device";
    wrong = std::string("is ") + what + ", expected " + (kind == S_IFDIR ? "a directory" : "a regular file");
  } else if (status.st_uid != ::geteuid()) {
    wrong = "belongs to user " + std::to_string(status.st_uid) + ", expected " + std::to_string(::geteuid());
  } else if (bits != mode) {
    wrong = "has mode " + octal(bits) + ", expected " + octal(mode);
  }
  if (!wrong.empty()) throw file_error(path, 0, wrong, at);
}

// Opens `name` in `folder` without following a link and without waiting, then checks what it is. No descriptor where
// there is no such file.
BELAY_DECL unique_fd open_private(int folder, const std::string& name, const std::string& path, mode_t kind, where at) {
  struct stat status = {};
  const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (kind == S_IFDIR ? O_DIRECTORY : 0);
  unique_fd file(::openat(folder, name.c_str(), flags));
  const int why = errno;
  if (!file && why == ENOENT) return file;
  const bool known =
      (file ? ::fstat(file.get(), &status) : ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW)) == 0;
  if (known) expect_private(path, status, kind, kind == S_IFDIR ? S_IRWXU : S_IRUSR | S_IWUSR, at);
  if (!file) throw file_error(path, 0, "open: " + error_text(why), at);
  return file;
}

BELAY_DECL std::vector<std::string> names_in(int folder, const std::string& beginning) {
  std::vector<std::string> out;
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = copy < 0 ? nullptr : ::fdopendir(copy);
  if (list == nullptr) {
    if (copy >= 0) ::close(copy);
    return out;
  }
  while (const dirent* const entry = ::readdir(list)) {
    const std::string name = entry->d_name;
    if (name.compare(0, beginning.size(), beginning) == 0) out.push_back(name);
  }
  ::closedir(list);
  return out;
}

BELAY_DECL private_directory private_directory::make(const std::string& path, where at) {
  // Another process may remove it between the two calls, because it is empty; not for ever.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
      throw file_error(path, 0, "mkdir: " + error_text(errno), at);
    if (auto found = find(path, at)) return std::move(*found);
  }
  throw file_error(path, 0, "is removed again and again", at);
}

BELAY_DECL std::optional<private_directory> private_directory::create(const std::string& path, where at) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0) {
    if (errno == EEXIST) return std::nullopt;
    throw file_error(path, 0, "mkdir: " + error_text(errno), at);
  }
  try {
    return find(path, at);
  } catch (const file_error&) {
    ::rmdir(path.c_str());
    throw;
  }
}

BELAY_DECL std::optional<private_directory> private_directory::find(const std::string& path, where at) {
  unique_fd file = open_private(AT_FDCWD, path, path, S_IFDIR, at);
  if (!file) return std::nullopt;
  return private_directory(path, std::move(file));
}

BELAY_DECL unique_fd private_directory::open(const std::string& name, where at) const {
  return open_private(file_.get(), name, path_of(name), S_IFREG, at);
}

BELAY_DECL bool private_directory::put(const std::string& name, const std::string& fresh, const std::string& text,
                                       where at) const {
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

BELAY_DECL void private_directory::remove(const std::string& name) const noexcept {
  ::unlinkat(file_.get(), name.c_str(), 0);
}
BELAY_DECL bool private_directory::remove_if_empty() const noexcept { return ::rmdir(path_.c_str()) == 0; }

}  // namespace host
}  // namespace belay::inline BELAY_ABI
