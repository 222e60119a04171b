// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the system tells of a process: whether it runs, is stopped by a signal or is gone, when it was started (a
// number may be given again to another), on which cores it may run.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "belay/comm/event_count.hpp"
#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

enum class process_state { running, stopped, gone };

/// The `field`-th field (from 3, as proc(5) counts) of /proc/PID/stat; its length, or 0 when there is no such process.
inline std::size_t read_process_field(pid_t pid, int field, char* to, std::size_t room) noexcept {
  char path[48], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The second field is a name in parentheses and may hold anything.
  const char* at = std::strrchr(text, ')');
  for (int f = 2; at != nullptr && f < field; ++f) {
    at = std::strchr(at, ' ');
    if (at != nullptr) ++at;
  }
  if (at == nullptr) return 0;
  const std::size_t found = std::strcspn(at, " \n");
  if (found + 1 > room) return 0;
  std::memcpy(to, at, found);
  to[found] = '\0';
  return found;
}

/// Of a process of this machine. One that a debugger holds (t) is running: who debugs it decides how long. So is one
/// that cannot be looked at.
[[nodiscard]] inline process_state state_of_process(pid_t pid) noexcept {
  char state[4];
  errno = 0;
  if (read_process_field(pid, 3, state, sizeof state) == 0) {
    return is_shortage(errno) ? process_state::running : process_state::gone;
  }
  if (state[0] == 'T') return process_state::stopped;
  return state[0] == 'Z' || state[0] == 'X' ? process_state::gone : process_state::running;
}

/// In clock ticks since the machine's start; 0 when there is no such process.
[[nodiscard]] inline std::uint64_t start_time_of_process(pid_t pid) noexcept {
  char ticks[24];
  return read_process_field(pid, 22, ticks, sizeof ticks) == 0 ? 0 : std::strtoull(ticks, nullptr, 10);
}

/// Cores, one bit each.
struct core_set {
  static constexpr std::size_t words = 16;
  std::uint64_t bits[words] = {};

  [[nodiscard]] int count() const noexcept {
    int out = 0;
    for (const std::uint64_t word : bits) out += std::popcount(word);
    return out;
  }
  /// On which the calling thread may run.
  [[nodiscard]] static core_set allowed() noexcept {
    core_set out;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_SET(0, &cores);
    for (std::size_t core = 0; core < CPU_SETSIZE && core < 64 * words; ++core) {
      if (CPU_ISSET(core, &cores)) out.bits[core / 64] |= std::uint64_t{1} << (core % 64);
    }
    return out;
  }
};

/// Whether the kernel lets this process read ordinary memory of others that were started beside it: asked of its
/// parent, at an address that nobody has.
[[nodiscard]] inline bool may_read_processes() noexcept {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec nowhere{reinterpret_cast<void*>(std::uintptr_t{16}), 1};
  return ::process_vm_readv(::getppid(), &here, 1, &nowhere, 1, 0) < 0 && errno == EFAULT;
}

/// How many looks of a spin take `time` on this machine: its hint costs a few nanoseconds on one kind and fifty on
/// another.
[[nodiscard]] inline int spins_in(std::chrono::nanoseconds time) noexcept {
  using clock = std::chrono::steady_clock;
  constexpr int looks = 400;
  auto fastest = std::chrono::nanoseconds::max();
  for (int round = 0; round < 3; ++round) {  // the fastest round was not interrupted
    const auto before = clock::now();
    for (int i = 0; i < looks; ++i) relax();
    const auto after = clock::now();
    if (after - before < fastest) fastest = after - before;
  }
  const auto each = static_cast<double>(fastest.count() > 0 ? fastest.count() : 1) / looks;
  const double count = static_cast<double>(time.count()) / each;
  return count > 1e9 ? 1'000'000'000 : static_cast<int>(count) + 1;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
