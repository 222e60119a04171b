// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a store's shards of gradients go to their tier, and come from it: on the stream of copies.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/shards.hpp"
#include "belay/parallel/file_shards.hpp"

namespace belay::inline BELAY_ABI {

// A sum has the same bits whichever of its terms is in the file.
template <class Gradient>
void add_shard(std::byte* to, const std::byte* from, std::size_t bytes) {
  kernel::for_each_index(bytes / sizeof(Gradient),
                         kernel::axpy<Gradient, Gradient>{Gradient(1), reinterpret_cast<const Gradient*>(from),
                                                          reinterpret_cast<Gradient*>(to)});
}

/// `engine` outlives it, and `file`, which has the shards in tier file.
template <class Gradient, class Engine>
[[nodiscard]] tier_copies<Gradient> tier_copies_on(Engine& engine, file_shards* file) {
  static_cast<void>(engine.copies());  // its thread is there before the first step
  tier_copies<Gradient> out;
  out.copy_to_tier = [&engine, file](const stream_event& reduced, Gradient* from, std::span<Gradient> shard, tier in,
                                     first_of_step which) {
    auto& copies = engine.copies();
    copies.wait(reduced);
    const where at = engine.step_site();
    if (in == tier::file) {
      if (which == first_of_step::no) file->queue_add(from, shard.data(), shard.size_bytes(), add_shard<Gradient>, at);
      file->queue_write(shard.data(), from, shard.size_bytes(), at);
    } else if (which == first_of_step::yes)
      copies.copy(shard.data(), from, shard.size_bytes());
    else
      copies.each(shard.size(), kernel::axpy<Gradient, Gradient>{Gradient(1), from, shard.data()});
    return copies.record();
  };
  out.copy_from_tier = [&engine, file](std::span<const Gradient> shard, tier in, Gradient* to) {
    auto& copies = engine.copies();
    const stream_event ready = engine.compute().record();
    if (in == tier::file) return file->load(ready, shard.data(), to, shard.size_bytes(), engine.step_site());
    copies.wait(ready);
    copies.copy(to, shard.data(), shard.size_bytes());
    return copies.record();
  };
  return out;
}

}  // namespace belay::inline BELAY_ABI
