// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A communicator of ranks that are threads of one process and share a device. Buffers are memory of that device. What
// is started begins after an event of any stream, and a stream waits for its end: the host waits for peers alone.
//
//   const auto& world = rank.world();
//   belay::pending sum = world.start_all_reduce(grads, belay::sum, belay::after(kit.stream().record()));
//   std::move(sum).then(kit.stream());  // kernels from here on find the sum
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/cuda/communication_order.hpp"
#include "belay/backend/cuda/group_member.hpp"
#include "belay/backend/cuda/shared_collectives.hpp"
#include "belay/backend/cuda/shared_group.hpp"
#include "belay/backend/cuda/shared_transfers.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// One rank's handle onto an ordered set of ranks. Copies are the same handle. Belongs to the rank's thread. Host
/// memory is no buffer of it: that travels on `control()`, the group of the same ranks in the control world.
/// A blocking operation reads buffers as they are when it is called, whatever streams have queued, and returns when the
/// device has done it.
template <device_api Api, control_rank ControlRank>
class group : public group_operations<group<Api, ControlRank>> {
 public:
  /// The group's promises (comm/communicator.hpp): sums are added in rank order, and parts may differ in size.
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
  /// Host threads meet in each operation: no graph has that.
  static constexpr bool meets_on_host = true;
  using member_type = group_member<Api, ControlRank>;
  using order_type = communication_order<Api>;
  using control_type = typename ControlRank::group_type;
  using duration = std::chrono::steady_clock::duration;

  /// For `rank`: `control` is the group of the same ranks in the control world.
  group(std::shared_ptr<member_type> member, control_type control, std::shared_ptr<order_type> order)
      : member_(std::move(member)),
        control_(std::move(control)),
        order_(std::move(order)),
        limit_(member_->world().timeout()) {}

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return static_cast<int>(member_->rank()); }
  [[nodiscard]] int size() const noexcept { return member_->size(); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const noexcept { return member_->members(); }
  /// The group of the same ranks for host memory, in the control world.
  [[nodiscard]] const control_type& control() const noexcept { return control_; }

  /// Runs f(0) ... f(count - 1) on the device; returns when they are over. What streams have queued is not waited for.
  template <kernel::indexed F>
  void each(std::size_t count, const F& f, where at = where::current()) const {
    order_->of_calls().each(count, f, at);
  }
  /// Copies from memory of the device to that of the host, and `place` the other way; each returns when that is over.
  /// Work that streams have queued is not waited for.
  void fetch(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    order_->of_calls().fetch(to, from, bytes, at);
  }
  void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    order_->of_calls().place(to, from, bytes, at);
  }
  /// The stream of such kernels and copies, on which a caller waits for what it queues. Throws usage_error while a
  /// graph is captured.
  [[nodiscard]] cuda::stream<Api>& stream_of_calls(where at = where::current()) const {
    return order_->of_calls().stream_for_kernels(at);
  }
  /// Memory of the device for what such a kernel tells the host.
  [[nodiscard]] std::span<std::byte> scratch() const noexcept { return order_->of_calls().scratch(); }

  /// Operations of all groups of the rank are spans of `log` from now on: those that are started as the device runs
  /// them, calls by the host's clock; null: of none. Between steps. Throws backend_error.
  void trace_into(span_log* log, where at = where::current()) const
    requires timing_api<Api>
  {
    order_->trace_into(log, at);
  }

  /// Memory of `bytes` of the device for every rank, of zeros, which all of them address; collective, the same size
  /// everywhere. It is freed when the last rank's is gone.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    run_call(op_call::make_symmetric(bytes, at));
    shared_group<Api>& shared = member_->shared();
    if (rank() == 0)
      shared.give_all(std::make_shared<shared_parts<Api>>(order_->of_calls().stream(), size(), bytes, at));
    control_.barrier(at);
    return shared_parts<Api>::region_of(shared.take_given(member_->rank()));
  }

  /// A handle onto the group whose calls wait `timeout` for peers instead of the world's timeout. Throws usage_error.
  [[nodiscard]] group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    group out = *this;
    out.control_ = control_.within(timeout, at);
    out.limit_ = checked_timeout(timeout, at);
    return out;
  }

  /// The calls of a composite, which queues them in the order of the rank's started communications: kernels, copies and
  /// operations.
  template <class Calls>
  class stream_calls : public group_operations<stream_calls<Calls>> {
   public:
    /// For `start_composite`.
    stream_calls(member_type& member, order_type& order, cuda::stream<Api>& stream, const Calls& calls,
                 duration limit) noexcept
        : member_(&member), order_(&order), stream_(&stream), calls_(&calls), limit_(limit) {}
    /// This rank's number in the group, and the group's size.
    [[nodiscard]] int rank() const noexcept { return static_cast<int>(member_->rank()); }
    [[nodiscard]] int size() const noexcept { return member_->size(); }
    /// The operations of the same ranks for memory of the host.
    [[nodiscard]] const Calls& control() const noexcept { return *calls_; }
    /// The stream of what the rank has started.
    [[nodiscard]] cuda::stream<Api>& stream() const noexcept { return *stream_; }
    /// Queue f(0) ... f(count - 1), and a team for each row.
    template <kernel::indexed F>
    void each(std::size_t count, const F& f) const {
      stream_->each(count, f);
    }
    template <kernel::cooperative G>
    void teams(std::size_t count, const G& g) const {
      stream_->teams(count, g);
    }
    /// Copies to memory of the host what this stream has made, and waits for that alone.
    void fetch(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
      order_->fetch(to, from, bytes, at);
    }
    /// Queues a copy to memory of the device; `from` is free when it returns.
    void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
      order_->place(to, from, bytes, at);
    }

    /// Queues an operation that was checked.
    void run_call(const op_call& call) const {
      expect_device_type(call);
      group::run_in(*member_, *stream_, *calls_, lane::stream, limit_, call);
    }

   private:
    member_type* member_;
    order_type* order_;
    cuda::stream<Api>* stream_;
    const Calls* calls_;
    duration limit_;
  };

  /// Starts `work(calls)`, which queues kernels and operations of this group as one, in its turn; it runs on the host
  /// and does not address the memory of the device. All ranks of the group start the same. `work` is small and
  /// trivially copyable; `what` names it in messages.
  template <class Work>
  [[nodiscard]] pending start_composite(operation what, const Work& work,
                                        const start_order& how = where::current()) const {
    const auto run = [member = member_.get(), order = order_.get(), work, limit = limit_]<class Calls>(
                         cuda::stream<Api>& stream, const Calls& calls) {
      work(stream_calls<Calls>(*member, *order, stream, calls, limit));
    };
    member_->note_started();
    return order_->start(what, control_, member_, run, {}, how, traced(what, {}, {}, how));
  }
  /// Starts `work(stream)`, which queues kernels and copies of this rank alone, in its turn: small and trivially
  /// copyable.
  template <std::invocable<cuda::stream<Api>&> Work>
  [[nodiscard]] pending start_local(operation what, const Work& work, const start_order& how = where::current()) const {
    return order_->start_local(what, control_, work, how);
  }

  /// Runs, and starts, an operation that was checked (see `check_call`).
  void run_call(const op_call& call) const {
    const operation what = call.what();
    expect_device_type(call);
    order_->expect_no_capture(name(what), call.at);
    static_cast<void>(control_.checked_call(name(what), call.at));  // (a barrier is a call of its own)
    order_->expect_free(what, call.uses(), call.at);
    order_->report_abandoned(call.at);
    if (member_->world().aborted()) member_->raise(what, call.at);
    span_log* const log = order_->spans();
    const span_timer timed(
        log == nullptr ? nullptr
                       : add_operation(*log, span_lane::host, what, members(), call.uses(), call.exchanged(), call.at));
    // Collectives of a group have one order; transfers that of who calls them.
    if (what != operation::exchange && member_->has_started()) order_->wait_until_queued(call.at);
    cuda::stream<Api>& stream = order_->of_calls().stream();
    run_in(*member_, stream, control_, lane::caller, limit_, call);
    stream.synchronize(call.at);
  }
  [[nodiscard]] pending start_call(const op_call& call, const start_order& how) const {
    expect_device_type(call);
    const auto run = [member = member_.get(), limit = limit_, call](cuda::stream<Api>& stream, const auto& calls) {
      run_in(*member, stream, calls, lane::stream, limit, call);
    };
    member_->note_started();
    return order_->start(call.what(), control_, member_, run, call.uses(), how,
                         traced(call.what(), call.uses(), call.exchanged(), how));
  }

 private:
  template <class Calls>
  static void run_in(member_type& member, cuda::stream<Api>& stream, const Calls& calls, lane of, duration limit,
                     const op_call& call) {
    if (call.what() == operation::exchange)
      shared_transfers<Api, ControlRank>(member, stream, of, limit, call.at).run(call.exchanged());
    else
      collectives::run(shared_rounds<Api, ControlRank, Calls>(member, stream, calls, call.at), call);
  }

  [[nodiscard]] operation_spans traced(operation what, const buffer_use& buffers, std::span<const p2p> transfers,
                                       const start_order& how) const {
    span_log* const log = order_->spans();
    return log == nullptr ? operation_spans{} : add_started(*log, what, members(), buffers, transfers, how);
  }

  std::shared_ptr<member_type> member_;
  control_type control_;
  std::shared_ptr<order_type> order_;
  duration limit_;
};

}  // namespace belay::inline BELAY_ABI::cuda
