// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a run saves: stores, optimizers and state of one's own.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// A store of parameters.
template <class Store>
concept saved_store = requires(Store& store, std::function<void()> hook) {
  typename Store::buckets_type;
  store.before_update(std::move(hook));
};

/// An optimizer of a store: `each_state(visit)` and `each_setting(visit)` as adamw has them.
template <class Optimizer>
concept saved_optimizer = requires(Optimizer& optimizer, std::uint64_t steps) {
  { optimizer.steps() } -> std::convertible_to<std::uint64_t>;
  optimizer.continue_after(steps);
};

/// State of one's own, equal on all ranks: as UTF-8 text, and back.
template <class State>
concept saved_state = requires(State& state, const State& same, std::string_view text) {
  { same.save() } -> std::convertible_to<std::string>;
  state.load(text);
};

}  // namespace belay::inline BELAY_ABI
