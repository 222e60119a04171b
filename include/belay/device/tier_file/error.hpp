// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What can go wrong with a tier's file, as a type: which operation, where, and how many bytes were done before.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Operations that the system is asked for. `start` is starting the thread or the ring that transfers.
enum class tier_file_operation : std::uint8_t { open, allocate, start, read, write };

[[nodiscard]] constexpr const char* name(tier_file_operation which) noexcept {
  switch (which) {
    case tier_file_operation::open: return "open";
    case tier_file_operation::allocate: return "allocate";
    case tier_file_operation::start: return "start";
    case tier_file_operation::read: return "read";
    case tier_file_operation::write: return "write";
  }
  return "unknown";
}

/// `full`: the medium or a quota. `device`: the medium failed (EIO). `truncated`: the file ends before its planned end.
/// `stalled`: a call took less than one block, again and again. `system`: any other error number.
enum class tier_file_fault : std::uint8_t { none, full, device, truncated, stalled, system };

[[nodiscard]] constexpr const char* name(tier_file_fault fault) noexcept {
  switch (fault) {
    case tier_file_fault::none: return "none";
    case tier_file_fault::full: return "full";
    case tier_file_fault::device: return "device";
    case tier_file_fault::truncated: return "truncated";
    case tier_file_fault::stalled: return "stalled";
    case tier_file_fault::system: return "system";
  }
  return "unknown";
}

[[nodiscard]] constexpr tier_file_fault fault_of(int error) noexcept {
  if (error == ENOSPC || error == EDQUOT) return tier_file_fault::full;
  return error == EIO ? tier_file_fault::device : tier_file_fault::system;
}

/// A tier's file could not be made, read or written. `path()` is its directory: the file has no name. `offset()` is the
/// byte at which it stopped.
class tier_file_error : public file_error {
 public:
  struct details {
    tier_file_operation operation = tier_file_operation::open;
    tier_file_fault fault = tier_file_fault::system;
    int code = 0;              // the system's error number; 0 where it gave none
    std::uint64_t offset = 0;  // the transfer's first byte
    std::size_t bytes = 0;     // asked for
    std::size_t done = 0;      // of these
    std::string more;          // what else the reader needs to know
    // Where the medium is full: what its file system has left for this user, where it tells.
    std::optional<std::uint64_t> free = std::nullopt;
  };

  tier_file_error(const std::string& directory, details what, where at)
      : tier_file_error(at, directory, with_free(directory, std::move(what))) {}

  [[nodiscard]] const details& about() const noexcept { return details_; }

 private:
  tier_file_error(where at, const std::string& directory, const details& what)
      : file_error(directory, what.offset + what.done, text(what), at), details_(what) {}

  static details with_free(const std::string& directory, details what);

  static std::string text(const details& d);

  details details_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/tier_file/error.ipp"  // IWYU pragma: export
#endif
