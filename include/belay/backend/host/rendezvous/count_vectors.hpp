// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The counts of all ranks in an operation on parts of different sizes. Each rank has two vectors with a count for each
// rank, what it sends and what it receives, in shared memory; one pair for even operation numbers and one for odd.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The vectors of one lane of a group, as one of its ranks sees them.
class count_vectors {
 public:
  enum kind : std::size_t { sent, received };
  using counts = std::span<const std::size_t>;

  count_vectors(std::size_t* shared, int me, int ranks) noexcept
      : shared_(shared), me_(me), ranks_(static_cast<std::size_t>(ranks)) {}

  /// Stores this rank's vectors, before it publishes its line. The caller keeps its own until the operation is over.
  void put(std::uint32_t operation_number, counts send, counts receive) noexcept {
    own_ = {send, receive};
    for (const kind which : {sent, received})
      std::copy(own_[which].begin(), own_[which].end(), at(operation_number, me_, which));
  }
  /// The vector of rank `who`; this rank's is its caller's own.
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
