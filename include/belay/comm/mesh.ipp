// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Groups of ranks along the axes of a mesh.
#pragma once

#include "belay/comm/mesh.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string axes::text() const {
  return "pipeline " + std::to_string(pipeline) + " x data " + std::to_string(data) + " x expert " +
         std::to_string(expert) + " x tensor " + std::to_string(tensor);
}

[[gnu::cold]] BELAY_DECL std::vector<int> ranks_along(const axes& shape, coordinate place, int coordinate::*axis,
                                                      int length) {
  std::vector<int> members;
  for (place.*axis = 0; place.*axis < length; ++(place.*axis)) members.push_back(rank_at(shape, place));
  return members;
}

[[gnu::cold]] BELAY_DECL std::vector<int> replicas_of(const axes& shape, coordinate place) {
  std::vector<int> members;
  for (place.data = 0; place.data < shape.data; ++place.data) {
    for (place.expert = 0; place.expert < shape.expert; ++place.expert) members.push_back(rank_at(shape, place));
  }
  return members;
}

[[gnu::cold]] BELAY_DECL const axes& checked_shape(const axes& shape, int size, where at) {
  if (!shape.valid()) throw usage_error("a mesh needs at least one rank along each axis: " + shape.text(), at);
  if (shape.ranks() != size) {
    throw usage_error("a mesh of " + shape.text() + " needs " + std::to_string(shape.ranks()) +
                          " ranks; this world has " + std::to_string(size),
                      at);
  }
  return shape;
}

}  // namespace belay::inline BELAY_ABI
