// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The system calls that a tier's file is made of, as a policy: a test lets the n-th one fail, or move less than asked.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <optional>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"
#include "belay/device/tier_file/transfer_ring.hpp"

namespace belay::inline BELAY_ABI {

/// Results and errno are those of POSIX, but for these: `allocate` returns the error number itself, as
/// posix_fallocate(3) does; `direct_alignment` is what the file system tells of O_DIRECT, 0 where it has none for this
/// file, and nothing where it does not tell; `in_memory` says whether the file takes memory instead of a disk.
template <class C>
concept tier_file_calls =
    transfer_ring<typename C::ring> &&
    requires(C calls, const char* path, int descriptor, void* to, const void* from, std::size_t bytes, off_t offset) {
      { calls.open_unnamed(path) } -> std::same_as<int>;
      { calls.open_new(path) } -> std::same_as<int>;
      { calls.unlink(path) } -> std::same_as<int>;
      { calls.allocate(descriptor, offset) } -> std::same_as<int>;
      { calls.in_memory(descriptor) } -> std::same_as<bool>;
      { calls.direct_alignment(descriptor) } -> std::same_as<std::optional<std::size_t>>;
      { calls.make_direct(descriptor) } -> std::same_as<int>;
      { calls.read_at(descriptor, to, bytes, offset) } -> std::same_as<ssize_t>;
      { calls.write_at(descriptor, from, bytes, offset) } -> std::same_as<ssize_t>;
      { calls.close(descriptor) } -> std::same_as<int>;
    };

/// The machine's.
template <transfer_ring Ring>
struct basic_tier_file_calls {
  using ring = Ring;

  [[nodiscard]] static int open_unnamed(const char* directory) noexcept {
    return ::open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }
  [[nodiscard]] static int open_new(const char* path) noexcept {
    return ::open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }
  [[nodiscard]] static int unlink(const char* path) noexcept { return ::unlink(path); }
  [[nodiscard]] static int allocate(int descriptor, off_t bytes) noexcept {
    return ::posix_fallocate(descriptor, 0, bytes);
  }
  [[nodiscard]] static bool in_memory(int descriptor) noexcept {
    struct statfs facts{};
    if (::fstatfs(descriptor, &facts) != 0) return false;
    return facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
  }
  [[nodiscard]] static std::optional<std::size_t> direct_alignment(int descriptor) noexcept {
    return direct_alignment_of(descriptor);
  }
  /// After `allocate`, which may have to write single bytes.
  [[nodiscard]] static int make_direct(int descriptor) noexcept { return belay::make_direct(descriptor); }
  [[nodiscard]] static ssize_t read_at(int descriptor, void* to, std::size_t bytes, off_t offset) noexcept {
    return ::pread(descriptor, to, bytes, offset);
  }
  [[nodiscard]] static ssize_t write_at(int descriptor, const void* from, std::size_t bytes, off_t offset) noexcept {
    return ::pwrite(descriptor, from, bytes, offset);
  }
  [[nodiscard]] static int close(int descriptor) noexcept { return ::close(descriptor); }
};

/// Another type where liburing is there, so that units compiled with and without it link.
using system_tier_file_calls = basic_tier_file_calls<system_transfer_ring>;

static_assert(tier_file_calls<system_tier_file_calls>);

}  // namespace belay::inline BELAY_ABI
