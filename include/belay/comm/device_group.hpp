// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group whose buffers are memory of a device, for who queues kernels between its operations: a `belay::group`, of
// whatever backend, and the type of the device's streams, for which kernels are compiled.
//
//   const belay::device_group<stream_type> replicas = mesh.replicas();
//   replicas.each(count, kernel);  // over when it returns
//   replicas.start_composite(belay::operation::all_reduce, [=](const auto& calls) {
//     calls.each(count, kernel);   // queued before the sum
//     calls.all_reduce(gradients, belay::sum);
//   });
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <span>
#include <typeinfo>
#include <utility>

#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"

namespace belay::inline BELAY_ABI {

/// Throws usage_error where `memory` is no device's, or one with streams of another type.
template <device_stream Stream>
void expect_streams(const group_memory* memory, where at) {
  if (memory == nullptr || memory->stream_type() != typeid(Stream))
    throw usage_error("kernels are queued on another device than that of the group: make both of one world", at);
}
/// The stream of `memory` for kernels. Throws usage_error as above.
template <device_stream Stream>
[[nodiscard]] Stream& stream_for_kernels(group_memory* memory, where at) {
  expect_streams<Stream>(memory, at);
  return *static_cast<Stream*>(memory->stream(at));
}

/// Operations of a group and kernels, which a composite queues on a device in one order.
template <device_stream Stream>
class device_group_calls : public group_operations<device_group_calls<Stream>> {
 public:
  /// Of a composite's calls, which outlive it.
  device_group_calls(const group_calls& of, where at)
      : of_(&of), stream_(&stream_for_kernels<Stream>(of.device(), at)) {}

  /// This rank's number in the group, and how many it has.
  [[nodiscard]] int rank() const noexcept { return of_->rank(); }
  [[nodiscard]] int size() const noexcept { return of_->size(); }
  /// The operations of the same ranks for memory of the host.
  [[nodiscard]] const group_calls& control() const noexcept { return of_->control(); }
  /// Queue f(0) ... f(count - 1), a team for each row, and a copy between places of the device.
  template <class F>
  void each(std::size_t count, const F& f) const {
    stream_->each(count, f);
  }
  template <class G>
  void teams(std::size_t count, const G& g) const {
    stream_->teams(count, g);
  }
  void copy(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    stream_->copy(to, from, bytes, at);
  }
  /// Copies to memory of the host what this composite has made, and waits for that alone. Throws usage_error where the
  /// host waits for nothing that a composite queues, as over NCCL.
  void fetch(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    of_->device()->fetch(to, from, bytes, at);
  }
  /// Queues a copy to memory of the device; `from` is free when it returns.
  void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    of_->device()->place(to, from, bytes, at);
  }
  /// Queues an operation that was checked.
  void run_call(const op_call& call) const { of_->run_call(call); }

 private:
  const group_calls* of_;
  Stream* stream_;
};

/// One rank's handle onto an ordered set of ranks, whose buffers are memory of a device with streams of type `Stream`.
/// Copies are the same handle; it is made of a `group` wherever one is asked for.
template <device_stream Stream>
class device_group : public group_operations<device_group<Stream>> {
 public:
  using control_type = group;

  /// Of a group over memory of a device; one without is a usage_error where kernels are queued. (A template, so that a
  /// copy of this is not asked whether it could be a group.)
  template <std::same_as<group> G>
  device_group(G of) noexcept : of_(std::move(of)) {}

  /// This rank's number in the group, and how many it has.
  [[nodiscard]] int rank() const { return of_.rank(); }
  [[nodiscard]] int unasked_rank() const noexcept { return of_.unasked_rank(); }
  [[nodiscard]] int size() const noexcept { return of_.size(); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const { return of_.members(); }
  /// The abilities and promises of the group.
  [[nodiscard]] group_traits traits() const noexcept { return of_.traits(); }
  /// A handle onto the group whose calls wait `timeout` for peers. Throws usage_error.
  [[nodiscard]] device_group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    return of_.within(timeout, at);
  }
  /// The group of the same ranks for memory of the host.
  [[nodiscard]] const group& control() const { return of_.control(); }

  /// Runs f(0) ... f(count - 1) on the device; returns when they are over. What streams have queued is not waited for.
  template <class F>
  void each(std::size_t count, const F& f, where at = where::current()) const {
    Stream& queue = stream_for_kernels<Stream>(of_.device(), at);
    queue.each(count, f);
    queue.synchronize(at);
  }
  /// Copies to memory of the host what is there when `how` lets a communication begin, and `place` to the device; each
  /// returns when that is over.
  void fetch(void* to, const void* from, std::size_t bytes, const start_order& how = where::current()) const {
    of_.device()->fetch(to, from, bytes, how);
  }
  void place(void* to, const void* from, std::size_t bytes, where at = where::current()) const {
    of_.device()->place(to, from, bytes, at);
  }
  /// Memory of the device for what such a kernel tells the host.
  [[nodiscard]] std::span<std::byte> scratch() const { return of_.device()->scratch(); }

  /// Starts `work(calls)`, `calls` a `device_group_calls`, which queues kernels and operations of this group as one, in
  /// its turn. All ranks of the group start the same. `what` names it in messages.
  template <std::invocable<const device_group_calls<Stream>&> Work>
  [[nodiscard]] pending start_composite(operation what, const Work& work,
                                        const start_order& how = where::current()) const {
    return of_.start_composite(
        what, [work](const group_calls& calls) { work(device_group_calls<Stream>(calls, where::current())); }, how);
  }
  /// Starts `work(stream)`, which queues kernels and copies of this rank alone, in its turn. Throws usage_error where
  /// `traits().starts_local_work` is false.
  template <std::invocable<Stream&> Work>
  [[nodiscard]] pending start_local(operation what, const Work& work, const start_order& how = where::current()) const {
    const auto run = [work](void* stream) { work(*static_cast<Stream*>(stream)); };
    expect_streams<Stream>(of_.device(), how.at);
    return of_.start_on_device(what, borrowed_work<void*>::of(run), how);
  }

  /// Memory of `bytes` of the device on every rank; collective, the same size everywhere.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    return of_.make_symmetric(bytes, at);
  }
  /// Operations of this rank in all of its groups are spans of `log` from now on; null: of none.
  void trace_into(span_log* log, where at = where::current()) const { of_.trace_into(log, at); }
  /// Checked builds: has the rank to itself until it goes, for `what`, which lives as long. Throws usage_error.
  [[nodiscard]] call_guard::scoped_entry checked_call(const char* what, const where& at) const {
    return of_.checked_call(what, at);
  }
  /// Runs, and starts, an operation that was checked (see `check_call`).
  void run_call(const op_call& call) const { of_.run_call(call); }
  [[nodiscard]] pending start_call(const op_call& call, const start_order& how) const {
    return of_.start_call(call, how);
  }

 private:
  group of_;
};

/// The type of groups of a rank that computes with `Kit`: those of a device have its streams.
template <class Group, class Kit>
struct group_with_kit {
  using type = Group;
};
template <class Kit>
  requires device_stream<typename Kit::stream_type>
struct group_with_kit<group, Kit> {
  using type = device_group<typename Kit::stream_type>;
};

}  // namespace belay::inline BELAY_ABI
