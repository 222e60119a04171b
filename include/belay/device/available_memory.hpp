// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How much memory can still be taken, how much this process has, and what ranks have taken of their devices. Linux
// grants more than it has and kills a process later, so a large reservation asks here first.
//
//   if (bytes > belay::available_memory()) throw belay::budget_error("host", bytes, belay::available_memory(), at);
//   const std::size_t before = belay::resident_memory();   // bytes
//   options.measured = [](std::span<const belay::device_usage> ranks) {
//     std::printf("%s", belay::device_usage_text(ranks).c_str());
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// A file of /proc or /sys as text, at most 64 KiB; empty where it cannot be read.
[[nodiscard]] BELAY_DECL std::string kernel_file(const std::string& path);

/// The number after `key` where a line of `text` begins with it.
[[nodiscard]] BELAY_DECL std::optional<std::uint64_t> number_after(std::string_view text,
                                                                   std::string_view key) noexcept;

/// Bytes of memory that this machine has left. Pages of files that can be dropped at once count as free, used lately or
/// not; those that are dirty, under write-back or locked do not. `meminfo` is for tests.
[[nodiscard]] BELAY_DECL std::uint64_t left_on_machine(const std::string& meminfo = kernel_file("/proc/meminfo"));

/// Bytes that the control groups of this process leave: the least over the group and all above it. Pages of files count
/// as for the machine. `groups` and `root` are for tests.
[[nodiscard]] BELAY_DECL std::uint64_t left_in_control_groups(
    const std::string& groups = kernel_file("/proc/self/cgroup"), const std::string& root = "/sys/fs/cgroup");

/// Bytes of addresses that this process may still map: what `ulimit -v` (RLIMIT_AS) leaves.
[[nodiscard]] BELAY_DECL std::size_t left_in_address_space();

/// Bytes that can be reserved now; 64 MiB are left to the system. A snapshot: others take memory too.
[[nodiscard]] BELAY_DECL std::size_t available_memory();

/// Bytes of this process that are in memory, shared pages included; 0 where /proc does not say. Ranks that are threads
/// share them. It allocates nothing.
[[nodiscard]] BELAY_DECL std::size_t resident_memory() noexcept;

/// Bytes of one rank's device. Differences of what the device says that it has left: what others take meanwhile is in
/// them.
struct device_usage {
  /// Of the device.
  std::uint64_t total = 0;
  std::uint64_t before = 0;         // taken before the rank's first: the context, and what others have
  std::uint64_t communication = 0;  // communicators, and memory and streams that the rank's groups work with
  std::uint64_t kit = 0;            // what libraries of products have taken
  std::uint64_t planned = 0;        // for communication, as the plan has estimated it; 0: it has not

  [[nodiscard]] bool operator==(const device_usage&) const = default;
};

/// A line a purpose, a column a rank; what was planned stands below what was measured of it, where ranks' plans have an
/// estimate.
[[nodiscard]] BELAY_DECL std::string device_usage_text(std::span<const device_usage> ranks);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/available_memory.ipp"  // IWYU pragma: export
#endif
