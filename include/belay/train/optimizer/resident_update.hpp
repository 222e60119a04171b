// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The update of what lies where it is computed: kernels over the ranges that a rank owns. Each element is updated by
// itself, so that neither sharding nor how many are given to a kernel changes a bit. The values of a bucket are
// gathered while the next one is updated.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>

#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/device_numbers.hpp"
#include "belay/device/memory.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// The scalars of one update, or where they are, of parameters with weight decay and without.
template <class State, class Scalars = kernel::adamw_scalars<State>>
struct adamw_step {
  Scalars decayed, undecayed;
};

/// Queues the update of `count` elements, whose state is `state[0]`, `state[1]` and, where T is narrower, the master
/// copies `state[2]`, in kernels of at most `at_once` elements.
template <class T, class Kit, class State, class Parts, class Scalars>
void queue_adamw(Kit& kit, T* value, const State* gradient, const Parts& state, std::size_t count,
                 const Scalars& scalars, std::size_t at_once) {
  for (std::size_t i = 0, part = 0; i < count; i += part) {
    part = lesser_of(count - i, at_once);
    const auto update = [&](State* master) {
      return kernel::adamw<State, State, Scalars>{master, gradient + i, state[0] + i, state[1] + i, scalars};
    };
    if constexpr (std::is_same_v<T, State>)
      kit.each(part, update(value + i));
    else
      kit.each(part, kernel::adamw_of_master<State, T, Scalars>{value + i, update(state[2] + i)});
  }
}

/// A function that says when a part of a step is queued: at once, or captured and launched. It calls `queue` or knows
/// what that queues.
using queued_part = std::function<void(function_ref<void()> queue, where at)>;

/// The scalars of an update in the memory of a device, where there is one.
template <class State>
struct update_numbers {
  /// Null where kernels have the scalars themselves; `write` writes them in the order of the engine's stream.
  const adamw_step<State>* memory = nullptr;
  std::function<void(const adamw_step<State>&, where)> write;

  /// Beside the memory of `run`, which keeps it.
  template <class Run>
  void make(Run& run, where at) {
    using memory_type = typename Run::memory_type;
    if constexpr (device_region<memory_type>) {
      auto& engine = run.engine();
      auto numbers =
          std::make_shared<device_numbers<adamw_step<State>, memory_type>>(engine.activations().memory(), at);
      memory = numbers->get();
      write = [&engine, to = numbers.get()](const adamw_step<State>& value, where now) {
        to->write(engine.compute(), value, now);
      };
      run.keep(numbers);
    }
  }
};

/// Calls `change(range, done)` for the ranges `owned`, before which there were `done` elements; it queues in the order
/// of `stream`. Each bucket's gather is started when its values are there, and the stream waits for all of them.
template <class Stream, class Buckets, class T, class Change>
void change_and_gather(Stream& stream, Buckets& buckets, std::span<const owned_range<T>> owned, const Change& change,
                       where at) {
  std::size_t done = 0, bucket = 0;
  const auto gather_before = [&](std::size_t end) {
    for (; bucket < end; ++bucket) buckets.start_gather(bucket, after(stream.record(), at));
  };
  for (const owned_range<T>& range : owned) {
    gather_before(range.bucket);
    change(range, done);
    done += range.count;
  }
  gather_before(buckets.layout().buckets().size());
  buckets.finish_gathers_in(stream);
}

/// Queues the update of the ranges `owned`, whose `state` is one part after the other, in kernels of at most `at_once`
/// elements, and the gathers of their buckets.
template <class T, class Kit, class Buckets, class Scalars>
void queue_update(Kit& kit, Buckets& buckets, std::span<const owned_range<T>> owned, std::span<compute_type_t<T>> state,
                  const Scalars& decayed, const Scalars& undecayed, std::size_t at_once, where at) {
  using state_type = compute_type_t<T>;
  constexpr std::size_t parts = std::is_same_v<T, state_type> ? 2 : 3;
  const std::size_t part = state.size() / parts;
  const auto update = [&](const owned_range<T>& range, std::size_t done) {
    const Scalars& scalars = range.decay == weight_decay::yes ? decayed : undecayed;
    std::array<state_type*, parts> of_range{};
    for (std::size_t p = 0; p < parts; ++p) of_range[p] = state.data() + p * part + done;
    queue_adamw(kit, range.value, range.gradient, of_range, range.count, scalars, at_once);
  };
  change_and_gather(kit.stream(), buckets, owned, update, at);
}

}  // namespace belay::inline BELAY_ABI
