// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks over NCCL: the handle that user code calls. Its buffers are memory of the device. What is started is
// queued on the rank's communication stream; a stream of the device waits for it on the device.
//
//   const auto& group = mesh.replicas();
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(kit.stream().record()));
//   std::move(sum).then(kit.stream());  // kernels from here on find the sum; the host waits for nothing
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/backend/nccl/channel.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/backend/nccl/operations.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// The operations of a group of one rank: copies on its communication stream. NCCL takes no part. Runs what was
/// checked; throws usage_error for an exchange that does not fit.
template <cuda::device_api Api>
class single_rank_operations {
 public:
  /// Of rank `number` of the world, on stream `on`, which outlives it.
  single_rank_operations(cuda::stream<Api>& on, int number, where at) noexcept : on_(&on), number_(number), at_(at) {}

  /// Queues the copies of `call`.
  void run(const op_call& call) const {
    if (call.what() == operation::exchange) return exchange(call.exchanged());
    if (call.in != call.out && call.in_count > 0) on_->copy(call.out, call.in, call.in_bytes(), at_);
  }

 private:
  // The n-th send of the rank to itself meets its n-th receive.
  void exchange(std::span<const p2p> transfers) const {
    const auto next = [&](std::size_t from, p2p::direction kind) {
      while (from < transfers.size() && transfers[from].kind != kind) ++from;
      return from;
    };
    std::size_t out = next(0, p2p::direction::send), in = next(0, p2p::direction::receive);
    for (; out < transfers.size() && in < transfers.size();
         out = next(out + 1, p2p::direction::send), in = next(in + 1, p2p::direction::receive)) {
      if (transfers[out].bytes != transfers[in].bytes) break;
      if (transfers[out].bytes > 0) on_->copy(transfers[in].data, transfers[out].data, transfers[out].bytes, at_);
    }
    if (out != in)
      throw usage_error(
          "exchange: what rank " + std::to_string(number_) + " sends itself is not what it expects of itself", at_);
  }

  cuda::stream<Api>* on_;
  int number_;
  where at_;
};

/// Memory of a rank's device that no peer addresses: what a group over NCCL has for heaps, as of a rank alone. What
/// peers send is received into it. Belongs to the rank's thread.
template <cuda::device_api Api, nccl_api N>
class local_memory {
 public:
  /// Memory of the device of `in`.
  explicit local_memory(std::shared_ptr<channel<Api, N>> in) noexcept : channel_(std::move(in)) {}

  /// One of one, with nobody to wait for.
  [[nodiscard]] static constexpr int rank() noexcept { return 0; }
  [[nodiscard]] static constexpr int size() noexcept { return 1; }
  static void barrier(where = where::current()) noexcept {}

  /// `bytes` of the device, of zeros; they are freed with the last copy, and the device outlives that. Throws
  /// backend_error.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    using memory_type = cuda::device_memory<Api>;
    auto held = std::make_unique<memory_type>(channel_->device(), leased_size(bytes), at);
    channel_->calls().each(held->size_bytes() / sizeof(std::uint64_t),
                           kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(held->data()), 0}, at);
    const auto release = [](void* last) noexcept { delete static_cast<memory_type*>(last); };
    std::byte* const first = held->data();
    const std::size_t size = held->size_bytes();
    return symmetric_region::adopt(1, size, first, held.release(), release);
  }

 private:
  std::shared_ptr<channel<Api, N>> channel_;
};

/// One rank's part in a group that is not of this rank alone.
template <nccl_api N>
struct group_state {
  typename N::communicator_type on{};  ///< a child of the rank's parent
  std::vector<int> members;            ///< ranks of the world, in group order
  int rank = 0;                        ///< this one's, in the group
  std::uint32_t number = 0;            ///< of the rank's groups; 0 is the world
  std::uint64_t operations = 0;        ///< started so far
};

/// Collectives, and grouped transfers between pairs. All ranks of the group call the same ones in the same order with
/// the same sizes: NCCL checks none of that, and one that differs ends at its time-out. Copies are the same handle. A
/// blocking call is one that is started and waited for; what fills its buffers must be over before, or be in the order
/// of the rank's communications. Counts and transfers are read by the call, not later.
template <cuda::device_api Api, nccl_api N, sums Sums, communicator Control>
class group : public group_operations<group<Api, N, Sums, Control>> {
 public:
  /// Where they are of `sums::fixed_order`.
  static constexpr bool sums_in_rank_order = Sums == sums::fixed_order;
  /// Of memory that is no window: NCCL reduces each element once for all ranks.
  static constexpr bool sums_alike = true;
  static constexpr bool has_varying_counts = true;
  /// Operations that are started while a stream of the device is captured are in the graph.
  static constexpr bool is_captured = true;
  /// Buffers of its operations are memory of the device: NCCL is given no other.
  static constexpr bool takes_device_memory_alone = true;
  using channel_type = channel<Api, N>;
  using control_type = Control;
  using duration = std::chrono::steady_clock::duration;

  /// `state` is null for the group of this rank alone; `control` is the group of the same ranks in the control world.
  group(std::shared_ptr<channel_type> in, std::shared_ptr<group_state<N>> state, Control control, duration limit)
      : channel_(std::move(in)), state_(std::move(state)), control_(std::move(control)), limit_(limit) {}

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return alone() ? 0 : state_->rank; }
  /// How many ranks it has.
  [[nodiscard]] int size() const noexcept { return alone() ? 1 : static_cast<int>(state_->members.size()); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const noexcept {
    return alone() ? std::span<const int>(&channel_->number(), 1) : std::span<const int>(state_->members);
  }
  /// The group of the same ranks for memory of the host.
  [[nodiscard]] const Control& control() const noexcept { return control_; }
  /// A handle onto the group whose operations end after `timeout` instead of the world's timeout. Throws usage_error.
  [[nodiscard]] group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    group out = *this;
    out.control_ = control_.within(timeout, at);
    out.limit_ = checked_timeout(timeout, at);
    return out;
  }

  /// Runs f(0) ... f(count - 1) on the device; returns when they are over. What streams have queued is not waited for.
  template <kernel::indexed F>
  void each(std::size_t count, const F& f, where at = where::current()) const {
    channel_->calls().each(count, f, at);
  }
  /// Copies from memory of the device to that of the host, and `place` the other way; each returns when that is over.
  /// Work that streams have queued is not waited for.
  void fetch(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    channel_->calls().fetch(to, from, bytes, at);
  }
  /// Copies to the host what is there when `how` lets a communication begin: the host waits for that event alone.
  /// Throws the rank's first cause, as a wait does.
  void fetch(void* to, const void* from, std::size_t bytes, const start_order& how) const {
    cuda::device_calls<Api>& calls = channel_->calls();
    calls.expect_no_capture("what the host reads, such as counts of experts on several ranks,", how.at);
    try {
      if (how.event.source() != nullptr) calls.stream().wait(how.event, how.at);
      calls.fetch(to, from, bytes, how.at);
    } catch (const backend_error& problem) {
      channel_->fail(problem);
      throw;
    }
    channel_->look();
    const std::uint64_t next = alone() ? 0 : state_->operations;
    channel_->expect_alive({operation::exchange, alone() ? 0 : state_->number, next, bytes, how.at});
  }
  void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    channel_->calls().place(to, from, bytes, at);
  }
  /// The stream of such kernels and copies, on which a caller waits for what it queues. Throws usage_error while a
  /// graph is captured.
  [[nodiscard]] cuda::stream<Api>& stream_of_calls(where at = where::current()) const {
    return channel_->calls().stream_for_kernels(at);
  }
  /// Memory of the device for what such a kernel tells the host.
  [[nodiscard]] std::span<std::byte> scratch() const noexcept { return channel_->calls().scratch(); }

  /// Memory of this rank alone, for a heap: peers send into it.
  [[nodiscard]] nccl::local_memory<Api, N> local_memory() const noexcept {
    return nccl::local_memory<Api, N>(channel_);
  }

  /// Operations of the rank's groups are spans of `log` from now on, with the device's times; null: of none. Waits for
  /// all that is queued. Between steps. Throws backend_error.
  void trace_into(span_log* log, where at = where::current()) const
    requires cuda::timing_api<Api>
  {
    channel_->stream().trace_into(log, at);
  }

  /// The calls of a composite, which queues them as one: kernels and operations.
  template <class Queue>
  class queued_calls : public group_operations<queued_calls<Queue>> {
   public:
    /// For `start_composite`.
    queued_calls(const group& of, const Queue& queue, call_site& site) noexcept
        : of_(&of), queue_(&queue), site_(&site) {}
    /// This rank's number in the group, and the group's size.
    [[nodiscard]] int rank() const noexcept { return of_->rank(); }
    [[nodiscard]] int size() const noexcept { return of_->size(); }
    /// The operations of the same ranks for memory of the host.
    [[nodiscard]] const Control& control() const noexcept { return of_->control(); }
    /// The stream of what the rank has started.
    [[nodiscard]] cuda::stream<Api>& stream() const noexcept { return of_->in().stream(); }
    /// Queues f(0) ... f(count - 1).
    template <kernel::indexed F>
    void each(std::size_t count, const F& f) const {
      stream().each(count, f);
    }
    /// Queues a team for each row.
    template <kernel::cooperative G>
    void teams(std::size_t count, const G& g) const {
      stream().teams(count, g, site_->at);
    }
    /// Queues a copy between places of the device, and one from memory of the host, which is free when it returns.
    void copy(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
      stream().copy(to, from, bytes, at);
    }
    void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
      channel_type& in = of_->in();
      in.calls().expect_no_capture("what the host places, such as counts of experts on several ranks,", at);
      in.calls().placed().place(in.stream(), to, from, bytes, at, [&] {
        in.stream().synchronize(at);
        in.expect_alive(*site_);
      });
    }

    /// Queues an operation that was checked.
    void run_call(const op_call& call) const {
      site_->bytes += expect_queueable(call, of_->rank());
      queue_call<Sums>(*queue_, call);
    }

   private:
    const group* of_;
    const Queue* queue_;
    call_site* site_;
  };

  /// Starts `work(calls)`, which queues kernels and operations of this group as one. It is called at once, by this
  /// thread, and does not address the memory of the device; what it asks of `calls.control()` waits for the other
  /// ranks here. `what` names it in messages.
  template <class Work>
  [[nodiscard]] pending start_composite(operation what, const Work& work,
                                        const start_order& how = where::current()) const {
    return launch(what, {}, 0, {}, how, [&]<class Queue>(const Queue& queue, call_site& site) {
      work(queued_calls<Queue>(*this, queue, site));
    });
  }

  /// Whether it is the group of this rank alone.
  [[nodiscard]] bool alone() const noexcept { return state_ == nullptr; }
  /// Of a group that is not alone: its communicator.
  [[nodiscard]] typename N::communicator_type communicator() const noexcept { return state_->on; }
  /// The rank's communication stream, which it shares with all groups of the rank.
  [[nodiscard]] channel_type& in() const noexcept { return *channel_; }

  /// Runs, and starts, an operation that was checked (see `check_call`). A blocking call uses no buffer that is in
  /// flight.
  void run_call(const op_call& call) const {
    channel_->calls().expect_no_capture(name(call.what()), call.at);
    channel_->expect_free(call.what(), call.uses(), call.at);
    start_call(call, call.at).wait(call.at);
  }
  [[nodiscard]] pending start_call(const op_call& call, const start_order& how) const {
    const std::size_t bytes = expect_queueable(call, rank());
    return launch(call.what(), call.uses(), bytes, call.exchanged(), how,
                  [&](const auto& queue, call_site&) { queue_call<Sums>(queue, call); });
  }

 private:
  template <class Queue>
  [[nodiscard]] pending launch(operation what, const buffer_use& buffers, std::size_t bytes,
                               std::span<const p2p> transfers, const start_order& how, const Queue& queue) const {
    if (alone()) {
      const call_site site{what, 0, channel_->next_alone(), bytes, how.at};
      return channel_->launch(site, buffers, how, limit_, [&](call_site& told) {
        queue(single_rank_operations<Api>(channel_->stream(), channel_->number(), how.at), told);
      });
    }
    const call_site site{what, state_->number, state_->operations++, bytes, how.at};
    return channel_->launch(site, buffers, how, limit_, [&](call_site& told) {
      span_log* const log = channel_->stream().spans();
      const queued_span timed(channel_->stream(), log == nullptr
                                                      ? nullptr
                                                      : add_operation(*log, span_lane::communication, what,
                                                                      control_.members(), buffers, transfers, how.at));
      queue(operations<Api, N>(*channel_, state_->on, state_->rank, size(), how.at), told);
    });
  }

  std::shared_ptr<channel_type> channel_;
  std::shared_ptr<group_state<N>> state_;
  Control control_;
  duration limit_;
};

}  // namespace belay::inline BELAY_ABI::nccl
