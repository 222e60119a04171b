// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a running world: what a body is called with. It makes groups and owns the rank's communication
// stream; everything else is an operation of a group. However its body ends, its peers are told.
//
//   belay::host::world{4}.run([](belay::host::rank& rank) {
//     const int pair[] = {rank.number() / 2 * 2, rank.number() / 2 * 2 + 1};
//     const belay::host::group neighbours = rank.group(pair);
//     neighbours.barrier();
//   });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/group.hpp"
#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank of a running world. Belongs to the thread that runs its body, and makes one call at a time.
class rank {
 public:
  using group_type = host::group;

  /// Of worlds alone.
  rank(epoch_view seat, std::shared_ptr<membership> source)
      : seat_(std::move(seat)),
        source_(std::move(source)),
        groups_(*seat_.world, seat_.number),
        stream_(std::make_shared<async_stream>(seat_.world, seat_.number)) {
    std::vector<int> all_ranks(static_cast<std::size_t>(size()));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    world_.emplace(shared_group(all_ranks, where{}));
  }
  rank(const rank&) = delete;  // a rank is one thread
  rank& operator=(const rank&) = delete;
  /// A rank of the first epoch ends with its body, which says how; a later one ends here.
  ~rank() {
    stream_->end();
    if (!seat_.world->in_own_process() || seat_.world->shared().shape().epoch == 0) return;
    if (std::uncaught_exceptions() > exceptions_)
      seat_.world->abort(thrown_by(*seat_.world, number(), "an exception", error_kind::other));
    seat_.world->note_exit(number(), lane::caller);
    seat_.world->note_exit(number(), lane::stream);
  }

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return seat_.number; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(seat_.members.size()); }

  /// All ranks, in order.
  [[nodiscard]] const host::group& world() const noexcept { return *world_; }

  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member
  /// makes the same groups of the same ranks in the same order; no rank waits for another here. A group of this rank
  /// alone takes nothing of the world. Throws `usage_error`.
  [[nodiscard]] host::group group(std::span<const int> members, where at = where::current()) {
    stream_->guard().expect_usable("making a group", at);
    const call_guard::scoped_entry mine(stream_->guard(), "making a group", at);
    if (members.size() == 1 && members[0] == number()) return host::group(seat_.world->timeout(), stream_);
    return shared_group(members, at);
  }

  /// A world of the ranks that are left, once one has failed. Collective among the survivors, which keep their order;
  /// each gets a rank of a fresh world, in which numbers start at 0 and symmetric memory is made anew. Started
  /// operations of this one end in `revoked`, as do all later calls. A rank whose process is stopped for longer than
  /// the stall limit is killed first; a thread that does not come within it is left behind. Throws comm_error.
  [[nodiscard]] rank shrink(where at = where::current()) {
    stream_->guard().expect_usable("shrink", at);
    const call_guard::scoped_entry mine(stream_->guard(), "shrink", at);
    return rank(source_->shrink(seat_, seat_.world->timeout(), at), source_);
  }
  /// The numbers at the start of the ranks that this world consists of, in order.
  [[nodiscard]] std::span<const int> survivors() const noexcept { return seat_.members; }

  /// Where the flight recorder and the health of this world are.
  [[nodiscard]] const std::shared_ptr<world_status>& state() const noexcept { return seat_.world; }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return stream_->abandoned(); }

  /// Communications of this rank run when `arbiter` says so, which all ranks share. Before the first of them.
  void use(std::shared_ptr<stream_arbiter> arbiter) { stream_->use(std::move(arbiter)); }

  /// For the streams of this rank: their waits end at the world's timeout, and when it fails.
  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const {
    return std::make_shared<world_watch<world_status>>(seat_.world, number());
  }

  /// Runs what was started and not waited for, and ends the communication thread.
  void finish() noexcept { stream_->finish(); }

 private:
  [[nodiscard]] host::group shared_group(std::span<const int> members, const where& at) {
    const auto found = std::find(members.begin(), members.end(), number());
    const int place = static_cast<int>(found - members.begin());
    const group_directory::share share = groups_.join(members, at);
    return host::group(std::make_shared<group_state>(seat_.world, seat_.regions,
                                                     std::vector<int>(members.begin(), members.end()), place, share),
                       place, seat_.world->timeout(), stream_);
  }

  int exceptions_ = std::uncaught_exceptions();
  epoch_view seat_;
  std::shared_ptr<membership> source_;
  group_directory groups_;
  std::shared_ptr<async_stream> stream_;
  std::optional<host::group> world_;
};

/// How the body of a rank ended.
struct run_result {
  /// The exception that it has thrown, and the text of that; null: it returned.
  std::exception_ptr error;
  std::string what;
  error_kind kind = error_kind::none;
  bool aborted_the_world = false;  // its failure was the first

  /// Throws what the body has thrown.
  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

/// Runs a rank's body, from its first call to its last: however it ends, its peers are told, and none waits for it
/// afterwards. Returns when its started operations are over too.
[[nodiscard]] BELAY_DECL run_result run_rank_body(const epoch_view& view, const std::shared_ptr<membership>& source,
                                                  function_ref<void(rank&)> body);

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/rank.ipp"  // IWYU pragma: export
#endif
