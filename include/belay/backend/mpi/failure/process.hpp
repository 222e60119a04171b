// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which process each rank is. Of those on this machine the kernel says whether they run, are stopped or are gone; of
// those on others nothing is known.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

enum class process_state { unknown, running, stopped, gone };

/// A process among those of all machines. Trivially copyable: ranks send it to each other.
struct process {
  std::uint64_t machine = 0;  // hash of the boot and of the space of process numbers
  std::int64_t number = 0;
  std::uint64_t start = 0;  // in the kernel's ticks; with it a number is never mistaken for its next user's
  std::int64_t core = -1;   // the only one it may run on; -1: several

  [[nodiscard]] static process self() noexcept {
    process out;
    out.number = ::getpid();
    char text[512];
    fnv1a hash;
    const std::size_t length = read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
    hash.add_text({text, length});
    struct stat space {};
    if (::stat("/proc/self/ns/pid", &space) == 0) hash.add(space.st_ino);
    out.machine = length == 0 ? 0 : hash.value();
    char state = '?';
    if (!read_state(out.number, state, out.start)) out.machine = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1) {
      for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores)) out.core = static_cast<std::int64_t>(core);
      }
    }
    return out;
  }

  /// Its state, where it runs on the machine of `here`.
  [[nodiscard]] process_state state_seen_from(const process& here) const noexcept {
    if (machine == 0 || machine != here.machine) return process_state::unknown;
    char state = '?';
    std::uint64_t began = 0;
    if (!read_state(number, state, began) || began != start || state == 'Z' || state == 'X') return process_state::gone;
    return state == 'T' || state == 't' ? process_state::stopped : process_state::running;
  }

 private:
  static std::size_t read_file(const char* path, char* into, std::size_t room) noexcept {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const auto got = ::read(file, into, room - 1);
    ::close(file);
    const std::size_t length = got > 0 ? static_cast<std::size_t>(got) : 0;
    into[length] = '\0';
    return length;
  }

  // "1234 (name) S ppid ...": the state follows the last bracket, the start is the 22nd field.
  static bool read_state(std::int64_t number, char& state, std::uint64_t& start) noexcept {
    char text[1024];
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(number));
    if (read_file(path, text, sizeof text) == 0) return false;
    const char* at = std::strrchr(text, ')');
    if (at == nullptr || at[1] != ' ') return false;
    at += 2;
    state = *at;
    for (int field = 3; field < 22 && at != nullptr; ++field) {
      at = std::strchr(at, ' ');
      if (at != nullptr) ++at;
    }
    if (at == nullptr) return false;
    start = std::strtoull(at, nullptr, 10);
    return true;
  }
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
