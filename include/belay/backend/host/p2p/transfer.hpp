// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the bytes of one transfer get from its sender to its receiver. The sender decides that once, before the first
// message, and every message repeats it: what a peer can do changes while a transfer is under way (it joins), and two
// ends that each decided would count different bytes.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Through the mailbox in pieces; from memory that the receiver has mapped; or copied by the kernel (cma).
enum class transfer_path : std::uint32_t { pieces, mapped, cma };

/// One message's part of its transfer: the path, and in bytes the whole, what earlier messages moved, and what this one
/// moves.
struct transfer_step {
  transfer_path path = transfer_path::pieces;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// One end of a direction between two ranks: how far the present transfer is. All sizes are bytes.
class transfer_end {
 public:
  /// The sender: the next message of a transfer of `total`, of which a piece holds `room`. `decide()` gives the path;
  /// it is asked before the first message only.
  template <class Decide>
  [[nodiscard]] transfer_step next(std::uint64_t total, std::uint64_t room, Decide decide) {
    if (!begun_) path_ = decide();
    begun_ = true;
    const std::uint64_t left = total - moved_;
    return {path_, total, moved_, path_ == transfer_path::pieces ? lesser_of(room, left) : left};
  }

  /// The receiver: whether a message continues the transfer of `total` where it is, and not beyond its end.
  [[nodiscard]] bool continues(const transfer_step& step, std::uint64_t total, std::uint64_t room) const noexcept {
    if (step.total != total || step.offset != moved_ || (begun_ && step.path != path_)) return false;
    const std::uint64_t left = total - moved_;
    switch (step.path) {
      case transfer_path::pieces: return step.bytes == lesser_of(room, left);
      case transfer_path::mapped:
      case transfer_path::cma: return step.bytes == left;
    }
    return false;
  }

  /// Either end, when the message has been read: true when the transfer is over, and the next one begins.
  bool advance(const transfer_step& step) noexcept {
    path_ = step.path;
    moved_ += step.bytes;
    begun_ = moved_ < step.total;
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
