// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The buckets of one rank between steps: which parameters they hold, where they lie in its memory, and how updated
// values reach the ranks that replicate them.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/bucket/bucket_reduction.hpp"
#include "belay/parallel/bucket/frozen_buckets.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

template <class T, class Group>
class bound_buckets {
 public:
  using value_type = T;
  using gradient_type = compute_type_t<T>;

  bound_buckets(bound_buckets&&) = delete;  // parameters point into its memory

  [[nodiscard]] const bucket_layout& layout() const noexcept { return layout_; }
  /// Peers read its counts while a reduction is under way, also one that nobody waits for.
  [[nodiscard]] std::shared_ptr<const bucket_layout> kept_layout() const noexcept { return {kept_, &layout_}; }
  /// The places of the values and gradients that this rank keeps, by bucket: tier, offset, and its own shard, in
  /// elements.
  [[nodiscard]] const bucket_places& places() const noexcept { return memory_.places; }
  [[nodiscard]] bool divides_values() const noexcept {
    for (const auto& b : layout_.buckets())
      if (layout_.replica_group_of(b).divides_values()) return true;
    return false;
  }
  /// The files of shards in tier file; null where none are.
  [[nodiscard]] file_shards* value_file() const noexcept { return memory_.value_file; }
  [[nodiscard]] file_shards* gradient_file() const noexcept { return memory_.gradient_file; }
  /// 0 unless T is narrower than its gradients and some replica group has several ranks.
  [[nodiscard]] std::size_t wire_elements() const noexcept { return kept_->wire.elements(); }

  [[nodiscard]] trainable_parameter<T>& parameter(std::size_t number) const noexcept {
    return members_[number].parameter();
  }
  [[nodiscard]] std::size_t parameters() const noexcept { return members_.size(); }
  /// A group of this rank: its memory is that of values and gradients on the device.
  [[nodiscard]] const Group& any_group() const noexcept { return replica_groups_.front().group; }
  /// Whether nothing is moved, and memory is not touched.
  [[nodiscard]] bool rehearsed() const noexcept {
    return !replica_groups_.empty() && is_rehearsed(replica_groups_.front().group);
  }
  /// The number of a parameter's bucket.
  [[nodiscard]] std::size_t bucket_of(std::size_t parameter) const noexcept { return bucket_of_[parameter]; }
  /// The ranges that this rank updates, in the order of memory and so of buckets. Valid after `bind`.
  [[nodiscard]] std::span<const owned_range<T>> owned() const noexcept { return owned_; }
  /// Of a bucket of divided values: what gathers need to know.
  [[nodiscard]] gathered_bucket<T, Group> gathered(std::size_t number) const {
    const auto parameter_at = [this](std::size_t p) { return &parameter(p); };
    return gathered_of<T>(layout_, number, replica_groups_, memory_.places,
                          memory_.values[memory_.places[number].values_in], memory_.value_file, kept_layout(),
                          parameter_at);
  }

  /// Those that take part in the updates of these parameters.
  [[nodiscard]] update_observers& updates() noexcept { return updates_; }
  [[nodiscard]] const update_observers& updates() const noexcept { return updates_; }

  /// Starts the all_gather of a bucket's updated values over its replica group. Every rank of the replica group calls
  /// it for the same buckets in ascending order, then `finish_gathers`.
  void start_gather(std::size_t bucket, const start_order& how = where::current()) {
    const auto& b = layout_.buckets()[bucket];
    if (b.counts.size() < 2 || b.count == 0 || layout_.replica_group_of(b).divides_values()) return;
    const std::span<T> values = memory_.values_of(layout_, bucket);
    const auto& group = replica_groups_[b.replica_group].group;
    static_cast<void>(gathers_[bucket] = group.start_all_gather_v(values, b.counts, how.keeping(kept_)));
  }
  void finish_gathers() {
    wait_all(gathers_);
    publish(where::current());
  }
  /// Ends the gathers in the order of `stream`, whose later work reads the updated values. The host does not wait.
  void finish_gathers_in(auto& stream) {
    all_then(gathers_, stream);
    publish(after(stream.record()));
  }

  /// Ranks reach each other's shards of values: `all` are those that divide them, in whatever replica group. Then what
  /// `finish_gathers` ends is an update on all of them before any reads another's shard.
  void reach_shards_of(Group all) { reaching_.emplace(std::move(all)); }

 protected:
  using kept_state = bucket_reductions<T>;

  bound_buckets(std::vector<bucket_member<T>> members, std::vector<bucket_replica_group<Group>> replica_groups,
                std::size_t bucket_bytes, ownership_unit unit, where at)
      : members_(std::move(members)),
        replica_groups_(std::move(replica_groups)),
        kept_(std::make_shared<kept_state>(unique_members(at), replica_groups_, sizeof(gradient_type), bucket_bytes,
                                           unit, at)),
        layout_(kept_->layout),
        bucket_of_(members_.size()),
        gathers_(layout_.buckets().size()) {
    for (std::size_t b = 0; b < gathers_.size(); ++b)
      for (std::size_t parameter : layout_.buckets()[b].members) bucket_of_[parameter] = b;
    std::vector<std::size_t> own;
    for (const auto& replica_group : replica_groups_)
      own.push_back(static_cast<std::size_t>(layout_rank(replica_group.group)));
    memory_.places = bucket_places(layout_, own);
  }
  ~bound_buckets() = default;

  template <class Contributors>
  void bind_to(const bucket_memory<T>& memory, Contributors& contributors, where at) {
    bucket_memory<T> bound = memory;
    bound.places = memory_.places;
    bound.expect(layout_, wire_elements(), at);
    memory_ = std::move(bound);
    owned_ = owned_ranges<T>(layout_, replica_groups_, members_, memory_);
    bind_members(layout_, members_, memory_, std::span<const owned_range<T>>(owned_), contributors);
  }

  [[nodiscard]] std::span<gradient_type> gradient_of(std::size_t p) const noexcept {
    return {members_[p].parameter().gradient(), layout_.size(p)};
  }
  void scale_owned(gradient_type scale, where at) const {
    update_observer* const queues = updates_.last(observer_turn::queues_work);
    if (queues != nullptr) queues->divide(scale, at);
    for (const owned_range<T>& range : owned_)
      if (queues == nullptr || range.gradient_file != nullptr) scale_gradients(range, memory_, scale, any_group(), at);
  }
  void zero_in_memory(std::span<gradient_type> gradients, where at) const {
    each_in_memory_of(any_group(), gradients.size(), kernel::fill<gradient_type>{gradients.data(), 0}, at);
  }
  [[nodiscard]] std::vector<std::size_t> uses() const {
    std::vector<std::size_t> out;
    for (const auto& member : members_) out.push_back(member.parameter().uses());
    return out;
  }

  std::vector<bucket_member<T>> members_;
  std::vector<bucket_replica_group<Group>> replica_groups_;
  std::shared_ptr<kept_state> kept_;  // by a reduction that is under way, also where nobody waits for it any more
  const bucket_layout& layout_;
  std::vector<std::size_t> bucket_of_;
  std::vector<owned_range<T>> owned_;
  bucket_memory<T> memory_;

 private:
  [[nodiscard]] const auto& unique_members(where at) const { return check_members<T>(members_, at), members_; }
  // Of the communication stream, as are the copies that come after it: nobody else waits.
  void publish(const start_order& how) {
    if constexpr (can_start_barrier<Group>)
      if (reaching_) reaching_->start_barrier(how).in_start_order(how.at);
  }

  update_observers updates_;
  std::vector<pending> gathers_;
  std::optional<Group> reaching_;
};

}  // namespace belay::inline BELAY_ABI
