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

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/process_identity.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

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
    struct stat space{};
    if (::stat("/proc/self/ns/pid", &space) == 0) hash.add(space.st_ino);
    out.machine = length == 0 ? 0 : hash.value();
    out.start = start_time_of_process(static_cast<pid_t>(out.number));
    if (out.start == 0) out.machine = 0;
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
    const auto seen = read_process_status(static_cast<pid_t>(number));
    if (!seen) return says_gone(errno) ? process_state::gone : process_state::running;
    return seen->start_time == start ? seen->state() : process_state::gone;
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
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
