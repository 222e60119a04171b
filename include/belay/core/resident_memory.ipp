// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The second number of /proc/self/statm, in pages.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>

#include "belay/core/resident_memory.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::size_t resident_memory() noexcept {
  const unique_fd file{::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)};
  char text[128];
  const ssize_t bytes = file ? ::read(file.get(), text, sizeof text) : 0;
  if (bytes <= 0) return 0;
  const char* const end = text + bytes;
  std::size_t mapped = 0, resident = 0;
  const char* const after_mapped = std::from_chars(text, end, mapped).ptr;
  if (after_mapped == end) return 0;
  std::from_chars(after_mapped + 1, end, resident);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace belay::inline BELAY_ABI
