// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which parts of a model are trained: types, because a frozen part has no gradient to ask for.
#pragma once

#include "belay/parallel/parameter.hpp"

namespace model {

/// Each is belay::trainable or belay::frozen: the attentions' four matrices, the experts' matrices, and the embedding.
/// Norms, routers and the head are always trained.
template <belay::learning Attention = belay::trainable, belay::learning Experts = belay::trainable,
          belay::learning Embedding = belay::trainable>
struct learning_parts {
  using attention = Attention;
  using experts = Experts;
  using embedding = Embedding;
};

using trains_all = learning_parts<>;
using freezes_attention = learning_parts<belay::frozen>;
using freezes_experts = learning_parts<belay::trainable, belay::frozen>;
using freezes_parts = learning_parts<belay::frozen, belay::frozen, belay::frozen>;

}  // namespace model
