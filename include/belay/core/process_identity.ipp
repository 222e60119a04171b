// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reading and parsing /proc/PID/stat.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "belay/core/process_identity.hpp"
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

}  // namespace belay::inline BELAY_ABI
