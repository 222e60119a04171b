// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where a file of tier file is made, and the sizes of the file and of the ring that its bytes pass through.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// How bytes are transferred: by an io_uring, by a thread with pread and pwrite, or by the first of these that there
/// is.
enum class file_access : std::uint8_t { best, ring, thread };

[[nodiscard]] constexpr const char* name(file_access way) noexcept {
  switch (way) {
    case file_access::best: return "best";
    case file_access::ring: return "ring";
    case file_access::thread: return "thread";
  }
  return "unknown";
}

/// Of tier file: the directory of its files, and how they are accessed.
struct file_memory {
  std::string folder = {};
  std::size_t piece = std::size_t{1} << 19;  // bytes that a slot of the ring holds, at most
  file_access access = file_access::best;
};

/// Sizes in bytes, of what is stored in a file and passes through slots of a ring in memory.
class streamed_layout {
 public:
  static constexpr std::size_t most_slots = 4;

  streamed_layout() = default;
  /// `alignment` is that of the file's medium; a slot has `piece` bytes at most, rounded up to it.
  streamed_layout(std::size_t alignment, std::size_t piece) noexcept
      : alignment_(alignment), piece_(rounded(greater_of(piece, alignment))) {}

  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  /// Of a file that holds `bytes`.
  [[nodiscard]] std::size_t file_bytes(std::size_t bytes) const noexcept { return rounded(bytes); }
  [[nodiscard]] std::size_t slot_bytes(std::size_t bytes) const noexcept { return lesser_of(piece_, rounded(bytes)); }
  [[nodiscard]] std::size_t slot_count(std::size_t bytes) const noexcept {
    return bytes == 0 ? 0 : lesser_of(most_slots, (rounded(bytes) - 1) / slot_bytes(bytes) + 1);
  }
  /// The ring, with room to align its first slot.
  [[nodiscard]] std::size_t ring_bytes(std::size_t bytes) const noexcept {
    return bytes == 0 ? 0 : slot_count(bytes) * slot_bytes(bytes) + alignment_;
  }
  /// A ring for files of any size.
  [[nodiscard]] std::size_t whole_ring_bytes() const noexcept { return most_slots * piece_ + alignment_; }

  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept {
    return checked_size(bytes).rounded_up(alignment_).saturated();
  }

 private:
  std::size_t alignment_ = 4096;
  std::size_t piece_ = 4096;
};

}  // namespace belay::inline BELAY_ABI
