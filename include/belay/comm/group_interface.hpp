// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The interface that a backend implements so that its ranks can be those of a `belay::group`: operations on bytes,
// which were checked before, promises of them, and work that a call is lent and keeps until its turn. A new capability
// is a new trait and a function with a default.
//
//   class my_group final : public belay::group_interface { /* run, start, ... */ };
//   const belay::group world(std::make_shared<my_group>(...));
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <typeinfo>

#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
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

/// Bytes of the largest closure that is started.
inline constexpr std::size_t composite_room = 288;

/// Work of any type that is lent to a call, whose code does not know it: refers to a closure that outlives it.
template <class... Arguments>
struct borrowed_work {
  const void* object;                                      ///< the closure
  std::size_t bytes;                                       ///< its size
  void (*call)(const void* copy, Arguments... arguments);  ///< runs a copy of it

  /// Lends `work`, which does not compile where it is too large to be copied or not copied byte by byte.
  template <class Work>
  [[nodiscard]] static borrowed_work of(const Work& work) noexcept {
    static_assert(
        std::is_trivially_copyable_v<Work> && sizeof(Work) <= composite_room && alignof(Work) <= 16,
        "belay: what a composite runs is kept until its turn: let it capture at most 288 bytes that can be copied "
        "byte by byte, such as pointers, spans and numbers");
    return {std::addressof(work), sizeof(Work),
            [](const void* copy, Arguments... arguments) { (*static_cast<const Work*>(copy))(arguments...); }};
  }
};

/// The copy of one in what the call queues, without an allocation. Trivially copyable.
template <class... Arguments>
class kept_work {
 public:
  /// Copies the closure that `of` refers to.
  explicit kept_work(const borrowed_work<Arguments...>& of) noexcept : call_(of.call) {
    std::memcpy(storage_, of.object, of.bytes);
  }
  /// Runs the copy.
  void operator()(Arguments... arguments) const { call_(storage_, arguments...); }

 private:
  alignas(16) std::byte storage_[composite_room];
  void (*call_)(const void* copy, Arguments... arguments);
};

class group;

/// The abilities and the promises of a group.
struct group_traits {
  /// No byte moves, and memory that it is given may be addresses without pages.
  bool rehearsed = false;
  /// Sums, products and averages are added in rank order: equal bits on every such backend and from every operation.
  bool sums_in_rank_order = false;
  /// All ranks get the same bits of one all_reduce, in whatever order it adds.
  bool sums_alike = false;
  /// Ranks may hold different numbers of elements: the operations whose names end in _v are offered.
  bool has_varying_counts = false;
  /// Work of this rank alone can be started; see `start_local` of `group`, and of `device_group`.
  bool starts_local_work = false;
  /// Peers' symmetric memory can be loaded and stored; or it is mirrored, by messages.
  bool addresses_peers = false, mirrors_peers = false;
  /// Memory of this rank alone can be made, into which peers send; see `ranks_of_heap`.
  bool has_local_memory = false;
  /// Buffers are memory of a device, which the host does not address; and no other memory will do.
  bool on_device = false, device_memory_alone = false;
  /// Host threads meet in each operation, so that no graph has it; or what is started under a capture is in the graph.
  bool meets_on_host = false, is_captured = false;
};

/// Whether a group takes no memory but that of a device.
template <class C>
[[nodiscard]] constexpr bool takes_device_memory_alone([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().device_memory_alone;
  else
    return requires { requires C::takes_device_memory_alone; };
}
/// Whether host threads of the ranks of a group meet in each operation.
template <class C>
[[nodiscard]] constexpr bool meets_on_host([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().meets_on_host;
  else
    return requires { requires C::meets_on_host; };
}
/// Whether an operation that a group starts while a stream is captured is in the graph.
template <class C>
[[nodiscard]] constexpr bool is_captured([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().is_captured;
  else
    return requires { requires C::is_captured; };
}

/// Throws usage_error with `sentence` where a group that tells its traits when it runs lacks one; of other groups a
/// static_assert with that sentence has asked.
template <class C>
void expect_promise([[maybe_unused]] const C& of, [[maybe_unused]] bool group_traits::* promise,
                    [[maybe_unused]] const char* sentence, [[maybe_unused]] where at) {
  if constexpr (tells_traits<C>)
    if (!(of.traits().*promise)) throw usage_error(sentence, at);
}

/// Runs the operations of a group where it is called.
class operation_runner {
 public:
  /// An operation that was checked. Throws comm_error.
  virtual void run(const op_call& call) = 0;

 protected:
  ~operation_runner() = default;
};

/// Copies between memory of the host and that of a group whose buffers are a device's, each of which returns when it is
/// done, and the stream for kernels.
class group_memory {
 public:
  /// To the host what is there when `how` lets a communication begin; and to the device.
  virtual void fetch(void* to, const void* from, std::size_t bytes, const start_order& how) = 0;
  virtual void place(void* to, const void* from, std::size_t bytes, where at) = 0;
  /// Memory of the device for what a kernel tells the host.
  [[nodiscard]] virtual std::span<std::byte> scratch() = 0;
  /// The type of the device's streams, for which kernels are compiled.
  [[nodiscard]] virtual const std::type_info& stream_type() const noexcept = 0;
  /// The stream in which kernels between operations are queued; in a composite, that of what the rank has started.
  /// Throws usage_error where a graph is being captured that would not have them.
  [[nodiscard]] virtual void* stream(where at) = 0;

 protected:
  ~group_memory() = default;
};

/// The blocking operations of a group as a composite calls them, in its turn in the rank's communication stream.
class group_calls : public group_operations<group_calls> {
 public:
  /// Rank `rank` of `size`; `by` outlives them, as `control` and `device`, which are null where these are for memory of
  /// the host.
  group_calls(operation_runner& by, int rank, int size, const group_calls* control = nullptr,
              group_memory* device = nullptr) noexcept
      : by_(&by), control_(control), device_(device), rank_(rank), size_(size) {}

  /// This rank's number in the group, and how many it has.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The operations of the same ranks for memory of the host.
  [[nodiscard]] const group_calls& control() const noexcept { return control_ == nullptr ? *this : *control_; }
  /// Copies and kernels of the composite in the memory of its device; null where buffers are the host's.
  [[nodiscard]] group_memory* device() const noexcept { return device_; }
  /// Runs an operation that was checked.
  void run_call(const op_call& call) const { by_->run(call); }

 private:
  operation_runner* by_;
  const group_calls* control_;  // null: these
  group_memory* device_;
  int rank_, size_;
};

/// One rank's part in a group. Belongs to the rank's thread. Arguments of calls were checked, by `group`, once.
class group_interface : public operation_runner {
 public:
  /// Rank `rank` of `size`.
  group_interface(int rank, int size, const group_traits& traits) noexcept
      : traits_(traits), rank_(rank), size_(size) {}
  virtual ~group_interface() = default;

  // Every call asks for these: no function of the backend's.

  /// This rank's number, where that is no question (see `layout_rank`), and how many there are.
  [[nodiscard]] int unasked_rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const group_traits& traits() const noexcept { return traits_; }

  /// This rank's number in the group, which is a question in a rehearsal.
  [[nodiscard]] virtual int rank() const = 0;
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] virtual std::span<const int> members() const = 0;

  /// Starts an operation that was checked, in its turn after `how` lets it begin; `call` is copied.
  [[nodiscard]] virtual pending start(const op_call& call, const start_order& how) = 0;
  /// `work` is copied before they return. Work of this rank alone is called with the stream of its device, or null on a
  /// host.
  [[nodiscard]] virtual pending start_composite(operation what, const borrowed_work<const group_calls&>& work,
                                                const start_order& how) = 0;
  [[nodiscard]] virtual pending start_local(operation what, const borrowed_work<void*>& work,
                                            const start_order& how) = 0;
  /// Where peers are not addressed it is this rank's own memory, with room for a mirror of each peer's where there are
  /// mirrors. Collective.
  [[nodiscard]] virtual symmetric_region make_symmetric(std::size_t bytes, where at) = 0;
  /// A handle onto the group whose calls wait `timeout` for peers.
  [[nodiscard]] virtual std::shared_ptr<group_interface> within(std::chrono::duration<double> timeout, where at) = 0;
  virtual void trace_into(span_log* log, where at) = 0;

  /// The guard of the rank's calls; null where nobody looks after those.
  [[nodiscard]] virtual call_guard* guard() const { return nullptr; }
  /// Null where buffers are memory of the host.
  [[nodiscard]] virtual group_memory* device() { return nullptr; }
  /// The group of the same ranks for memory of the host; null where this group itself is one.
  [[nodiscard]] virtual const group* control() const { return nullptr; }

 private:
  group_traits traits_;
  int rank_, size_;
};

}  // namespace belay::inline BELAY_ABI
