// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How updated values reach the ranks that replicate them, bucket by bucket, and when ranks that read each other's
// shards may read the updated ones.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/memory.hpp"

namespace belay::inline BELAY_ABI {

/// The gathers of updated values of one rank's buckets.
template <class Group>
class value_gathers {
 public:
  /// Of so many buckets.
  explicit value_gathers(std::size_t buckets) : under_way_(buckets) {}

  /// Starts the all_gather of the values of bucket `number` over `group`. Nothing where a rank has them alone, or each
  /// rank keeps its shard.
  template <class T>
  void start(const bucket_layout& layout, const bucket_memory<T>& memory, std::size_t number, const Group& group,
             const start_order& how) {
    const auto& b = layout.buckets()[number];
    if (b.counts.size() < 2 || b.count == 0 || layout.replica_group_of(b).divides_values()) return;
    const std::span<T> values = memory.values_of(layout, number);
    static_cast<void>(under_way_[number] = group.start_all_gather_v(values, b.counts, how));
  }
  /// The host waits for all that was started.
  void finish() {
    wait_all(under_way_);
    publish(where::current());
  }
  /// Later work of `stream` comes after all that was started. The host does not wait.
  void finish_in(auto& stream) {
    all_then(under_way_, stream);
    publish(after(stream.record()));
  }

  /// Ranks reach each other's shards of values: `all` are those that divide them, in whatever replica group. Then what
  /// `finish_in` ends is an update on all of them before any reads another's shard.
  void reach_shards_of(Group all) { reaching_.emplace(std::move(all)); }

 private:
  // Of the communication stream, as are the copies that come after it: nobody else waits.
  void publish(const start_order& how) {
    if constexpr (can_start_barrier<Group>)
      if (reaching_) reaching_->start_barrier(how).in_start_order(how.at);
  }

  std::vector<pending> under_way_;
  std::optional<Group> reaching_;
};

}  // namespace belay::inline BELAY_ABI
