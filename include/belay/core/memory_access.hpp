// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a copy or a reduction reads and writes memory. Every access moves the same bits.
// IWYU pragma: private, include "belay/core.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// `automatic`: by the calibration of this machine. `temporal`: vector registers, through the caches. `prefetch`: the
/// source is prefetched to be read. `prefetch_exclusive`: a source that is also a destination is prefetched to be
/// written. `non_temporal`: stores bypass the caches. `non_temporal_remote`: stores into peers' buffers do.
/// `rep_movsb`: one string instruction. `libc`: the C library's memcpy.
enum class memory_access : std::uint8_t {
  automatic,
  temporal,
  prefetch,
  prefetch_exclusive,
  non_temporal,
  non_temporal_remote,
  rep_movsb,
  libc
};

[[nodiscard]] constexpr const char* name(memory_access how) noexcept {
  constexpr const char* names[] = {"automatic",           "temporal",  "prefetch", "prefetch_exclusive", "non_temporal",
                                   "non_temporal_remote", "rep_movsb", "libc"};
  return names[static_cast<std::size_t>(how)];
}

/// Those that differ for a plain copy.
inline constexpr memory_access copy_accesses[] = {memory_access::libc, memory_access::rep_movsb,
                                                  memory_access::temporal, memory_access::non_temporal};

/// The access of a plain copy that `how`, which is not automatic, stands for: one of `copy_accesses`, as prefetching is
/// the copy's own business.
[[nodiscard]] constexpr memory_access as_copy(memory_access how) noexcept {
  switch (how) {
    case memory_access::libc:
    case memory_access::rep_movsb:
    case memory_access::non_temporal: return how;
    default: return memory_access::temporal;
  }
}

}  // namespace belay::inline BELAY_ABI
