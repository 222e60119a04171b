// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether a layer as a whole is trained. A layer of which no parameter is ever trained may say so: with
// `using learning_type = belay::frozen` it needs no backward, and what runs layers for it observes it.
//
//   static_assert(std::is_same_v<belay::layer_learning_t<linear>, belay::trainable>);   // it says nothing
#pragma once

#include "belay/core/config.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// `Layer::learning_type`, or trainable where it says nothing.
template <class Layer>
struct layer_learning {
  using type = trainable;
};
/// Of a layer that says itself whether it learns.
template <class Layer>
requires learning<typename Layer::learning_type>
struct layer_learning<Layer> {
  using type = typename Layer::learning_type;
};
template <class Layer>
using layer_learning_t = typename layer_learning<Layer>::type;

}  // namespace belay::inline BELAY_ABI
