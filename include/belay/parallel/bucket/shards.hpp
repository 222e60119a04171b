// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Buckets of gradients of which a rank keeps its shard alone. A backward adds to memory that a bucket has for the
// time; when all parameters of the bucket have what the micro-batch gives them, it is reduced into the ranks' shards,
// and the memory is free. Micro-batches that are computed between each other may share a reduction. Where shards are
// replicated, each rank's shard is then summed over the ranks that hold an equal one, once a step: only shards cross
// from one shard group to another.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/bucket_reduction.hpp"
#include "belay/parallel/bucket/contributions.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/bucket/staging.hpp"
#include "belay/parallel/group_memory.hpp"

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
      static_cast<void>(sums_[next_] = replica_group.copies->start_all_reduce(shard_of(next_), sum, how));
    }
  }
  void wait_all(where at) { belay::wait_all(sums_, at); }
  /// For graphs: later work of `stream` comes after the sums; and a launch has started those of the step.
  void join(auto& stream, where at) { all_then(sums_, stream, at); }
  void recall() noexcept { next_ = reduced_.size(); }

 private:
  [[nodiscard]] std::span<gradient_type> shard_of(std::size_t bucket) const noexcept {
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

/// Whether a reduction is the first into its shard in a step: it writes what others add to.
enum class first_of_step : std::uint8_t { no, yes };

/// Brings shards that lie in a lower tier there, and back.
template <class Gradient>
struct tier_copies {
  /// Copies reduced gradients from `from` on to a shard in tier `in`, or adds them to it, once `reduced` is reached.
  /// Returns when they are there, and `from` is free.
  std::function<stream_event(const stream_event& reduced, Gradient* from, std::span<Gradient> shard, tier in,
                             first_of_step which)>
      copy_to_tier;
  /// Copies a shard to memory that the compute stream has just given up. Returns when it is there.
  std::function<stream_event(std::span<const Gradient> shard, tier in, Gradient* to)> copy_from_tier;
};

template <class T, class Group>
class gradient_shards {
 public:
  using gradient_type = compute_type_t<T>;

  /// All outlive it; `memory` may be bound later.
  gradient_shards(bucket_reductions<T>& kept, std::span<const bucket_member<T>> members,
                  std::span<const bucket_replica_group<Group>> replica_groups, const bucket_memory<T>& memory)
      : kept_(&kept),
        members_(members),
        replica_groups_(replica_groups),
        memory_(&memory),
        staging_(kept.layout.buckets().size()),
        buckets_(kept.layout.buckets().size()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) any_ = any_ || divides(b);
  }

  [[nodiscard]] bool divides(std::size_t bucket) const noexcept {
    return layout().replica_group_of(layout().buckets()[bucket]).divides_gradients();
  }
  /// Whether there is such a bucket.
  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Buckets take the memory that gradients are computed in from `source`.
  void use(lease_source& source) noexcept { staging_.use(source); }
  void use(tier_copies<gradient_type> copies) { copies_ = std::move(copies); }

  /// Begins a step. What a step that was withdrawn has started is waited for first.
  void begin(std::size_t micro_batches, const contribution_map& contributions, where at) {
    if (!any_) return;
    if (!starts_composites)
      throw usage_error(
          "divided gradients are reduced and added as one started composite: take a communicator with "
          "start_composite, as belay::host and belay::mpi have",
          at);
    if (!staging_.has_memory())
      throw usage_error("divided gradients are computed in memory of the run: make the buckets with a parameter_store",
                        at);
    wait_all(at);
    std::size_t divided = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b] = {};
      if (!divides(b)) continue;
      ++divided;
      for (std::size_t p : layout().buckets()[b].members) buckets_[b].uses += contributions.uses(p);
    }
    micro_batches_ = micro_batches;
    begun_.assign(buckets_.size() * micro_batches, 0);
    staging_.expect(divided * micro_batches);
  }

  /// The event that the compute stream waits for before a bucket gets memory.
  [[nodiscard]] stream_event before_open() const noexcept { return staging_.before_open(); }
  /// Gives a bucket memory, and its parameters their gradients in it, which nothing has written. A rank that is alone
  /// goes on with what it has: so the additions of a step are in the order in which a resident gradient has them. The
  /// memory may be written when the result is reached.
  template <class Contributors>
  stream_event open(std::size_t bucket, Contributors& contributors, where at) {
    const auto& b = layout().buckets()[bucket];
    if (staging_.is_open(bucket)) return {};
    const bool goes_on = is_alone(bucket) && buckets_[bucket].reductions > 0;
    staging_.open(bucket, b.count, at);
    gradient_type* const first = staging_.of(bucket).data();
    for (std::size_t p : b.members) {
      members_[p].parameter().place_gradient(first + layout().offset(p) - b.first);
      goes_on ? contributors[p].note_written() : contributors[p].begin_unwritten();
      contributors[p].note_memory(contribution_target::memory::given);
    }
    return goes_on ? copies_.copy_from_tier(memory_->gradients_of(layout(), bucket),
                                            memory_->places[bucket].gradients_in, first)
                   : stream_event{};
  }

  /// A micro-batch has contributed to a parameter of the bucket. True where the bucket is to be reduced.
  [[nodiscard]] bool contributed(std::size_t bucket, std::size_t micro_batch) noexcept {
    divided_bucket& one = buckets_[bucket];
    if (std::exchange(begun_[bucket * micro_batches_ + micro_batch], std::uint8_t{1}) == 0) one.awaited += one.uses;
    return --one.awaited == 0;
  }

  /// Starts the reduction of what the bucket holds. Returns its end.
  template <class Contributors>
  stream_event reduce(std::size_t bucket, Contributors& contributors, const stream_event& computed,
                      const std::shared_ptr<bucket_reductions<T>>& keep, where at) {
    using into = typename shard_reduction<T>::into;
    const auto& b = layout().buckets()[bucket];
    divided_bucket& one = buckets_[bucket];
    const bucket_places::bucket_location& place = memory_->places[bucket];
    const bool in_lower_tier = place.gradients_in != tier::device;
    const auto which = one.reductions++ == 0 || is_alone(bucket) ? first_of_step::yes : first_of_step::no;
    const auto how = in_lower_tier ? into::left : which == first_of_step::yes ? into::written : into::added;
    const start_order order = start_order(after(computed, at)).keeping(keep);
    stream_event over;
    if constexpr (starts_composites) {
      const shard_reduction<T> work{
          kept_, bucket, staging_.of(bucket), memory_->gradients_of(layout(), bucket), place.before, memory_->wire,
          how,   at};
      pending started = work.start(replica_groups_[b.replica_group].group, order);
      over = started.event();
      if (in_lower_tier)
        over = copies_.copy_to_tier(over, staging_.of(bucket).data() + place.before,
                                    memory_->gradients_of(layout(), bucket), place.gradients_in, which);
      staging_.close(bucket, std::move(started), over);
    }
    for (std::size_t p : b.members) {
      members_[p].parameter().place_gradient(nullptr);
      contributors[p].note_memory(contribution_target::memory::needed);
    }
    return over;
  }

  /// Joins the reductions that peers of a complete step wait in: what is missing, in the order of micro-batches.
  template <class Contributors>
  void reduce_the_rest(Contributors& contributors, const stream_event& computed,
                       const std::shared_ptr<bucket_reductions<T>>& keep, shard_copies<T, Group>& copies, where at) {
    for (std::size_t m = 0; m < micro_batches_; ++m)
      for (std::size_t b = 0; b < buckets_.size(); ++b) {
        if (!divides(b) || buckets_[b].reductions > m) continue;
        staging_.wait_before_open(at);
        open(b, contributors, at);
        copies.reduced(b, reduce(b, contributors, computed, keep, at));
      }
  }

  void wait_all(where at) {
    if (any_) staging_.wait_all(at);
  }
  /// For graphs: later work of `stream` comes after all reductions; and a launch has done those of the step.
  void join(auto& stream, where at) {
    if (any_) staging_.join(stream, at);
  }
  void recall() noexcept {
    for (divided_bucket& one : buckets_) one.reductions = micro_batches_;
  }
  /// Of a step without micro-batches: the shards are zero.
  void zero_untouched() {
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      if (divides(b) && buckets_[b].reductions == 0)
        memory_->change_gradients(b, memory_->gradients_of(layout(), b), [&](std::span<gradient_type> shard) {
          const kernel::fill<gradient_type> zeros{shard.data(), 0};
          if (memory_->places[b].gradients_in == tier::device)
            each_in_memory_of(replica_groups_.front().group, shard.size(), zeros, where::current());
          else
            kernel::for_each_index(shard.size(), zeros);
        });
  }

 private:
  static constexpr bool starts_composites = shard_reduction<T>::template can_start<Group>;

  struct divided_bucket {
    std::size_t uses = 0;        // contributions of a micro-batch
    std::size_t awaited = 0;     // of the micro-batches that have begun to contribute
    std::size_t reductions = 0;  // started in the step
  };

  [[nodiscard]] const bucket_layout& layout() const noexcept { return kept_->layout; }
  // Divides gradients because they lie in a lower tier, and not among ranks.
  [[nodiscard]] bool is_alone(std::size_t bucket) const noexcept {
    return layout().replica_group_of(layout().buckets()[bucket]).ranks == 1;
  }

  bucket_reductions<T>* kept_;
  std::span<const bucket_member<T>> members_;
  std::span<const bucket_replica_group<Group>> replica_groups_;
  const bucket_memory<T>* memory_;
  gradient_staging<gradient_type> staging_;
  std::vector<divided_bucket> buckets_;
  std::vector<std::uint8_t> begun_;  // by bucket and micro-batch
  std::size_t micro_batches_ = 0;
  tier_copies<gradient_type> copies_;
  bool any_ = false;
};

}  // namespace belay::inline BELAY_ABI
