// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The handle that user code calls, over a backend. What is the same everywhere is here once: the guard of the rank's
// calls, the check of buffers in flight, the limit of waits, how an operation gets to the calling thread's lane or to
// the stream's, and the operations of a rank alone, which are copies. A backend gives its collectives (see
// `group_backend`).
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_arbiter.hpp"

namespace belay::inline BELAY_ABI {

// The operations of a group of one rank are copies: no shared memory, no peer to wait for.
namespace single_rank {

/// The n-th send of rank `number` of the world to itself meets its n-th receive. Empty, or why they do not fit.
[[nodiscard]] BELAY_DECL std::string exchange(std::span<const p2p> transfers, int number);

/// Runs an operation of rank `number` of `world` in a group of its own, which was checked. Throws comm_error where the
/// world has failed or an exchange does not fit.
template <class World>
void run(World& world, int number, const op_call& call) {
  if (world.aborted()) world.raise({call.what(), 0, 0, 0, call.at});
  if (call.what() != operation::exchange) return copy_elements(call.out, call.in, call.in_bytes());
  const std::string problem = exchange(call.exchanged(), number);
  if (problem.empty()) return;
  world.abort({comm_fault::mismatch, {number}, problem, call.at.text()});
  world.raise({call.what(), 0, 0, 0, call.at});
}

}  // namespace single_rank

/// A backend of groups: the state of its world and of one rank's part in a group; `run(state, lane, limit, call)` for
/// every operation; and `tell_first_start(state, what, at)`, which tells ranks that call in the caller's lane, without
/// waiting for them.
template <class B>
concept group_backend = world_state<typename B::world_type> &&
                        requires(typename B::group_state& state, std::chrono::steady_clock::duration limit,
                                 const op_call& call, const where& at) {
                          { state.size() } -> std::same_as<int>;
                          { state.collectives() } -> std::same_as<collective_order&>;
                          B::run(state, lane::caller, limit, call);
                          B::tell_first_start(state, operation::barrier, at);
                        };

/// One rank's handle onto an ordered set of ranks. Copies are the same handle. Belongs to the rank's thread, which
/// makes one call at a time, and to the body that the world runs: in checked builds a call from a second thread, from a
/// forked child or after the run is a `usage_error`. One that outlives the run may go at any time. A group of the rank
/// alone has no state: its operations are copies, in the same order with all others of the rank.
template <class Group, group_backend Backend>
class basic_group : public group_operations<Group> {
 public:
  using state_type = typename Backend::group_state;
  using stream_type = async_stream<typename Backend::world_type>;
  using duration = std::chrono::steady_clock::duration;

  basic_group(std::shared_ptr<state_type> state, int rank, duration limit, std::shared_ptr<stream_type> stream) noexcept
      : state_(std::move(state)), rank_(rank), limit_(limit), stream_(std::move(stream)) {}

  /// A handle onto the group whose calls wait `timeout` for peers instead of the world's timeout. Throws usage_error.
  [[nodiscard]] Group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    Group out = static_cast<const Group&>(*this);
    out.limit_ = checked_timeout(timeout, at);
    return out;
  }

  /// The group that a rank is alone in.
  basic_group(duration limit, std::shared_ptr<stream_type> stream) noexcept
      : rank_(0), limit_(limit), stream_(std::move(stream)) {}

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return alone() ? 1 : state_->size(); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const noexcept {
    return alone() ? std::span<const int>(&stream_->number(), 1) : state_->members();
  }

  /// The blocking operations of a group, as a composite calls them in the communication stream.
  class stream_calls : public group_operations<stream_calls> {
   public:
    stream_calls(state_type* state, int rank, duration limit, stream_type& stream) noexcept
        : state_(state), rank_(rank), limit_(limit), stream_(&stream) {}
    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int size() const noexcept { return state_ == nullptr ? 1 : state_->size(); }

    void run_call(const op_call& call) const {
      if (state_ == nullptr) return single_rank::run(*stream_->world(), stream_->number(), call);
      Backend::run(*state_, lane::stream, limit_, call);
    }

   private:
    state_type* state_;
    int rank_;
    duration limit_;
    stream_type* stream_;
  };

  /// Starts `work(calls)`: host work and blocking operations of this group, which its stream runs as one, in its turn.
  /// All ranks of the group start the same. `work` is small and trivially copyable; `what` names it in messages.
  template <std::invocable<const stream_calls&> Work>
  [[nodiscard]] pending start_composite(operation what, const Work& work,
                                        const start_order& how = where::current()) const {
    stream_type* const stream = stream_.get();
    if (alone()) {
      const auto run = [work, stream, limit = limit_](typename Backend::world_type&) {
        work(stream_calls(nullptr, 0, limit, *stream));
      };
      return stream_->launch(what, stream_->world(), run, {}, how, limit_);
    }
    const auto run = [work, stream, rank = rank_, limit = limit_](state_type& state) {
      work(stream_calls(&state, rank, limit, *stream));
    };
    return noted(what, how.at,
                 stream_->launch(what, state_, run, {}, how, limit_, meeting_in_stream(), traced(what, {}, {}, how)));
  }

  /// Starts `work()`: host work of this rank alone, which its stream runs in its turn. No other rank takes part. Once
  /// the world has failed it is skipped, and fails as a call does. `work` is small and trivially copyable; `what` names
  /// it in messages.
  template <std::invocable Work>
  [[nodiscard]] pending start_local(operation what, const Work& work, const start_order& how = where::current()) const {
    const auto run = [work, what, at = how.at](typename Backend::world_type& world) {
      if (world.aborted()) world.raise({what, 0, 0, 0, at});
      work();
    };
    return stream_->launch(what, stream_->world(), run, {}, how, limit_, {}, traced(what, {}, {}, how));
  }

  /// Operations of this rank in all of its groups, and its waits for them, are spans of `log` from now on; null: of
  /// none. It outlives what is started meanwhile.
  void trace_into(span_log* log) const noexcept { stream_->trace_into(log); }

  /// The guard of the rank's calls.
  [[nodiscard]] call_guard& guard() const noexcept { return stream_->guard(); }
  /// Checked builds: has the rank to itself until it goes, for `what`, which lives as long. Throws usage_error.
  [[nodiscard]] call_guard::scoped_entry checked_call(const char* what, const where& at) const {
    return {stream_->guard(), what, at};
  }

  /// Runs, and starts, an operation that was checked (see `check_call`).
  void run_call(const op_call& what) const {
    const blocking_call call(*this, what.what(), what.uses(), what.at);
    if (alone()) {
      stream_->guard().expect_usable(name(what.what()), what.at);
      return single_rank::run(*stream_->world(), stream_->number(), what);
    }
    span_log* const log = stream_->spans();
    const span_timer timed(log == nullptr ? nullptr
                                          : add_operation(*log, span_lane::host, what.what(), members(), what.uses(),
                                                          what.exchanged(), what.at));
    // Transfers have the order of who calls them.
    const lane meets = what.what() == operation::exchange ? lane::caller : lane_of_call(what.what(), what.at);
    if (stream_->arbiter() == nullptr) return Backend::run(*state_, meets, limit_, what);
    const turn mine(*this, meets, what);
    Backend::run(*state_, meets, limit_, what);
  }
  [[nodiscard]] pending start_call(const op_call& what, const start_order& how) const {
    if (alone()) {
      const auto work = [number = stream_->number(), what](typename Backend::world_type& world) {
        single_rank::run(world, number, what);
      };
      return stream_->launch(what.what(), stream_->world(), work, what.uses(), how, limit_);
    }
    const auto work = [limit = limit_, what](state_type& state) { Backend::run(state, lane::stream, limit, what); };
    pending started = stream_->launch(what.what(), state_, work, what.uses(), how, limit_, meeting_in_stream(what),
                                      traced(what.what(), what.uses(), what.exchanged(), how));
    return what.what() == operation::exchange ? std::move(started) : noted(what.what(), how.at, std::move(started));
  }

 protected:
  // Under an arbiter: what an operation needs.
  [[nodiscard]] stream_meeting meeting(lane which, const op_call& what) const {
    const auto all = members();
    fnv1a key;
    for (int member : all) key.add(static_cast<std::uint64_t>(member));
    key.add(index(which));
    if (what.what() == operation::exchange) return {key.value(), {}, stream_->named_transfers(all, what.exchanged())};
    return {key.value(), all, {}};
  }
  /// A blocking call that has its turn: at once where no arbiter gives turns.
  class turn final : public arbitrated {
   public:
    turn(const basic_group& group, lane meets, const op_call& what = {})
        : arbitrated(group.stream_->number(), runner::host),
          arbiter_(group.alone() ? nullptr : group.stream_->arbiter()) {
      if (arbiter_ == nullptr) return;
      meeting_ = group.meeting(meets, what);
      arbiter_->add(*this);
      arbiter_->begin_call(*this);
    }
    ~turn() {
      if (arbiter_ == nullptr) return;
      arbiter_->end_call(*this);
      arbiter_->remove(*this);
    }
    [[nodiscard]] bool can_run() const noexcept override { return true; }
    [[nodiscard]] const stream_meeting* meets() const noexcept override { return &meeting_; }

   private:
    stream_arbiter* arbiter_;
    stream_meeting meeting_;
  };

  /// A blocking call of the rank: it has the rank to itself until it goes, and uses no buffer that is in flight.
  struct [[maybe_unused]] blocking_call {
    blocking_call(const basic_group& group, operation what, const buffer_use& buffers, const where& at)
        : entry(group.stream_->guard(), name(what), at) {
      group.stream_->expect_free(what, buffers, at);
      group.stream_->report_abandoned(at);
    }

    [[no_unique_address]] call_guard::scoped_entry entry;
  };

  /// Whether this is a group without state.
  [[nodiscard]] bool alone() const noexcept { return state_ == nullptr; }
  /// Of a group that is not alone.
  [[nodiscard]] state_type& state() const noexcept { return *state_; }
  /// The lane of a blocking collective `what`, whose turn it is once what the rank has started is over.
  [[nodiscard]] lane lane_of_call(operation what, const where& at) const {
    const lane meets = state_->collectives().blocking();
    if (meets == lane::stream) stream_->wait_until_idle(what, at);
    return meets;
  }
  [[nodiscard]] duration limit() const noexcept { return limit_; }

 private:
  [[nodiscard]] stream_meeting meeting_in_stream(const op_call& what = {}) const {
    return stream_->arbiter() == nullptr ? stream_meeting{} : meeting(lane::stream, what);
  }
  [[nodiscard]] operation_spans traced(operation what, const buffer_use& buffers, std::span<const p2p> transfers,
                                       const start_order& how) const {
    span_log* const log = stream_->spans();
    if (log == nullptr || how.is_traced_elsewhere) return {};
    return add_started(*log, what, members(), buffers, transfers, how);
  }
  [[nodiscard]] pending noted(operation what, const where& at, pending started) const {
    if (state_->collectives().note_started()) [[unlikely]]
      Backend::tell_first_start(*state_, what, at);
    return started;
  }

  std::shared_ptr<state_type> state_;
  int rank_;
  duration limit_;
  std::shared_ptr<stream_type> stream_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/basic_group.ipp"  // IWYU pragma: export
#endif
