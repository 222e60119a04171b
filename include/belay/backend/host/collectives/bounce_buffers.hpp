// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Buffers that peers cannot load. Their bytes go through each rank's bounce buffer in rounds: all ranks fill one half,
// pass a barrier, and use what the others filled, while the other half is filled for the next round.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Bytes below which a round is not worth its barrier. Above them there are eight rounds or more, so that ranks that
/// fill and ranks that use work at the same time.
inline constexpr std::size_t least_round_bytes = 32 * 1024;

/// The rounds in which `length` bytes of each part go through bounce buffers, of which `parts` of each rank lie in a
/// half at once. Rounds are whole elements.
///
///   for (bounce_rounds now(me, bytes, 1); now.left(); now.advance()) {
///     now.stage(0, in, bytes);
///     me.pass_round();
///     me.copies().copy(out + now.first(), now.part_of(root, 0), now.clipped(bytes));
///   }
class bounce_rounds {
 public:
  bounce_rounds(collective_endpoint& me, std::size_t length, std::size_t parts, std::size_t element_bytes = 1) noexcept
      : me_(&me), length_(length) {
    const auto whole = [=](std::size_t bytes) { return bytes / element_bytes * element_bytes; };
    const std::size_t room = whole(me.bounce_buffer_bytes() / parts), least = whole(least_round_bytes / parts);
    most_ = greater_of(lesser_of(room, greater_of(whole(length / 8), least)), element_bytes);
    bytes_ = lesser_of(most_, length_);
  }
  [[nodiscard]] bool left() const noexcept { return first_ < length_; }
  void advance() noexcept {
    ++round_;
    first_ += bytes_;
    bytes_ = lesser_of(most_, length_ - first_);
  }

  /// Where the round begins in each part.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  /// How much of the round lies in a part of `length` bytes.
  [[nodiscard]] std::size_t clipped(std::size_t length) const noexcept {
    return first_ >= length ? 0 : lesser_of(bytes_, length - first_);
  }
  /// Part `part` of what rank `who` fills in this round.
  [[nodiscard]] std::byte* part_of(int who, std::size_t part) const noexcept {
    return me_->bounce_buffer_of(who, round_) + part * bytes_;
  }
  /// Fills this rank's part `part` from a part of `length` bytes that begins at `from`.
  void stage(std::size_t part, const std::byte* from, std::size_t length) const {
    const std::size_t bytes = clipped(length);
    me_->copies().copy_by(me_->chosen().by, part_of(me_->rank(), part), from + first_, bytes);
  }

 private:
  collective_endpoint* me_;
  std::size_t length_, most_ = 0;
  std::size_t first_ = 0, bytes_ = 0, round_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
