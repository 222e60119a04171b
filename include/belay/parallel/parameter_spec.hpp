// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a parameter is made of, and its first values by global offset.
//
//   const belay::parameter_spec spec{"first.weight", {32, 16}, belay::initial::normal(0.02)};
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/parallel/initial.hpp"
#include "belay/parallel/parameter_shape.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the optimizer decays the parameter: usually matrices and embeddings, not norms.
enum class weight_decay { no, yes };

/// A parameter independently of the mesh. A tied parameter, which several layers share, is one parameter with as many
/// `uses`: each of them contributes to its gradient once a micro-batch. `joins` names the tensors that a stack of
/// several matrices an entry is made of, in equal parts of dimension 1; each has the first values of a parameter of its
/// name. It is empty where the parameter is one tensor.
struct parameter_spec {
  std::string name;                             // decides the first values: the same on every mesh, unique in the model
  parameter_shape shape;                        // the global one
  initial first_values = initial::constant(0);  // written by the store, or by `initialise`
  weight_decay decay = weight_decay::yes;       // whether the optimizer decays it
  std::size_t uses = 1;                         // layers that share it
  std::vector<std::string> joins = {};          // tensors that it is made of
};

/// Writes the first values of the global elements from `first` on, which do not come from a filler: those that are
/// drawn are normal numbers, of each tensor that the parameter joins by its own name.
template <class T>
void write_first_values(const parameter_spec& spec, std::uint64_t seed, std::size_t first, std::span<T> out) {
  const initial how = spec.first_values;
  if (how.how() == initial::kind::constant) {
    for (T& x : out) x = static_cast<T>(static_cast<compute_type_t<T>>(how.value()));
    return;
  }
  const std::vector<std::string>& joins = spec.joins;
  const std::size_t tensors = joins.empty() ? 1 : joins.size();
  const std::size_t size = joins.empty() ? spec.shape.size() : spec.shape.product(1, spec.shape.rank()) / tensors;
  for (std::size_t i = 0; i < out.size();) {
    const std::size_t block = (first + i) / size;
    const counted_normal random(seed, joins.empty() ? spec.name : joins[block % tensors]);
    // What the element is called in a tensor of its own.
    for (std::size_t j = (first + i) % size; j < size && i < out.size(); ++i, ++j)
      out[i] = static_cast<T>(static_cast<compute_type_t<T>>(how.value() * random(block / tensors * size + j)));
  }
}

}  // namespace belay::inline BELAY_ABI
