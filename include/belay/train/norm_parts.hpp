// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In which parts the ranks of a stage hold a parameter, and which of them counts in the norm.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// The elements of every part, in the order of expert and tensor coordinates; which part this rank holds; and whether
/// it counts there, which of the ranks of a tensor axis that hold the same the first does.
struct norm_parts {
  std::vector<std::size_t> elements;
  std::size_t mine = 0;
  norm_share share = norm_share::counted_here;
};

template <placement Placement>
[[nodiscard]] norm_parts norm_parts_of(std::span<const std::size_t> shape, const axes& mesh, const coordinate& here) {
  constexpr axis_set cut = cut_directions<Placement>();
  norm_parts out;
  coordinate each = here;
  for (int e = 0; e < (cut.has(axis::expert) ? mesh.expert : 1); ++e)
    for (int t = 0; t < (cut.has(axis::tensor) ? mesh.tensor : 1); ++t) {
      if (cut.has(axis::expert)) each.expert = e;
      if (cut.has(axis::tensor)) each.tensor = t;
      if (each == here) out.mine = out.elements.size();
      out.elements.push_back(local_box<Placement>(shape, mesh, each).elements());
    }
  if (!cut.has(axis::tensor) && here.tensor != 0) out.share = norm_share::counted_elsewhere;
  return out;
}

}  // namespace belay::inline BELAY_ABI
