// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a running world: what a body is called with. It makes groups and owns the rank's communication
// stream; everything else is an operation of a group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "belay/backend/mpi/async_stream.hpp"
#include "belay/backend/mpi/group.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// One rank of a running world. Belongs to the thread that runs its body, and makes one call at a time.
class rank {
 public:
  using group_type = mpi::group;

  explicit rank(const std::shared_ptr<mpi_progress>& over)
      : over_(over), groups_(over), stream_(std::make_shared<async_stream>(over, over->number())) {
    std::vector<int> everybody(static_cast<std::size_t>(over->ranks()));
    std::iota(everybody.begin(), everybody.end(), 0);
    world_.emplace(group(everybody, where{}));
  }
  rank(const rank&) = delete;  // a rank is one process
  rank& operator=(const rank&) = delete;
  ~rank() { stream_->end(); }

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return over_->number(); }
  [[nodiscard]] int size() const noexcept { return over_->ranks(); }

  /// All ranks, in order.
  [[nodiscard]] const mpi::group& world() const noexcept { return *world_; }

  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member
  /// makes the same groups of the same ranks in the same order; nobody waits for anybody here. Throws
  /// `usage_error`.
  [[nodiscard]] mpi::group group(std::span<const int> members, where at = where::current()) {
    stream_->guard().expect_usable("making a group", at);
    const call_guard::entry mine(stream_->guard(), "making a group", at);
    return mpi::group(groups_.make(members, at), stream_);
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return stream_->abandoned(); }

  /// Runs what was started and not waited for, and ends the communication thread.
  void finish() noexcept { stream_->finish(); }

 private:
  std::shared_ptr<mpi_progress> over_;
  group_directory groups_;
  std::shared_ptr<async_stream> stream_;
  std::optional<mpi::group> world_;
};

static_assert(has_groups<rank>);

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
