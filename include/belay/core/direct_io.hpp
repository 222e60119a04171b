// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Transfers of an open file around the page cache (O_DIRECT), where its file system has them.
//
//   const std::size_t unit = belay::direct_alignment_of(descriptor).value_or(4096);
//   const bool direct = unit != 0 && belay::make_direct(descriptor) == 0;
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The number of bytes that offsets, lengths and addresses of direct transfers are multiples of, a power of two; 0
/// where the file system has no such transfers for this file, and nothing where it does not tell.
[[nodiscard]] inline std::optional<std::size_t> direct_alignment_of(int descriptor) noexcept {
#if defined(STATX_DIOALIGN)  // kernel headers from 6.1 on
  struct statx facts {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0) {
    const std::size_t of_memory = facts.stx_dio_mem_align;
    const std::size_t of_offsets = facts.stx_dio_offset_align;
    return of_offsets < of_memory && of_offsets != 0 ? of_memory : of_offsets;
  }
#else
  static_cast<void>(descriptor);
#endif
  return std::nullopt;
}

/// Makes later transfers go around the page cache, or through it again: 0, or -1 and errno.
[[nodiscard]] inline int make_direct(int descriptor) noexcept {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags < 0 ? flags : ::fcntl(descriptor, F_SETFL, flags | O_DIRECT);
}
[[nodiscard]] inline int make_buffered(int descriptor) noexcept {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags < 0 ? flags : ::fcntl(descriptor, F_SETFL, flags & ~O_DIRECT);
}

}  // namespace belay::inline BELAY_ABI
