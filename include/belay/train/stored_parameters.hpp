// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a store is made of: the parameters of a model, and on which ranks there are copies of what it keeps.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/local_box.hpp"

namespace belay::inline BELAY_ABI {

/// The parameters of a model, in its order, and memory that it lends.
template <class T, class Gradient>
struct stored_parameters {
  std::vector<bucket_member<T>> members;
  std::vector<frozen_member<T>> frozen;
  std::span<T> values;            // borrowed, or empty
  std::span<Gradient> gradients;  // alike
  // Collectives where ranks along expert have parts of different sizes: no rank knows where a peer's shares lie.
  gather_by gathers = gather_by::reach;
};

/// The copies of a parameter's values, and of its optimizer's state.
struct stored_copies {
  copy_place of_values, of_state;
};

}  // namespace belay::inline BELAY_ABI
