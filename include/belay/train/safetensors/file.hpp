// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An open file that is read and written by offset. Interrupted and short calls are continued. What cannot be continued
// is a file_error with path, byte and reason. The system calls are a policy's, so that a test can let the n-th one
// fail.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// The system's text for an errno value.
[[nodiscard]] inline std::string reason(int number) { return std::generic_category().message(number); }

/// Owns one descriptor. Const members may be called from several threads at once.
template <files_policy Files>
class basic_file {
 public:
  basic_file() = default;

  /// Opens an existing `path` as open(2) does; `flags` gets O_CLOEXEC. Throws file_error.
  basic_file(std::string path, int flags, where at);
  /// Opens, where an error leaves it closed, with errno.
  [[nodiscard]] static basic_file attempt(std::string path, int flags);

  /// Creates `path` for writing (mode 0600). The result is not open where that name exists already.
  [[nodiscard]] static basic_file create_new(std::string path, where at);

  basic_file(basic_file&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  basic_file& operator=(basic_file&& other) noexcept {
    if (this != &other) {
      close();
      path_ = std::move(other.path_);
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  ~basic_file() { close(); }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Size in bytes. A file_error for a folder, a pipe, or anything else that is no regular file.
  [[nodiscard]] std::uint64_t size(where at) const;

  /// Fills `to` from byte `offset`. A file that ends earlier is a file_error.
  void read(std::uint64_t offset, std::span<std::byte> to, where at) const;

  /// Writes all of `from` at byte `offset`.
  void write(std::uint64_t offset, std::span<const std::byte> from, where at) const;

  /// Advice to the system, which may ignore it: these bytes are read soon, or their way to the medium may begin.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    static_cast<void>(
        ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
  }
  void start_sync(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    static_cast<void>(
        ::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE));
  }

  /// Lets writes go around the page cache from here on: returns the alignment of offset, length and address that they
  /// need then, or 0 where the file system has none of these. `go_buffered`: through it again.
  [[nodiscard]] std::size_t go_direct() const noexcept;
  void go_buffered(where at) const;

  /// Makes it `bytes` long, and takes that room on the medium where the file system can, so that a full one is found
  /// before anything is written.
  void reserve(std::uint64_t bytes, where at) const;

  /// Sets the permission bits.
  void permit(unsigned mode, where at) const;

  /// Returns when the content is on the medium (fsync).
  void sync(where at) const;

  void close() noexcept {
    if (descriptor_ >= 0) static_cast<void>(Files::close(descriptor_));
    descriptor_ = -1;
  }

 private:
  [[nodiscard]] static std::size_t one_call(std::size_t bytes) noexcept {
    constexpr std::size_t most = std::size_t{1} << 30;  // Linux moves less than 2 GiB a call
    return bytes < most ? bytes : most;
  }

  [[nodiscard]] off_t position(std::uint64_t offset, where at) const {
    if (offset > std::uint64_t{1} << 62) throw file_error(path_, offset, "is beyond what a file can hold", at);
    return static_cast<off_t>(offset);
  }

  std::string path_;
  int descriptor_ = -1;
};

template <files_policy Files>
basic_file<Files>::basic_file(std::string path, int flags, where at) : basic_file(attempt(std::move(path), flags)) {
  if (descriptor_ < 0) throw file_error(path_, 0, "cannot be opened: " + reason(errno), at);
}

template <files_policy Files>
auto basic_file<Files>::attempt(std::string path, int flags) -> basic_file {
  basic_file result;
  result.path_ = std::move(path);
  do {
    result.descriptor_ = Files::open(result.path_.c_str(), flags | O_CLOEXEC, mode_t{});
  } while (result.descriptor_ < 0 && errno == EINTR);
  return result;
}

template <files_policy Files>
auto basic_file<Files>::create_new(std::string path, where at) -> basic_file {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  basic_file result;
  result.path_ = std::move(path);
  do {
    result.descriptor_ = Files::open(result.path_.c_str(), flags, S_IRUSR | S_IWUSR);
  } while (result.descriptor_ < 0 && errno == EINTR);
  if (result.descriptor_ < 0 && errno != EEXIST) {
    const int number = errno;
    const std::string folder = number == ENOENT || number == ENOTDIR ? missing_folder(result.path_) : "";
    throw file_error(result.path_, 0, "cannot be created: " + reason(number) + folder, at);
  }
  return result;
}

template <files_policy Files>
std::uint64_t basic_file<Files>::size(where at) const {
  struct stat facts{};
  if (Files::ask_open(descriptor_, facts) != 0) throw file_error(path_, 0, "cannot be examined: " + reason(errno), at);
  if (!S_ISREG(facts.st_mode)) throw file_error(path_, 0, "is not a regular file", at);
  return static_cast<std::uint64_t>(facts.st_size);
}

template <files_policy Files>
void basic_file<Files>::read(std::uint64_t offset, std::span<std::byte> to, where at) const {
  for (std::size_t done = 0; done < to.size();) {
    const std::size_t rest = to.size() - done;
    const ssize_t got = Files::read_at(descriptor_, to.data() + done, one_call(rest), position(offset, at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw file_error(path_, offset, "cannot read " + std::to_string(rest) + " bytes: " + reason(errno), at);
    }
    if (got == 0) throw file_error(path_, offset, "ends " + std::to_string(rest) + " bytes too early", at);
    done += static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

template <files_policy Files>
void basic_file<Files>::write(std::uint64_t offset, std::span<const std::byte> from, where at) const {
  for (std::size_t done = 0; done < from.size();) {
    const std::size_t rest = from.size() - done;
    const ssize_t put = Files::write_at(descriptor_, from.data() + done, one_call(rest), position(offset, at));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const std::string why = put < 0 ? reason(errno) : std::string("nothing was taken");
      throw file_error(path_, offset, "cannot write " + std::to_string(rest) + " bytes: " + why, at);
    }
    done += static_cast<std::size_t>(put);
    offset += static_cast<std::uint64_t>(put);
  }
}

template <files_policy Files>
std::size_t basic_file<Files>::go_direct() const noexcept {
  const std::size_t alignment = direct_alignment_of(descriptor_).value_or(4096);
  return alignment != 0 && Files::make_direct(descriptor_) == 0 ? alignment : 0;
}

template <files_policy Files>
void basic_file<Files>::go_buffered(where at) const {
  if (Files::make_buffered(descriptor_) != 0)
    throw file_error(path_, 0, "cannot be written through the page cache: " + reason(errno), at);
}

template <files_policy Files>
void basic_file<Files>::reserve(std::uint64_t bytes, where at) const {
  const off_t size = position(bytes, at);
  int number = 0;
  do {
    number = Files::reserve(descriptor_, size) == 0 ? 0 : errno;
    if (number == EOPNOTSUPP || number == ENOSYS) number = Files::resize(descriptor_, size) == 0 ? 0 : errno;
  } while (number == EINTR);
  if (number != 0)
    throw file_error(path_, 0, "cannot be given " + std::to_string(bytes) + " bytes: " + reason(number), at);
}

template <files_policy Files>
void basic_file<Files>::permit(unsigned mode, where at) const {
  if (Files::permit(descriptor_, static_cast<mode_t>(mode)) != 0) {
    throw file_error(path_, 0, "cannot set its permissions: " + reason(errno), at);
  }
}

template <files_policy Files>
void basic_file<Files>::sync(where at) const {
  int result = 0;
  do {
    result = Files::sync(descriptor_);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw file_error(path_, 0, "cannot be brought to the medium: " + reason(errno), at);
}

using file = basic_file<posix_files>;

/// The facts of `path` by `ask(path, facts)`, a call of a policy; nothing where there is nothing of that name. Throws
/// file_error where the system cannot say.
template <class Ask>
[[nodiscard]] std::optional<struct stat> facts_by(const Ask& ask, const std::string& path, where at) {
  struct stat facts = {};
  int asked = 0;
  do {
    asked = ask(path.c_str(), facts);
  } while (asked != 0 && errno == EINTR);
  if (asked == 0) return facts;
  if (is_absence(errno)) return std::nullopt;
  throw file_error(path, 0, "cannot be examined: " + reason(errno), at);
}
/// The file at `path`, behind links.
template <files_policy Files = posix_files>
[[nodiscard]] std::optional<struct stat> facts_of(const std::string& path, where at) {
  return facts_by([](const char* asked, struct stat& facts) { return Files::ask(asked, facts); }, path, at);
}
/// The file at `path`, or the link that is there.
template <folders_policy Files = posix_files>
[[nodiscard]] std::optional<struct stat> link_facts_of(const std::string& path, where at) {
  return facts_by([](const char* asked, struct stat& facts) { return Files::ask_link(asked, facts); }, path, at);
}

/// The folder that holds `path`.
[[nodiscard]] inline std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Returns when the names in `folder` are on the medium. Before that a rename may be lost in a crash.
template <files_policy Files = posix_files>
void sync_folder(const std::string& folder, where at = where::current()) {
  basic_file<Files>(folder, O_RDONLY | O_DIRECTORY, at).sync(at);
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
