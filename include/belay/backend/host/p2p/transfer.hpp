// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the bytes of one transfer get from its sender to its receiver. The sender decides that once, before the first
// letter, and every letter says it: what a peer can do changes while a transfer is under way (it joins), and two ends
// that each asked would count other bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Behind the letter box in pieces; from memory that the receiver has mapped; or copied by the kernel.
enum class transfer_path : std::uint32_t { pieces, mapped, cma };

/// What one letter says of its transfer, in bytes: the whole, what earlier letters moved, and what this one moves.
struct transfer_step {
  transfer_path path = transfer_path::pieces;
  std::uint64_t total = 0;
  std::uint64_t before = 0;
  std::uint64_t here = 0;
};

/// One end of a direction of a pair: how far the transfer is that is under way. All sizes are bytes.
class transfer_end {
 public:
  /// The sender: the next letter of a transfer of `total`, of which a piece holds `room`. `decide()` gives the path; it
  /// is asked before the first letter only.
  template <class Decide>
  [[nodiscard]] transfer_step next(std::uint64_t total, std::uint64_t room, Decide decide) {
    if (!begun_) path_ = decide();
    begun_ = true;
    const std::uint64_t left = total - moved_;
    return {path_, total, moved_, path_ == transfer_path::pieces ? std::min(room, left) : left};
  }

  /// The receiver: whether a letter goes on where the transfer of `total` is, and not beyond its end.
  [[nodiscard]] bool continues(const transfer_step& mailbox_state, std::uint64_t total,
                               std::uint64_t room) const noexcept {
    if (mailbox_state.total != total || mailbox_state.before != moved_ || (begun_ && mailbox_state.path != path_))
      return false;
    const std::uint64_t left = total - moved_;
    switch (mailbox_state.path) {
      case transfer_path::pieces: return mailbox_state.here == std::min(room, left);
      case transfer_path::mapped:
      case transfer_path::cma: return mailbox_state.here == left;
    }
    return false;
  }

  /// Either end, when the letter has been taken: true when the transfer is over, and the next one begins.
  bool advance(const transfer_step& mailbox_state) noexcept {
    path_ = mailbox_state.path;
    moved_ += mailbox_state.here;
    begun_ = moved_ < mailbox_state.total;
    if (!begun_) moved_ = 0;
    return !begun_;
  }

  [[nodiscard]] std::uint64_t moved() const noexcept { return moved_; }

 private:
  transfer_path path_ = transfer_path::pieces;
  bool begun_ = false;
  std::uint64_t moved_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
