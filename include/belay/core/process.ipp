// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reading and parsing /proc/PID/stat.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::optional<process_status> read_process_status(pid_t pid) noexcept {
  errno = 0;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  const unique_fd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  char text[1024];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got <= 0) return std::nullopt;
  const std::string_view line(text, static_cast<std::size_t>(got));
  std::size_t place = line.rfind(')');  // the second field is a name in parentheses and may hold anything
  if (place == std::string_view::npos || place + 2 >= line.size()) return std::nullopt;
  process_status seen;
  place += 2;
  seen.letter = line[place];
  for (int field = 3; field < 22; ++field) {
    place = line.find(' ', place);
    if (place == std::string_view::npos) return std::nullopt;
    ++place;
  }
  const auto read = std::from_chars(line.data() + place, line.data() + line.size(), seen.start_time);
  return read.ec == std::errc{} ? std::optional(seen) : std::nullopt;
}

[[gnu::cold]] BELAY_DECL process_state state_of_process(pid_t pid) noexcept {
  if (const auto seen = read_process_status(pid)) return seen->state();
  return says_gone(errno) ? process_state::gone : process_state::running;
}

BELAY_DECL int core_set::count() const noexcept {
  int out = 0;
  for (const std::uint64_t word : bits) out += std::popcount(word);
  return out;
}

BELAY_DECL core_set core_set::allowed() noexcept {
  core_set out;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_SET(0, &cores);
  for (std::size_t core = 0; core < CPU_SETSIZE && core < 64 * words; ++core) {
    if (CPU_ISSET(core, &cores)) out.bits[core / 64] |= std::uint64_t{1} << (core % 64);
  }
  return out;
}

BELAY_DECL const char* environment_variable(const char* name) noexcept { return std::getenv(name); }

[[gnu::cold]] BELAY_DECL own_process::own_process() noexcept
    : number_(::getpid()), bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
  void* const page = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, bytes_, MADV_WIPEONFORK) != 0) {  // a kernel before 4.14
    ::munmap(page, bytes_);
    return;
  }
  mark_ = static_cast<volatile unsigned char*>(page);
  *mark_ = 1;
}

[[gnu::cold]] BELAY_DECL own_process::~own_process() {
  if (mark_ != nullptr) ::munmap(const_cast<unsigned char*>(mark_), bytes_);
}

[[gnu::cold]] BELAY_DECL void end_forked_child(int rank, const char* problem) noexcept {
  std::fprintf(stderr,
               "belay: a forked child of rank %d has left the body%s%s; it is no rank and is ended here (call exec or "
               "_exit in a child)\n",
               rank, *problem == '\0' ? "" : " by an exception: ", problem);
  ::_exit(1);
}

[[gnu::cold]] BELAY_DECL std::string signal_name(int number) {
  const char* known = nullptr;
  switch (number) {
    case SIGHUP: known = "SIGHUP"; break;
    case SIGINT: known = "SIGINT"; break;
    case SIGQUIT: known = "SIGQUIT"; break;
    case SIGILL: known = "SIGILL"; break;
    case SIGTRAP: known = "SIGTRAP"; break;
    case SIGABRT: known = "SIGABRT"; break;
    case SIGBUS: known = "SIGBUS"; break;
    case SIGFPE: known = "SIGFPE"; break;
    case SIGKILL: known = "SIGKILL"; break;
    case SIGUSR1: known = "SIGUSR1"; break;
    case SIGSEGV: known = "SIGSEGV"; break;
    case SIGUSR2: known = "SIGUSR2"; break;
    case SIGPIPE: known = "SIGPIPE"; break;
    case SIGALRM: known = "SIGALRM"; break;
    case SIGTERM: known = "SIGTERM"; break;
    case SIGSTOP: known = "SIGSTOP"; break;
    case SIGTSTP: known = "SIGTSTP"; break;
    case SIGVTALRM: known = "SIGVTALRM"; break;
    case SIGPROF: known = "SIGPROF"; break;
    case SIGIO: known = "SIGIO"; break;
    case SIGXCPU: known = "SIGXCPU"; break;
    case SIGXFSZ: known = "SIGXFSZ"; break;
    case SIGSYS: known = "SIGSYS"; break;
    default: return "signal " + std::to_string(number);
  }
  return std::string(known) + " (" + std::to_string(number) + ")";
}

}  // namespace belay::inline BELAY_ABI
