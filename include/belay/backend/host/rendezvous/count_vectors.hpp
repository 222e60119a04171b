// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The counts that ranks bring to an operation of ragged parts: of each rank two vectors of a count for each rank, what
// it sends and what it receives, in memory that all see, one pair for each of two turns.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

class count_vectors {
 public:
  enum kind : std::size_t { sent, received };
  using counts = std::span<const std::size_t>;

  count_vectors(std::size_t* shared, int me, int ranks) noexcept
      : shared_(shared), me_(me), ranks_(static_cast<std::size_t>(ranks)) {}

  /// This rank's, before its line; its caller keeps them until the operation is over.
  void bring(std::uint32_t operation_number, counts send, counts receive) noexcept {
    own_ = {send, receive};
    for (const kind which : {sent, received})
      std::copy(own_[which].begin(), own_[which].end(), at(operation_number, me_, which));
  }
  /// Those of rank `who`; this rank's where its caller has them.
  [[nodiscard]] counts of(std::uint32_t operation_number, int who, kind which) const noexcept {
    return who == me_ ? own_[which] : counts(at(operation_number, who, which), ranks_);
  }

 private:
  [[nodiscard]] std::size_t* at(std::uint32_t operation_number, int who, kind which) const noexcept {
    return shared_ + ((static_cast<std::size_t>(who) * 2 + operation_number % 2) * 2 + which) * ranks_;
  }

  std::size_t* shared_;
  int me_;
  std::size_t ranks_;
  std::array<counts, 2> own_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
