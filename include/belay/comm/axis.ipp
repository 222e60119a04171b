// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks along the axes of a mesh, and what is said where they differ.
#pragma once

#include "belay/comm/axis.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string axes::text() const {
  return "pipeline " + std::to_string(pipeline) + " x data " + std::to_string(data) + " x expert " +
         std::to_string(expert) + " x tensor " + std::to_string(tensor) +
         (shard_group == 0 ? "" : ", shard groups of " + std::to_string(shard_group));
}

[[gnu::cold]] BELAY_DECL std::vector<int> ranks_along(const axes& shape, coordinate place, axis which) {
  std::vector<int> members;
  const auto along = [&](int coordinate::*index, int length, const auto& inner) {
    for (place.*index = 0; place.*index < length; ++(place.*index)) inner();
  };
  const auto along_shards = [&](const auto& inner) {
    const int first = place.data / shape.shards() * shape.shards();
    for (place.data = first; place.data < first + shape.shards(); ++place.data) inner();
  };
  const auto add = [&] { members.push_back(rank_at(shape, place)); };
  switch (which) {
    case axis::pipeline: along(&coordinate::pipeline, shape.pipeline, add); break;
    case axis::data: along(&coordinate::data, shape.data, add); break;
    case axis::expert: along(&coordinate::expert, shape.expert, add); break;
    case axis::tensor: along(&coordinate::tensor, shape.tensor, add); break;
    case axis::replica:
      along(&coordinate::data, shape.data, [&] { along(&coordinate::expert, shape.expert, add); });
      break;
    case axis::shard: along_shards(add); break;
    case axis::dense_shard: along_shards([&] { along(&coordinate::expert, shape.expert, add); }); break;
    case axis::shard_replica:
      for (place.data %= shape.shards(); place.data < shape.data; place.data += shape.shards()) add();
      break;
  }
  return members;
}

[[gnu::cold]] BELAY_DECL void check_same_axis(std::span<const std::uint64_t> asked, where at) {
  for (std::size_t r = 1; r < asked.size(); ++r) {
    if (asked[r] == asked[0]) continue;
    const auto named = [&](std::size_t rank) { return name(static_cast<axis>(asked[rank])); };
    throw usage_error("the ranks of a mesh ask for its groups in different orders: rank 0 for " +
                          std::string(named(0)) + " now, rank " + std::to_string(r) + " for " + named(r) +
                          "; every rank of the world asks for the same groups in the same order",
                      at);
  }
}

[[gnu::cold]] BELAY_DECL const axes& checked_shape(const axes& shape, int size, where at) {
  if (!shape.valid()) throw usage_error("a mesh needs at least one rank along each axis: " + shape.text(), at);
  if (shape.shard_group < 0 || shape.data % shape.shards() != 0)
    throw usage_error(
        "shard groups of " + std::to_string(shape.shard_group) + " ranks do not divide data: " + shape.text(), at);
  if (shape.ranks() != size) {
    throw usage_error("a mesh of " + shape.text() + " needs " + std::to_string(shape.ranks()) +
                          " ranks; this world has " + std::to_string(size),
                      at);
  }
  return shape;
}

}  // namespace belay::inline BELAY_ABI
