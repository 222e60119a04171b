// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a store's shares of gradients go to their tier, and come from it: on the stream of copies.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/core/config.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/shares.hpp"

namespace belay::inline BELAY_ABI {

/// `engine` outlives it.
template <class Gradient, class Engine>
[[nodiscard]] share_carrier<Gradient> carrier_on(Engine& engine) {
  static_cast<void>(engine.copies());  // its thread is there before the first step
  share_carrier<Gradient> out;
  out.carry = [&engine](const stream_event& reduced, const Gradient* from, std::span<Gradient> share,
                        first_of_step which) {
    auto& copies = engine.copies();
    copies.wait(reduced);
    if (which == first_of_step::yes)
      copies.copy(share.data(), from, share.size_bytes());
    else
      copies.run([from, to = share.data(), count = share.size()] {
        kernel::for_each_index(count, kernel::axpy<Gradient, Gradient>{Gradient(1), from, to});
      });
    return copies.record();
  };
  out.load = [&engine](std::span<const Gradient> share, Gradient* to) {
    auto& copies = engine.copies();
    copies.wait(engine.compute().record());
    copies.copy(to, share.data(), share.size_bytes());
    return copies.record();
  };
  return out;
}

}  // namespace belay::inline BELAY_ABI
