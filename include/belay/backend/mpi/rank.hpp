// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a running world: what a body is called with, and its groups: the handles that user code calls. A rank
// makes groups and owns its communication stream; everything else is an operation of a group. Each lane of a group has
// a communicator of its own.
//
//   belay::mpi::world().run([](belay::mpi::rank& rank) {
//     std::vector<float> loss(1, static_cast<float>(rank.number()));
//     rank.world().all_reduce(std::span(loss), belay::sum);  // the sum of the numbers, on every rank
//     const int pair[] = {rank.number() / 2 * 2, rank.number() / 2 * 2 + 1};
//     const belay::mpi::group neighbours = rank.group(pair);
//     neighbours.barrier();
//   });
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "belay/backend/mpi/collectives/call.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/comm/basic_group.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

using async_stream = belay::async_stream<mpi_progress>;

/// A group of ranks under MPI. See `basic_group`, and `group_operations` for what it can do.
class group : public basic_group<group, collectives> {
 public:
  /// The group's promises: sums are added in rank order, and parts may differ in size.
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;

  using basic_group::basic_group;

  /// Returns when all ranks have asked for symmetric memory of the same size; collective. The memory itself is each
  /// rank's own (see symmetric_heap).
  void agree_symmetric(std::size_t bytes, where at = where::current()) const {
    const blocking_call call(*this, operation::make_symmetric, {}, at);
    if (alone()) return;
    collectives::run(state(), lane_of_call(operation::make_symmetric, at), limit(), op_call::make_symmetric(bytes, at));
  }
};

/// One rank of a running world. Belongs to the thread that runs its body, and makes one call at a time.
class rank {
 public:
  using group_type = mpi::group;

  /// Of worlds alone.
  explicit rank(const std::shared_ptr<mpi_progress>& progress)
      : progress_(progress), groups_(progress), stream_(std::make_shared<async_stream>(progress, progress->number())) {
    std::vector<int> all_ranks(static_cast<std::size_t>(size()));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    world_.emplace(shared_group(all_ranks, where{}));
  }
  rank(const rank&) = delete;  // a rank is one process
  rank& operator=(const rank&) = delete;
  ~rank() { stream_->end(); }

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return progress_->number(); }
  [[nodiscard]] int size() const noexcept { return progress_->ranks(); }

  /// All ranks, in order.
  [[nodiscard]] const mpi::group& world() const noexcept { return *world_; }

  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member
  /// makes the same groups of the same ranks in the same order; no rank waits for another here. A group of this rank
  /// alone takes nothing of the world. Throws `usage_error`.
  [[nodiscard]] mpi::group group(std::span<const int> members, where at = where::current()) {
    stream_->guard().expect_usable("making a group", at);
    const call_guard::scoped_entry mine(stream_->guard(), "making a group", at);
    if (members.size() == 1 && members[0] == number()) return mpi::group(progress_->timeout(), stream_);
    return shared_group(members, at);
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return stream_->abandoned(); }

  /// For the streams of this rank: their waits end at the world's timeout, and when it fails.
  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const {
    return std::make_shared<world_watch<mpi_progress>>(progress_, number());
  }

  /// Runs what was started and not waited for, and ends the communication thread.
  void finish() noexcept { stream_->finish(); }

 private:
  [[nodiscard]] mpi::group shared_group(std::span<const int> members, const where& at) {
    const std::shared_ptr<group_state> made = groups_.make(members, at);
    return mpi::group(made, made->rank, progress_->timeout(), stream_);
  }

  std::shared_ptr<mpi_progress> progress_;
  group_directory groups_;
  std::shared_ptr<async_stream> stream_;
  std::optional<mpi::group> world_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
