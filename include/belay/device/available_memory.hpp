// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How much memory can still be taken, and how much this process has. Linux grants more than it has and kills a process
// later, so a large reservation asks here first.
//
//   if (bytes > belay::available_memory()) throw belay::budget_error("host", bytes, belay::available_memory(), at);
//   const std::size_t before = belay::resident_memory();   // bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/available_memory.ipp"  // IWYU pragma: export
#endif
