// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// AdamW over a part of a range, in kernels of a chunk each or of all of it: each element is computed alone, so neither
// that nor sharding changes a bit.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/optimizer.hpp"

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

}  // namespace belay::inline BELAY_ABI
