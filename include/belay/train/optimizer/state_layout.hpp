// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where an optimizer keeps its state, and what memory that takes: of the tier itself, and of the ring through which
// chunks stream. The plan and the run take the sizes from here.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <cstddef>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"

namespace belay::inline BELAY_ABI {

/// Where an optimizer keeps its state: on a host the update runs where that lives, chunk by chunk. Gradients and values
/// of a chunk are copied there through a ring on the stream of copies, and the values back; in tier device nothing is
/// copied, but for parameters in tier file. State and parameters of a file are updated in a ring of tier host. Where
/// ranks compute on a device the update runs there: what lives in a lower tier comes to a ring on the device, and goes
/// back.
struct optimizer_memory {
  tier state = tier::device;
  std::string folder = {};                   // of tier file: the directory in which its file is made
  std::size_t chunk = std::size_t{1} << 18;  // elements that stream as one
  file_access access = file_access::best;    // of tier file
};

/// Bytes of what a chunk needs in a slot, and of the whole. `parts` elements of `state_bytes` bytes for each element
/// that is owned; values have `value_bytes`, gradients as much as one part of the state.
class state_layout {
 public:
  state_layout() = default;
  state_layout(tier state, computes_on on, std::size_t chunk, std::size_t parts, std::size_t state_bytes,
               std::size_t value_bytes, std::size_t alignment) noexcept
      : in_file_(state == tier::file),
        in_slot_(in_file_ || (on_device(on) && state != tier::device)),
        chunk_(chunk),
        of_state_(parts * state_bytes),
        of_slot_(state_bytes + value_bytes),
        alignment_(in_file_ ? alignment : std::size_t{64}) {}

  /// Elements of a chunk at most, where `owned` are owned.
  [[nodiscard]] std::size_t chunk_of(std::size_t owned) const noexcept { return lesser_of(chunk_, owned); }
  [[nodiscard]] std::size_t chunks_of(std::size_t owned) const noexcept {
    return owned / chunk_ + (owned % chunk_ != 0);
  }
  /// Two chunks are there before they are updated, so that nobody waits for the other stream to wake up. State of a
  /// file is also written from its slot: one more is written meanwhile.
  [[nodiscard]] std::size_t slots_of(std::size_t owned) const noexcept {
    return lesser_of<std::size_t>(in_file_ ? 4 : 3, chunks_of(owned));
  }
  /// Of a chunk's state in its slot: 0 where it is updated where it lives.
  [[nodiscard]] std::size_t state_in_slot(std::size_t owned) const noexcept {
    return in_slot_ ? rounded(chunk_of(owned) * of_state_) : 0;
  }
  [[nodiscard]] std::size_t slot_bytes(std::size_t owned) const noexcept {
    return rounded(state_in_slot(owned) + chunk_of(owned) * of_slot_ + 64);
  }
  /// The ring, with room to align its first slot.
  [[nodiscard]] std::size_t ring_bytes(std::size_t owned) const noexcept {
    return owned == 0 ? 0 : slots_of(owned) * slot_bytes(owned) + (in_file_ ? alignment_ : 0);
  }
  /// Byte of the file at which a whole chunk `number` begins, and the end of the last, which may be shorter.
  [[nodiscard]] std::size_t file_offset(std::size_t number) const noexcept {
    return number * rounded(chunk_ * of_state_);
  }
  [[nodiscard]] std::size_t file_bytes(std::size_t owned) const noexcept {
    return file_offset(owned / chunk_) + rounded(owned % chunk_ * of_state_);
  }
  /// Of `count` elements of state in the file.
  [[nodiscard]] std::size_t file_bytes_of_chunk(std::size_t count) const noexcept { return rounded(count * of_state_); }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }

 private:
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept {
    return checked_size(bytes).rounded_up(alignment_).saturated();
  }

  bool in_file_ = false, in_slot_ = false;
  std::size_t chunk_ = 1;
  std::size_t of_state_ = 0, of_slot_ = 0;
  std::size_t alignment_ = 64;
};

}  // namespace belay::inline BELAY_ABI
