// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of parameters that are never trained: values alone, whole or divided among the ranks that replicate them.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// A frozen parameter, the number of its replica group, and that of its layer.
template <class T>
struct frozen_member {
  frozen_parameter<T>* parameter = nullptr;
  std::size_t replica_group = 0;
  std::size_t layer = 0;

  operator bucket_entry() const {
    const std::string& follows = parameter->spec().follows;
    const std::uint64_t before = follows.empty() ? 0 : identity_of(follows);
    return {parameter->local_size(), replica_group, identity_of(parameter->name()), placed_by_layout, layer, before};
  }

 private:
  [[nodiscard]] static std::uint64_t identity_of(const std::string& name) noexcept {
    return content_hash().add_text(name).value();
  }
};

/// Bucket `number` of a layout as gathers see it: `values` holds what this rank keeps.
template <class T, class Group, class ParameterAt>
[[nodiscard]] gathered_bucket<T, Group> gathered_of(const bucket_layout& layout, std::size_t number,
                                                    const std::vector<bucket_replica_group<Group>>& replica_groups,
                                                    const bucket_places& places, std::span<T> values, file_shards* file,
                                                    std::shared_ptr<const void> kept, const ParameterAt& parameter_at) {
  const auto& b = layout.buckets()[number];
  const bucket_places::bucket_location& place = places[number];
  gathered_bucket<T, Group> out{&replica_groups[b.replica_group].group,
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
  frozen_buckets(std::vector<frozen_member<T>> members, std::vector<bucket_replica_group<Group>> replica_groups,
                 std::size_t bucket_bytes, where at = where::current())
      : members_(std::move(members)),
        replica_groups_(std::move(replica_groups)),
        layout_(
            std::make_shared<bucket_layout>(members_, replica_groups_, sizeof(T), bucket_bytes, ownership_unit{}, at)) {
    std::vector<std::size_t> own;
    for (const auto& replica_group : replica_groups_)
      own.push_back(static_cast<std::size_t>(layout_rank(replica_group.group)));
    places_ = bucket_places(*layout_, own);
  }

  [[nodiscard]] const bucket_layout& layout() const noexcept { return *layout_; }
  [[nodiscard]] const bucket_places& places() const noexcept { return places_; }
  [[nodiscard]] bool divides_values() const noexcept { return places_.divided(); }
  /// The layout, for a gather that is under way to keep: peers read its counts.
  [[nodiscard]] std::shared_ptr<const void> kept() const noexcept { return layout_; }
  [[nodiscard]] std::span<const frozen_member<T>> members() const noexcept { return members_; }

  /// Gives every parameter its memory: `places().value_elements(tier)` in each tier; `file` has what is in tier file.
  void bind(const tiered_memory<T>& memory, file_shards* file = nullptr) {
    values_ = memory;
    file_ = file;
    for (std::size_t b = 0; b < layout_->buckets().size(); ++b) {
      const auto& bucket = layout_->buckets()[b];
      const bucket_places::bucket_location& place = places_[b];
      const std::span<T> values = memory[place.values_in];
      const bool divides = layout_->replica_group_of(bucket).divides_values();
      for (std::size_t p : bucket.members) {
        const std::size_t in_bucket = layout_->offset(p) - bucket.first;
        members_[p].parameter->bind(divides ? nullptr : values.data() + place.values + in_bucket);
        if (divides) members_[p].parameter->hold({});
      }
      if (!divides) continue;
      const auto rank = static_cast<std::size_t>(layout_rank(replica_groups_[bucket.replica_group].group));
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
    return gathered_of<T>(*layout_, number, replica_groups_, places_, values_[places_[number].values_in], file_,
                          layout_, parameter_at);
  }

 private:
  std::vector<frozen_member<T>> members_;
  std::vector<bucket_replica_group<Group>> replica_groups_;
  std::shared_ptr<bucket_layout> layout_;
  bucket_places places_;
  tiered_memory<T> values_;
  file_shards* file_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI
