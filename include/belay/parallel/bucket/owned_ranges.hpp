// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranges that this rank updates, by where its buckets are bound.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/family.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/places.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/file_shares.hpp"
#include "belay/parallel/group_memory.hpp"

namespace belay::inline BELAY_ABI {

/// In the order of memory and so of buckets.
template <class T, class Group>
[[nodiscard]] std::vector<owned_range<T>> owned_ranges(const bucket_layout& layout,
                                                       const std::vector<bucket_family<Group>>& families,
                                                       const std::vector<bucket_member<T>>& members,
                                                       const bucket_memory<T>& memory) {
  std::vector<owned_range<T>> out;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    const bucket_family<Group>& ranks = families[bucket.family];
    const auto rank = static_cast<std::size_t>(layout_rank(ranks.group));
    const bool counted = (!bucket.counts.empty() || rank == 0) && (!ranks.copies || layout_rank(*ranks.copies) == 0);
    const norm_share share = counted ? norm_share::counted_here : norm_share::counted_elsewhere;
    const family_shape& family = layout.family_of(bucket);
    const bucket_places::place& place = memory.places[b];
    layout.each_owned(bucket, rank, [&](const parameter_range& range) {
      const std::size_t in_bucket = layout.offset(range.parameter) - bucket.first + range.offset;
      const std::size_t value = place.values + in_bucket - (family.divides_values() ? place.before : 0);
      const std::size_t gradient = place.gradients + in_bucket - (family.divides_gradients() ? place.before : 0);
      out.push_back({range.parameter, range.offset, range.count, b, memory.values[place.values_in].data() + value,
                     memory.gradients[place.gradients_in].data() + gradient,
                     members[range.parameter].parameter().decay(), share,
                     place.gradients_in == tier::file ? memory.gradient_file : nullptr});
    });
  }
  return out;
}

/// Multiplies the gradients of a range, wherever they are kept, by `scale`; `group` works on those in the memory of a
/// device.
template <class T, class Group>
void scale_gradients(const owned_range<T>& range, const bucket_memory<T>& memory, compute_type_t<T> scale,
                     const Group& group, where at) {
  using gradient_type = compute_type_t<T>;
  const bool on_device = memory.places[range.bucket].gradients_in == tier::device;
  memory.change_gradients(range.bucket, {range.gradient, range.count}, [&](std::span<gradient_type> part) {
    const kernel::scale<gradient_type> scaled{scale, part.data()};
    on_device ? each_in_memory_of(group, part.size(), scaled, at) : kernel::for_each_index(part.size(), scaled);
  });
}

/// Gives every parameter its memory: whole, or of divided values what this rank owns, and of divided gradients none
/// until a backward adds to them.
template <class T, class Contributors>
void bind_members(const bucket_layout& layout, const std::vector<bucket_member<T>>& members,
                  const bucket_memory<T>& memory, std::span<const owned_range<T>> owned, Contributors& contributors) {
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    const family_shape& family = layout.family_of(bucket);
    const bucket_places::place& place = memory.places[b];
    for (std::size_t p : bucket.members) {
      const std::size_t in_bucket = layout.offset(p) - bucket.first;
      auto* const value =
          family.divides_values() ? nullptr : memory.values[tier::device].data() + place.values + in_bucket;
      auto* const gradient =
          family.divides_gradients() ? nullptr : memory.gradients[tier::device].data() + place.gradients + in_bucket;
      members[p].parameter().bind(value, gradient, &contributors[p]);
      contributors[p].note_memory(family.divides_gradients() ? contribution_target::memory::needed
                                                             : contribution_target::memory::given);
      if (!family.divides_values()) continue;
      file_shares* const file = place.values_in == tier::file ? memory.value_file : nullptr;
      std::vector<held_range<T>> held;
      for (const owned_range<T>& range : owned)
        if (range.parameter == p) held.push_back({range.offset, range.count, range.value, file});
      members[p].parameter().hold(std::move(held));
    }
  }
}

/// The host sees what `all` keeps of its parameters on a device by `access`: `parameter_of(p)` is one of them.
template <class Buckets, class ParameterOf>
void see_through(const host_access* access, const Buckets& all, const ParameterOf& parameter_of) {
  for (std::size_t b = 0; b < all.layout().buckets().size(); ++b)
    for (const std::size_t p : all.layout().buckets()[b].members)
      if (all.places()[b].values_in == tier::device) parameter_of(p).see_through(access);
}

}  // namespace belay::inline BELAY_ABI
