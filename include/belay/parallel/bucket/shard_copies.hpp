// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where shards are replicated: when a shard group has reduced a bucket for the last time in a step, each rank's shard
// is summed over the ranks that hold the same one. So only shards cross from one shard group to another, once a step.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/replica_group.hpp"

namespace belay::inline BELAY_ABI {

template <class T, class Group>
class shard_copies {
 public:
  using gradient_type = compute_type_t<T>;

  /// All outlive it; `memory` may be bound later. Throws usage_error where there are copies of what nobody divides.
  shard_copies(const bucket_layout& layout, std::span<const bucket_replica_group<Group>> replica_groups,
               const bucket_memory<T>& memory, where at)
      : layout_(&layout), replica_groups_(replica_groups), memory_(&memory), reduced_(layout.buckets().size()) {
    for (const bucket_replica_group<Group>& replica_group : replica_groups)
      if (replica_group.copies && (replica_group.group.size() < 2 || replica_group.stage == zero_stage::none))
        throw usage_error("a replica group with copies of shards divides them among two ranks or more", at);
    sums_.resize(reduced_.size());
  }

  void begin() noexcept {
    next_ = 0;
    for (auto& each : reduced_) each.reset();
  }
  /// The last reduction of `bucket` in this step was started; `over` is its end.
  void reduced(std::size_t bucket, const stream_event& over) noexcept { reduced_[bucket] = over; }
  /// Starts the sums whose turn it is: in the order of buckets, which is equal on all ranks.
  void launch(const std::shared_ptr<const void>& keep, where at) {
    for (; next_ < reduced_.size(); ++next_) {
      const auto& b = layout_->buckets()[next_];
      const bucket_replica_group<Group>& replica_group = replica_groups_[b.replica_group];
      if (!replica_group.copies || b.count == 0) continue;
      if (!reduced_[next_]) return;
      const start_order how = start_order(after(*reduced_[next_], at)).keeping(keep);
      static_cast<void>(sums_[next_] = replica_group.copies->start_all_reduce(share_of(next_), sum, how));
    }
  }
  void wait_all(where at) { belay::wait_all(sums_, at); }
  /// For graphs: later work of `stream` comes after the sums; and a launch has started those of the step.
  void join(auto& stream, where at) { all_then(sums_, stream, at); }
  void recall() noexcept { next_ = reduced_.size(); }

 private:
  [[nodiscard]] std::span<gradient_type> share_of(std::size_t bucket) const noexcept {
    if (layout_->replica_group_of(layout_->buckets()[bucket]).divides_gradients())
      return memory_->gradients_of(*layout_, bucket);
    const auto& place = memory_->places[bucket];
    const auto whole = works_on_device<Group> ? memory_->gradients_of(*layout_, bucket)
                                              : memory_->reduction_of(*layout_, bucket);
    return whole.subspan(place.before, place.own);
  }

  const bucket_layout* layout_;
  std::span<const bucket_replica_group<Group>> replica_groups_;
  const bucket_memory<T>* memory_;
  std::vector<std::optional<stream_event>> reduced_;
  std::vector<pending> sums_;
  std::size_t next_ = 0;
};

}  // namespace belay::inline BELAY_ABI
