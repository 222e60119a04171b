// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks, of whatever backend: a handle over what the backend implements, and a rehearsal is one of them.
// Its abilities are asked when a program runs, so that one compiled body serves threads, processes, MPI and devices.
//
//   belay::host::world{4}.run([](belay::host::rank& rank) {
//     const belay::group world = rank.world();
//     std::vector<float> loss(1, static_cast<float>(world.rank()));
//     world.all_reduce(std::span(loss), belay::sum);  // 6 on every rank
//   });
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
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

namespace belay::inline BELAY_ABI {

/// A backend's own group: runs and starts what was checked. Its calls are asked for before its copies, because a class
/// that is made of a group would be asked for this again.
template <class G>
concept backend_group = requires(const G& g, const op_call& call, const start_order& how) {
  g.run_call(call);
  { g.start_call(call, how) } -> std::same_as<pending>;
  { g.members() } -> std::convertible_to<std::span<const int>>;
} && communicator<G>;

/// The implementation over a backend's group (comm/typed_group.hpp).
template <class G>
class typed_group;

/// One rank's handle onto an ordered set of ranks. Copies are the same handle. Belongs to the rank's thread, and to the
/// body that the world runs. What a backend does not offer is a usage_error of the call, on every rank that calls it.
class group : public group_operations<group> {
 public:
  /// Of a backend's implementation, which is not null.
  explicit group(std::shared_ptr<group_interface> of) noexcept : of_(std::move(of)) {}
  /// Of a backend's group: `const belay::group world = rank.world();`
  template <class G>
    requires(!std::same_as<G, group> && backend_group<G>)
  group(G of) : of_(std::make_shared<typed_group<G>>(std::move(of))) {}

  /// This rank's number in the group; in a rehearsal a question of the body, which `unasked_rank` is not.
  [[nodiscard]] int rank() const { return of_->rank(); }
  [[nodiscard]] int unasked_rank() const noexcept { return of_->unasked_rank(); }
  [[nodiscard]] int size() const noexcept { return of_->size(); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const { return of_->members(); }
  /// The abilities and promises of the group.
  [[nodiscard]] group_traits traits() const noexcept { return of_->traits(); }

  /// A handle onto the group whose calls wait `timeout` for peers instead of the world's timeout. Throws usage_error.
  [[nodiscard]] group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    return group(of_->within(timeout, at));
  }
  /// The group of the same ranks for memory of the host: votes, norms, counts, hashes.
  [[nodiscard]] const group& control() const {
    const group* const control_group = of_->control();
    return control_group == nullptr ? *this : *control_group;
  }
  /// Copies between the host and the device whose memory this group's buffers are; null where they are the host's.
  [[nodiscard]] group_memory* device() const { return of_->device(); }

  /// Starts `work(calls)`, `calls` a `group_calls`: host work and blocking operations of this group, which its stream
  /// runs as one, in its turn. All ranks of the group start the same. `what` names it in messages.
  template <std::invocable<const group_calls&> Work>
  [[nodiscard]] pending start_composite(operation what, const Work& work,
                                        const start_order& how = where::current()) const {
    return of_->start_composite(what, borrowed_work<const group_calls&>::of(work), how);
  }
  /// Starts `work()`: host work of this rank alone, which its stream runs in its turn. Throws usage_error where
  /// buffers are a device's, which `device_group` starts work on.
  template <std::invocable Work>
  [[nodiscard]] pending start_local(operation what, const Work& work, const start_order& how = where::current()) const {
    if (traits().on_device)
      throw usage_error("work of a rank alone is started on the streams of its device: this group's buffers are there",
                        how.at);
    const auto run = [work](void*) { work(); };
    return of_->start_local(what, borrowed_work<void*>::of(run), how);
  }
  /// For `device_group`: starts `work(stream)`, which queues kernels and copies of this rank alone.
  [[nodiscard]] pending start_on_device(operation what, const borrowed_work<void*>& work,
                                        const start_order& how) const {
    return of_->start_local(what, work, how);
  }
  /// Memory of `bytes` on every rank; collective, the same size everywhere. See `group_traits` for who addresses it.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    return of_->make_symmetric(bytes, at);
  }

  /// Operations of this rank in all of its groups are spans of `log` from now on; null: of none. It outlives what is
  /// started meanwhile.
  void trace_into(span_log* log, where at = where::current()) const { of_->trace_into(log, at); }

  /// Checked builds: has the rank to itself until it goes, for `what`, which lives as long. Throws usage_error.
  [[nodiscard]] call_guard::scoped_entry checked_call(const char* what, const where& at) const {
    return {of_->guard(), what, at};
  }

  /// The backend's group, for what it alone can do: `group.backend<belay::host::group>()`. Null where this group is one
  /// of another backend, or of a rehearsal.
  template <class G>
  [[nodiscard]] const G* backend() const noexcept {
    const auto* const typed = dynamic_cast<const typed_group<G>*>(of_.get());
    return typed == nullptr ? nullptr : &typed->of();
  }

  /// Its blocking operations as those of a composite, for work that is written once for both; this outlives them.
  [[nodiscard]] group_calls calls() const noexcept { return {*of_, of_->unasked_rank(), of_->size()}; }
  /// Runs, and starts, an operation that was checked (see `check_call`).
  void run_call(const op_call& call) const { of_->run(call); }
  [[nodiscard]] pending start_call(const op_call& call, const start_order& how) const { return of_->start(call, how); }

 private:
  std::shared_ptr<group_interface> of_;
};

/// The ranks that a heap of a group is made of: all of them, where they reach each other's memory; or, where its ranks
/// have a device each and address no peer, a group of this rank alone, whose symmetric memory is that of its device and
/// which starts nothing.
///
///   belay::symmetric_heap windows(belay::ranks_of_heap(mesh.expert()), {.bytes = 1 << 20});
[[nodiscard]] BELAY_DECL group ranks_of_heap(const group& of);

}  // namespace belay::inline BELAY_ABI

#include "belay/comm/typed_group.hpp"  // IWYU pragma: export

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/group.ipp"  // IWYU pragma: export
#endif
