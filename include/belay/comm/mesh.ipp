// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The groups of a mesh, and the order in which ranks ask for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL mesh::mesh(belay::rank& of, const axes& shape, where at)
    : mesh(of, shape, of.rehearsed() ? axis_set{} : of.meshes().asked(shape), at) {}

BELAY_DECL mesh::mesh(belay::rank& of, const axes& shape, axis_set asked, where at)
    : rank_(&of),
      shape_(checked_shape(shape, of.size(), at)),
      place_(of.place(shape)),
      here_(coordinate_of(shape, of.unasked_rank())),
      groups_(std::make_shared<groups>(of.world(), of.control())) {
  for (axis which : all_axes) {
    if (asked.has(which)) static_cast<void>(group(which, at));
  }
}

BELAY_DECL mesh::mesh(std::shared_ptr<belay::rank> kept, const axes& shape, axis_set asked, where at)
    : mesh(*kept, shape, asked, at) {
  kept_ = std::move(kept);
}

BELAY_DECL const group& mesh::group(axis which, where at) const {
  std::optional<belay::group>& made = groups_->along[static_cast<std::size_t>(which)];
  if (!made) {
    made.emplace(make(which, at));
    groups_->asked.add(which);
    if (rank_->rehearsed()) rank_->meshes().add(shape_, {which});
  }
  return *made;
}

BELAY_DECL group mesh::make(axis which, const where& at) const {
  const std::vector<int> members = ranks_along(shape_, here_, which);
  if (rank_->size() == 1) return groups_->world;
  for (const auto& [ranks, made] : groups_->of_ranks) {
    if (ranks == members) return made;
  }
  if (members.size() > 1) expect_same_on_all(which, at);
  groups_->of_ranks.emplace_back(members, rank_->group_along(members, shape_, which, at));
  return groups_->of_ranks.back().second;
}

BELAY_DECL void mesh::expect_same_on_all([[maybe_unused]] axis which, [[maybe_unused]] const where& at) const {
  if (checked(check_level::across_ranks) && !rank_->rehearsed()) {
    const std::uint64_t mine[] = {static_cast<std::uint64_t>(which)};
    std::vector<std::uint64_t> all(static_cast<std::size_t>(rank_->size()));
    groups_->control.all_gather(std::span<const std::uint64_t>(mine), std::span(all), at);
    check_same_axis(all, at);
  }
}

}  // namespace belay::inline BELAY_ABI
