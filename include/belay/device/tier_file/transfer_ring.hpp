// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Calls that a kernel makes beside the program, as a file tier uses them: submitted with a tag, over in any order.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/device/tier_file/error.hpp"

namespace belay::inline BELAY_ABI {

/// One pread or pwrite, of at most 1 GiB.
struct transfer_call {
  tier_file_operation operation = tier_file_operation::read;
  int descriptor = -1;
  std::byte* address = nullptr;  // of a write it is only read
  std::size_t bytes = 0;
  std::uint64_t offset = 0;
};

/// `result` is the number of bytes moved, or an error number below 0.
struct transfer_completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// `open` says why there is none, or "". A refused `submit` returns an error number, and its memory is not used. `wait`
/// blocks until one call is over, `poll` does not; these two are called by one thread at a time, `submit` as well, but
/// one of each may run at the same time. The destructor may be called when no call is under way.
template <class R>
concept transfer_ring = std::default_initializable<R> &&
    requires(R ring, unsigned calls, const transfer_call& call, std::uint64_t tag, transfer_completion& over) {
  { ring.open(calls) } -> std::same_as<std::string>;
  { ring.submit(call, tag) }
  noexcept->std::same_as<int>;
  { ring.wait() }
  noexcept->std::same_as<transfer_completion>;
  { ring.poll(over) }
  noexcept->std::same_as<bool>;
};

/// Where there is no liburing.
struct no_transfer_ring {
  [[nodiscard]] static std::string open(unsigned) { return "compiled without liburing (BELAY_HAS_LIBURING is not 1)"; }
  [[nodiscard]] static int submit(const transfer_call&, std::uint64_t) noexcept { return ENOSYS; }
  [[nodiscard]] static transfer_completion wait() noexcept { return {}; }
  [[nodiscard]] static bool poll(transfer_completion&) noexcept { return false; }
};

static_assert(transfer_ring<no_transfer_ring>);

}  // namespace belay::inline BELAY_ABI
