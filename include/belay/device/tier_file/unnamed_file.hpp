// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file without a name: the system frees it with its last descriptor, however the process ends.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <unistd.h>  // getpid

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/missing_folder.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/device/tier_file/system_calls.hpp"

namespace belay::inline BELAY_ABI {

/// The properties of files in a directory.
struct file_medium {
  std::size_t alignment = 4096;  // of offsets, lengths and addresses
  bool direct = false;           // transfers go around the page cache
  bool in_memory = false;        // tmpfs: its bytes are the machine's memory
  std::string why_buffered;      // where it is not direct

  /// For people: "direct, in blocks of 512 bytes", or "buffered: O_DIRECT is refused: ...".
  [[nodiscard]] std::string text() const {
    if (!direct) return "buffered: " + why_buffered;
    return "direct, in blocks of " + std::to_string(alignment) + " bytes";
  }
};

template <tier_file_calls Calls>
class unnamed_file {
 public:
  /// Takes `bytes` on the medium. Throws tier_file_error, and usage_error where they are no multiple of the alignment.
  unnamed_file(std::string directory, std::size_t bytes, where at) : directory_(std::move(directory)) {
    open(at);
    try {
      prepare(bytes, at);
    } catch (...) {
      close();
      throw;
    }
  }
  unnamed_file(unnamed_file&& other) noexcept
      : directory_(std::move(other.directory_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        medium_(std::move(other.medium_)) {}
  unnamed_file& operator=(unnamed_file&&) = delete;
  ~unnamed_file() { close(); }

  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const file_medium& medium() const noexcept { return medium_; }

 private:
  void open(where at) {
    do {
      descriptor_ = Calls::open_unnamed(directory_.c_str());
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ >= 0) return;
    // What file systems and kernels without O_TMPFILE answer.
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) refuse(errno, "", at);
    const std::string stem = directory_ + "/.belay-tier-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const std::string path = stem + std::to_string(attempt);
      do {
        descriptor_ = Calls::open_new(path.c_str());
      } while (descriptor_ < 0 && errno == EINTR);
      if (descriptor_ < 0 && errno == EEXIST) continue;  // of a killed process with the same number
      if (descriptor_ < 0) refuse(errno, "", at);
      if (Calls::unlink(path.c_str()) == 0) return;
      const int code = errno;
      close();
      refuse(code, " (its name " + path + " cannot be removed)", at);
    }
    refuse(EEXIST, " (" + stem + "0 and 999 more)", at);
  }

  void prepare(std::size_t bytes, where at) {
    medium_.in_memory = Calls::in_memory(descriptor_);
    const std::optional<std::size_t> told = Calls::direct_alignment(descriptor_);
    if (medium_.in_memory)
      medium_.why_buffered = "the directory is in memory (tmpfs)";
    else if (told == std::size_t{0})
      medium_.why_buffered = "the file system has no O_DIRECT for this file";
    else if (told)
      medium_.alignment = *told;
    if (bytes % medium_.alignment != 0)
      throw usage_error("a tier file of " + std::to_string(bytes) + " bytes: this is no multiple of " +
                            std::to_string(medium_.alignment) + ", to which " + directory_ + " aligns",
                        at);
    if (bytes != 0) allocate(bytes, at);
    if (!medium_.why_buffered.empty()) return;
    medium_.direct = Calls::make_direct(descriptor_) == 0;
    if (!medium_.direct) medium_.why_buffered = "O_DIRECT is refused: " + error_text(errno);
  }

  void allocate(std::size_t bytes, where at) {
    int code = 0;
    do {
      code = Calls::allocate(descriptor_, static_cast<off_t>(bytes));
    } while (code == EINTR);
    if (code != 0)
      throw tier_file_error(directory_, {tier_file_operation::allocate, fault_of(code), code, 0, bytes, 0, {}}, at);
  }

  [[noreturn]] void refuse(int code, std::string more, where at) const {
    if (code == ENOENT || code == ENOTDIR) more += missing_folder(directory_ + "/");
    throw tier_file_error(directory_, {tier_file_operation::open, fault_of(code), code, 0, 0, 0, std::move(more)}, at);
  }

  void close() noexcept {
    if (descriptor_ >= 0) static_cast<void>(Calls::close(descriptor_));
    descriptor_ = -1;
  }

  std::string directory_;
  int descriptor_ = -1;
  file_medium medium_;
};

}  // namespace belay::inline BELAY_ABI
