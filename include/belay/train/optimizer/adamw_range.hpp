// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// AdamW over a part of a range: kernels of one chunk each, so that sharding changes no bit.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket/ownership_unit.hpp"

namespace belay::inline BELAY_ABI {

/// The scalars of one update, or where they are, of parameters with weight decay and without.
template <class State, class Scalars = kernel::adamw_scalars<State>>
struct adamw_step {
  Scalars decayed, undecayed;
};

/// Queues the update of `count` elements, whose state is `state[0]`, `state[1]` and, where T is narrower, the master
/// copies `state[2]`.
template <class T, class Kit, class State, class Parts, class Scalars>
void queue_adamw(Kit& kit, T* value, const State* gradient, const Parts& state, std::size_t count,
                 const Scalars& scalars) {
  for (std::size_t i = 0; i < count; i += parameter_chunk) {
    const std::size_t part = count - i < parameter_chunk ? count - i : parameter_chunk;
    const auto update = [&](State* master) {
      return kernel::adamw<State, State, Scalars>{master, gradient + i, state[0] + i, state[1] + i, scalars};
    };
    if constexpr (std::is_same_v<T, State>)
      kit.each(part, update(value + i));
    else
      kit.each(part, kernel::adamw_of_master<State, T, Scalars>{value + i, update(state[2] + i)});
  }
}

}  // namespace belay::inline BELAY_ABI
