// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of parameters that are never trained: values alone, whole or divided among the ranks that replicate them.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/family.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/places.hpp"
#include "belay/parallel/file_shares.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// A frozen parameter, the number of its family, and that of its layer.
template <class T>
struct frozen_member {
  frozen_parameter<T>* parameter = nullptr;
  std::size_t family = 0;
  std::size_t layer = 0;

  operator bucket_entry() const {
    return {parameter->local_size(), family, content_hash().add_text(parameter->name()).value(), placed_by_layout,
            layer};
  }
};

/// Bucket `number` of a layout as gathers see it: `values` holds what this rank keeps.
template <class T, class Group, class ParameterAt>
[[nodiscard]] gathered_bucket<T, Group> gathered_of(const bucket_layout& layout, std::size_t number,
                                                    const std::vector<bucket_family<Group>>& families,
                                                    const bucket_places& places, std::span<T> values, file_shares* file,
                                                    std::shared_ptr<const void> kept, const ParameterAt& parameter_at) {
  const auto& b = layout.buckets()[number];
  const bucket_places::place& place = places[number];
  gathered_bucket<T, Group> out{&families[b.family].group,
                                values.subspan(place.values, place.own),
                                place.before,
                                b.counts,
                                b.count,
                                {},
                                std::move(kept)};
  if (place.values_in == tier::file) out.file = file;
  for (std::size_t p : b.members) out.parameters.push_back({parameter_at(p), layout.offset(p) - b.first});
  return out;
}

template <class T, class Group>
class frozen_buckets {
 public:
  frozen_buckets(std::vector<frozen_member<T>> members, std::vector<bucket_family<Group>> families,
                 std::size_t bucket_bytes, where at = where::current())
      : members_(std::move(members)),
        families_(std::move(families)),
        layout_(std::make_shared<bucket_layout>(members_, families_, sizeof(T), bucket_bytes, ownership_unit{}, at)) {
    std::vector<std::size_t> own;
    for (const auto& family : families_) own.push_back(static_cast<std::size_t>(layout_rank(family.group)));
    places_ = bucket_places(*layout_, own);
  }

  [[nodiscard]] const bucket_layout& layout() const noexcept { return *layout_; }
  [[nodiscard]] const bucket_places& places() const noexcept { return places_; }
  [[nodiscard]] bool divides_values() const noexcept { return places_.divided(); }
  /// The layout, for a gather that is under way to keep: peers read its counts.
  [[nodiscard]] std::shared_ptr<const void> kept() const noexcept { return layout_; }
  [[nodiscard]] std::span<const frozen_member<T>> members() const noexcept { return members_; }

  /// Gives every parameter its memory: `places().value_elements(tier)` in each tier; `file` has what is in tier file.
  void bind(const tiered_memory<T>& memory, file_shares* file = nullptr) {
    values_ = memory;
    file_ = file;
    for (std::size_t b = 0; b < layout_->buckets().size(); ++b) {
      const auto& bucket = layout_->buckets()[b];
      const bucket_places::place& place = places_[b];
      const std::span<T> values = memory[place.values_in];
      const bool divides = layout_->family_of(bucket).divides_values();
      for (std::size_t p : bucket.members) {
        const std::size_t in_bucket = layout_->offset(p) - bucket.first;
        members_[p].parameter->bind(divides ? nullptr : values.data() + place.values + in_bucket);
        if (divides) members_[p].parameter->hold({});
      }
      if (!divides) continue;
      const auto rank = static_cast<std::size_t>(layout_rank(families_[bucket.family].group));
      layout_->each_owned(bucket, rank, [&](const parameter_range& range) {
        const std::size_t in_bucket = layout_->offset(range.parameter) - bucket.first + range.offset;
        members_[range.parameter].parameter->hold(
            {{range.offset, range.count, values.data() + place.values + in_bucket - place.before,
              place.values_in == tier::file ? file : nullptr}});
      });
    }
  }

  /// The bucket of one of its parameters.
  [[nodiscard]] std::size_t bucket_of(const parameter_base<T>& parameter) const noexcept {
    for (std::size_t b = 0; b < layout_->buckets().size(); ++b)
      for (std::size_t p : layout_->buckets()[b].members)
        if (static_cast<const parameter_base<T>*>(members_[p].parameter) == &parameter) return b;
    return layout_->buckets().size();
  }
  /// For gathers.
  [[nodiscard]] gathered_bucket<T, Group> gathered(std::size_t number) const {
    const auto parameter_at = [this](std::size_t p) { return members_[p].parameter; };
    return gathered_of<T>(*layout_, number, families_, places_, values_[places_[number].values_in], file_, layout_,
                          parameter_at);
  }

 private:
  std::vector<frozen_member<T>> members_;
  std::vector<bucket_family<Group>> families_;
  std::shared_ptr<bucket_layout> layout_;
  bucket_places places_;
  tiered_memory<T> values_;
  file_shares* file_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI
