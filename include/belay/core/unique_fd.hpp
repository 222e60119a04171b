// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file descriptor with one owner, and what an error says when no descriptor is left.
//
//   const belay::unique_fd file(::open(path, O_RDONLY | O_CLOEXEC));
//   if (!file) throw belay::file_error(path, 0, belay::error_text(errno));
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Owns a file descriptor, or none; closes it. Moved, never copied.
class unique_fd {
 public:
  unique_fd() noexcept = default;
  /// Owns descriptor `number`; negative: none.
  explicit unique_fd(int number) noexcept : number_(number) {}
  unique_fd(unique_fd&& other) noexcept : number_(other.release()) {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~unique_fd() { reset(); }

  /// -1: none.
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }
  void reset(int number = -1) noexcept {
    if (number_ >= 0) ::close(number_);  // Linux frees the number even when close() reports an error
    number_ = number;
  }

 private:
  int number_ = -1;
};

/// "RLIMIT_NOFILE of this process is 1024"
[[nodiscard]] BELAY_DECL std::string descriptor_limit_text();

/// The system's text for an error; where descriptors have run out, also the limit that was met.
[[nodiscard]] BELAY_DECL std::string error_text(int error);

/// Whether `error` tells of this process's or the machine's want, and nothing of what was asked for.
[[nodiscard]] inline bool is_shortage(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/// Whether `error` says that there is nothing of a name. Any other one leaves it open whether there is.
[[nodiscard]] inline bool is_absence(int error) noexcept { return error == ENOENT || error == ENOTDIR; }

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/unique_fd.ipp"  // IWYU pragma: export
#endif
