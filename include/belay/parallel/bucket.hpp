// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gradient buckets. Gradients live in the buckets from the start: fixed memory, bound once, never copied. Every
// backward contributes the parameters that it added to (`frame.add_to`, or `contributed` where layers use
// `parameter.gradient()`). A bucket that has all micro-batches is reduced while the backward goes on. Optimizers take
// only what `finish` returns, so a gradient that was not reduced, or not divided, cannot be applied.
//
//   belay::gradient_buckets<float, group> buckets{{{wte, 0}, {head, 0}}, {{world}}, 1 << 20, 4};  // 4 micro-batches
//   buckets.bind(values, grads);
//   buckets.begin(4);
//   buckets.contributed(0, 2, micro_batch);  // after the backward of each
//   auto reduced = buckets.finish(belay::target_tokens{tokens});
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/bucket/bucket_reduction.hpp"
#include "belay/parallel/bucket/contributions.hpp"
#include "belay/parallel/bucket/frozen_buckets.hpp"
#include "belay/parallel/bucket/gradient_states.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/bucket/replicas.hpp"
#include "belay/parallel/bucket/shards.hpp"
#include "belay/parallel/bucket/tied_sums.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/bucket/value_gathers.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/rank_comparison.hpp"

namespace belay::inline BELAY_ABI {

/// All gradient buckets of one rank. Buckets of all replica groups are launched in one fixed order, the same on all
/// ranks. One thread calls. The memory given to `bind` outlives the object; over a rehearsal's group it is not touched.
template <class T, class Group>
class gradient_buckets {
  static_assert(serves_buckets<Group, T>());

 public:
  using value_type = T;
  using gradient_type = compute_type_t<T>;

  /// `members` in model order, each once and with a unique name. At most `max_micro_batches` a step on this rank.
  /// `unit` is that of the norm's table.
  gradient_buckets(std::vector<bucket_member<T>> members, std::vector<bucket_replica_group<Group>> replica_groups,
                   std::size_t bucket_bytes, std::size_t max_micro_batches, ownership_unit unit = {},
                   where at = where::current())
      : members_(std::move(members)),
        replica_groups_(std::move(replica_groups)),
        kept_(std::make_shared<bucket_reductions<T>>(unique_members(at), replica_groups_, sizeof(gradient_type),
                                                     bucket_bytes, unit, at)),
        layout_(kept_->layout),
        bucket_of_(members_.size()),
        memory_(placed_memory()),
        gathers_(layout_.buckets().size()),
        shards_(*kept_, members_, replica_groups_, memory_),
        contributions_(uses(), max_micro_batches, at),
        checksums_(kept_->checksums),
        copies_(layout_, replica_groups_, memory_, at),
        states_(layout_.buckets().size()),
        pending_(layout_.buckets().size()) {
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b)
      for (std::size_t parameter : layout_.buckets()[b].members) bucket_of_[parameter] = b;
    for (const auto& replica_group : replica_groups_) expect_serves_buckets(replica_group.group, at);
    for (std::size_t p = 0; p < members_.size(); ++p) contributors_.emplace_back(*this, p);
  }
  gradient_buckets(gradient_buckets&&) = delete;  // parameters point into its memory

  /// Where parameters lie in the memory given to `bind`, and in which bucket.
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

  /// A parameter by its number in model order, and how many there are.
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
    const Group& group = replica_groups_[layout_.buckets()[bucket].replica_group].group;
    gathers_.start(layout_, memory_, bucket, group, how.keeping(kept_));
  }
  void finish_gathers() { gathers_.finish(); }
  /// Ends the gathers in the order of `stream`, whose later work reads the updated values. The host does not wait.
  void finish_gathers_in(auto& stream) { gathers_.finish_in(stream); }

  /// Ranks reach each other's shards of values: `all` are those that divide them, in whatever replica group. Then what
  /// `finish_gathers` ends is an update on all of them before any reads another's shard.
  void reach_shards_of(Group all) { gathers_.reach_shards_of(std::move(all)); }

  /// Gives every parameter its memory: `layout().elements()` values and `layout().gradient_elements()` gradients.
  /// Values are then written by `initialise` or `fill` of the parameters; `begin` zeroes the gradients.
  void bind(std::span<T> values, std::span<gradient_type> gradients, where at = where::current()) {
    const std::size_t tail = layout_.gradient_elements() - layout_.elements();
    const std::size_t own = gradients.size() - lesser_of(gradients.size(), tail);
    bind(bucket_memory<T>{tiered_memory<T>(values), tiered_memory<gradient_type>(gradients.first(own)),
                          gradients.subspan(own)},
         at);
  }
  /// Gives every parameter its memory out of `memory`, which has memory of its own for reductions, and
  /// `wire_elements()` elements for the wire. Throws usage_error where its sizes are not those that the layout needs.
  void bind(const bucket_memory<T>& memory, where at = where::current()) {
    bucket_memory<T> bound = memory;
    bound.places = memory_.places;
    bound.expect(layout_, wire_elements(), at);
    memory_ = std::move(bound);
    owned_ = owned_ranges<T>(layout_, replica_groups_, members_, memory_);
    bind_members(layout_, members_, memory_, std::span<const owned_range<T>>(owned_), contributors_);
    replicas_compared_ = false;
  }
  [[nodiscard]] bool divides_gradients() const noexcept { return shards_.any(); }
  /// Divided gradients are computed in memory that is leased from `source` in every step.
  void use(lease_source& source) noexcept { shards_.use(source); }
  /// Shards of gradients that lie in a lower tier are copied there by `copies`.
  void use(tier_copies<gradient_type> copies) { shards_.use(std::move(copies)); }
  /// Compares parameters, layout and values within each replica group, once after `bind`; throws usage_error on all
  /// ranks of a replica group that differ. Collective over all replica groups.
  void compare_replicas(where at = where::current()) {
    if (!rehearsed()) {
      if (!std::exchange(replicas_compared_, true)) check_replicas<T>(layout_, members_, replica_groups_, at);
    }
  }

  /// Other stages of this rank use parameters too: each adds to a sum of its own. Called once, before `bind`. Throws
  /// usage_error where such a parameter's gradient is divided.
  void add_uses(std::vector<tied_use<T>> uses, where at = where::current()) {
    for (const tied_use<T>& each : uses) {
      const std::size_t b = bucket_of_[each.of];
      if (shards_.divides(b))
        throw usage_error("parameter " + printable(members_[each.of].parameter().name()) +
                              " has several uses on a rank, whose sums are added when the step is complete: its "
                              "gradient is not divided",
                          at);
      bucket_of_.push_back(b);
    }
    tied_.add(std::move(uses));
    while (contributors_.size() < contributing_count()) contributors_.emplace_back(*this, contributors_.size());
    contributions_ = contribution_map(this->uses(), contributions_.max_micro_batches(), at);
  }
  /// Elements of the memory for the sums of such uses, and that memory. Called after `bind`.
  [[nodiscard]] std::size_t use_elements() const noexcept { return tied_.elements(); }
  void bind_uses(std::span<gradient_type> memory) {
    tied_.bind(
        memory, [&](std::size_t number) { return members_[number].parameter().value(); },
        [&](std::size_t use) { return &contributors_[members_.size() + use]; });
  }
  /// Stages of other ranks use parameters too: `finish` sums their gradients over `stages`, a pipeline, in the order of
  /// `shared`, which is one on all ranks. `room` has memory for what others have: see `tied_sums`.
  void sum_over(const group& stages, std::vector<tied_ranks> shared, std::span<gradient_type> room) {
    tied_.sum_over(stages, std::move(shared), room);
  }
  [[nodiscard]] const tied_sums<T>& tied() const noexcept { return tied_; }

  /// Begins a step of `micro_batches` (0 or more) here, and zeroes the gradients. The first one compares replicas.
  void begin(std::size_t micro_batches, where at = where::current()) {
    prepare(at);
    if (shards_.any()) throw usage_error("divided gradients are added to by frame.add_to: call begin_unwritten", at);
    for (auto& each : contributors_) each.note_written();
    if (!rehearsed()) {
      zero_in_memory(memory_.gradients[tier::device].first(layout_.elements()), at);
      for (std::size_t p = members_.size(); p < contributing_count(); ++p) zero_in_memory(gradient_of(p), at);
    }
    expect(micro_batches, at);
  }
  /// Begins a step of `micro_batches` (0 or more) here without zeroing gradients, unless there are 0: layers add by
  /// `frame.add_to`, which writes what nothing has written in the step. The first one compares replicas.
  void begin_unwritten(std::size_t micro_batches, where at = where::current()) {
    prepare(at);
    for (auto& each : contributors_) each.begin_unwritten();
    expect(micro_batches, at);
  }
  /// Zeroes the gradient of a parameter that nothing has written.
  void zero(std::size_t parameter) {
    contributors_[parameter].note_written();
    if (!rehearsed()) {
      if (contributing(parameter).gradient() == nullptr) return;  // divided
      zero_in_memory(gradient_of(parameter), where::current());
    }
  }
  /// A hash of what the gradient of a parameter holds, in checked builds; 0 where it is not known.
  [[nodiscard]] std::uint64_t content_of(std::size_t parameter) const noexcept {
    if (seals()) {
      const std::span<const gradient_type> gradient = gradient_of(parameter);
      if (gradient.data() != nullptr && !gradient.empty()) return gradient_checksums::hash_of(gradient) | 1U;
    }
    return 0;
  }
  /// For `frame.add_to`: when the compute stream has waited for the first, the second gives the parameter's bucket
  /// memory for its gradients.
  [[nodiscard]] stream_event before_memory() const noexcept { return shards_.before_open(); }
  stream_event give_memory(std::size_t parameter, where at) {
    if (!in_step()) throw usage_error("a backward outside of a step: call begin first", at);
    return shards_.open(bucket_of_[parameter], contributors_, at);
  }

  /// Before the first contribution of a step: it has another number of micro-batches, also more than any before.
  void begin_again(std::size_t micro_batches, where at = where::current()) {
    if (contributions_.any())
      throw usage_error("the number of micro-batches is said before the first backward of the step", at);
    if (micro_batches > contributions_.max_micro_batches())
      contributions_ = contribution_map(uses(), micro_batches, at);
    states_.withdraw();
    expect(micro_batches, at);
  }
  /// From now on the ranks of a replica group take part in each other's gathers, in every micro-batch.
  void gather_together() noexcept { gathered_together_ = true; }
  /// Forgets a step that was cut off. What was started is waited for when the next step begins.
  void withdraw() noexcept { states_.withdraw(); }
  /// From `begin` until gradients are finished, abandoned or withdrawn.
  [[nodiscard]] bool in_step() const noexcept { return states_.in_step(); }
  /// Whether gradients that were finished are still to be applied or discarded.
  [[nodiscard]] bool holds_reduced() const noexcept { return states_.holds_any(); }

  /// The backward of `micro_batch` has added its part to parameters `first` to `first + count - 1` (model order). Once
  /// per use of a parameter and micro-batch: once more is a usage_error in checked builds, and `finish` refuses in all.
  /// With `belay::after(event)` the part is there when that is reached: buckets are reduced after it.
  void contributed(std::size_t first, std::size_t count, std::size_t micro_batch,
                   const start_order& how = where::current()) {
    const where at = how.at;
    if (how.event.source() != nullptr) computed_ = how.event;
    if (!in_step()) throw usage_error("a contribution outside of a step: call begin first", at);
    const std::size_t known = first < contributing_count() ? contributing_count() - first : 0;
    for (std::size_t p = first; p < first + (count < known ? count : known); ++p) {
      const std::size_t b = bucket_of_[p];
      if (micro_batch < contributions_.micro_batches() && contributions_.mark(p, micro_batch) &&
          states_.contribute(b)) {
        if (shards_.divides(b)) {
          if (!shards_.contributed(b, micro_batch)) continue;
          const stream_event over = shards_.reduce(b, contributors_, computed_, kept_, at);
          if (states_.of(b) == gradient_phase::reducing) copies_.reduced(b, over);
        } else if (seals() && !has_uses(p)) {
          if (contributions_.complete(p)) note_complete(p, micro_batch, at);
        }
      } else {
        refuse_contribution(p, micro_batch, at);
      }
    }
    if (count > known) refuse_contribution(first + known, micro_batch, at);
    launch_ready(at);
  }

  /// For graphs: later work of `stream` comes after all reductions; what was contributed in the step so far; and a
  /// launch has contributed the same, and has done the reductions. Throws usage_error outside of a step.
  void join(auto& stream, where at) {
    all_then(pending_, stream, at);
    shards_.join(stream, at);
    copies_.join(stream, at);
  }
  [[nodiscard]] const contribution_map& contributions() const noexcept { return contributions_; }
  void recall(const contribution_map& recorded, where at) {
    if (!in_step()) throw usage_error("a graph is launched outside of a step", at);
    if (tied_.any())
      throw usage_error("parameter " + printable(tied_.uses().front().use->name()) +
                            " has several uses on a rank, whose sums no graph adds: run the steps without one",
                        at);
    contributions_ = recorded;
    for (std::size_t p = 0; p < members_.size(); ++p)
      if (recorded.any(p)) contributors_[p].note_written();
    states_.recall();
    shards_.recall();
    copies_.recall();
  }

  /// The parameter whose gradient a contribution is to: one of the buckets, or a further use, whose numbers follow.
  [[nodiscard]] trainable_parameter<T>& contributing(std::size_t number) const noexcept {
    return number < members_.size() ? members_[number].parameter() : *tied_.uses()[number - members_.size()].use;
  }

  /// Whether every use of a parameter has contributed every micro-batch exactly once.
  [[nodiscard]] bool complete() const noexcept { return contributions_.complete(); }

  /// Waits for every bucket and divides once, by the number of target tokens of the global batch. An incomplete step is
  /// a usage_error that names what is missing. Checked builds also refuse gradients that changed after their last
  /// contribution, and checks across ranks refuse divisors that differ within a replica group.
  [[nodiscard]] reduced_gradients<T> finish(target_tokens divisor, where at = where::current()) {
    const std::string changed = wait_complete(at);
    return divide(note_over(), divisor, changed, at);
  }

  /// Waits for every bucket and divides once, by the sum of `own`, this rank's targets, over `batch_ranks`, the ranks
  /// that divide the batch. Collective over these. An incomplete step is a usage_error that names what is missing; so
  /// is a sum of 0. Checked builds also refuse gradients that changed after their last contribution, and checks across
  /// ranks refuse sums that differ within a replica group.
  template <class BatchRanks>
  [[nodiscard]] reduced_gradients<T> finish(local_targets own, const BatchRanks& batch_ranks,
                                            where at = where::current()) {
    static_assert(can_all_reduce<BatchRanks, std::uint64_t>,
                  "local_targets are summed over a communicator of the ranks that divide the batch: "
                  "finish(local_targets{n}, mesh.replicas())");
    const std::string changed = wait_complete(at);
    reduced_gradients<T> reduced = note_over();
    const checked_size total = sum_of_targets(own, batch_ranks, at);
    if (total.saturated() == 0 || !total.fits()) {  // refused below, on all ranks alike
      compare_targets(rank_comparison::abstains, at);
      if (!changed.empty()) throw usage_error(changed, at);
    }
    const auto words = [] { return "local_targets: the targets of all ranks are"; };
    return divide(std::move(reduced), target_tokens{total.value(words, at), at}, changed, at);
  }

  /// Any other divisor does not compile, with an explanation.
  template <class Divisor>
  reduced_gradients<T> finish(Divisor, where = where::current()) {
    static_assert(std::same_as<Divisor, target_tokens>,
                  "a step is divided by the target tokens of the global batch: finish(target_tokens{n}), or "
                  "finish(local_targets{n}, group), which sums what each rank of the group has");
  }

  /// Ends a step that will not be committed: launches the buckets that peers wait for, and waits for all of them. The
  /// gradients hold garbage afterwards.
  void abandon(where at = where::current()) {
    if (!in_step()) return;
    reduce_what_there_is(at);
    compare_targets(rank_comparison::abstains, at);
  }
  /// Ends a step that will not be committed, where peers call `finish(local_targets, batch_ranks)`: launches the
  /// buckets that peers wait for, waits for all of them, and adds 0 to the sum of targets, which needs every rank. The
  /// gradients hold garbage afterwards.
  template <class BatchRanks>
  requires can_all_reduce<BatchRanks, std::uint64_t>
  void abandon(const BatchRanks& batch_ranks, where at = where::current()) {
    if (!in_step()) return;
    reduce_what_there_is(at);
    sum_of_targets(local_targets{0}, batch_ranks, at);
    compare_targets(rank_comparison::abstains, at);
  }

  /// "parameter wte misses micro-batch 0 2; ...": the first few parameters that lack a contribution.
  [[nodiscard]] std::string missing_text() const {
    return missing_contributions<T>(contributions_, all_contributing());
  }
  /// Buckets launched so far in this step.
  [[nodiscard]] std::size_t launched() const noexcept { return states_.started(); }

 private:
  [[nodiscard]] std::span<gradient_type> gradient_of(std::size_t p) const noexcept {
    return {contributing(p).gradient(), contributing(p).local_size()};
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
    for (const auto& member : members_) out.push_back(member.uses());
    out.resize(contributing_count(), 1);
    return out;
  }
  [[nodiscard]] std::size_t contributing_count() const noexcept { return members_.size() + tied_.uses().size(); }
  // Whether the parameter is, or has, one of several uses of this rank.
  [[nodiscard]] bool has_uses(std::size_t p) const noexcept {
    return tied_.any() && (p >= members_.size() || tied_.has_uses_of(p));
  }
  [[nodiscard]] std::vector<bucket_member<T>> all_contributing() const {
    std::vector<bucket_member<T>> out = members_;
    for (const tied_use<T>& each : tied_.uses()) out.emplace_back(*each.use, 0);
    return out;
  }
  [[nodiscard]] const auto& unique_members(where at) const { return check_members<T>(members_, at), members_; }
  [[nodiscard]] bucket_memory<T> placed_memory() const {
    std::vector<std::size_t> own;
    for (const auto& replica_group : replica_groups_)
      own.push_back(static_cast<std::size_t>(layout_rank(replica_group.group)));
    bucket_memory<T> out;
    out.places = bucket_places(layout_, own);
    return out;
  }

  // Whether checksums of gradients are kept, and whether ranks are compared.
  [[nodiscard]] bool seals() const noexcept {
    return checked(check_level::local) && !works_on_device<Group> && !rehearsed();
  }
  [[nodiscard]] bool compares_ranks() const noexcept {
    return checked(check_level::across_ranks) && !rehearsed();
  }

  void prepare(where at) {
    if (in_step()) throw usage_error("the last step's gradients were neither finished nor abandoned", at);
    if (!memory_.is_bound_to(layout_)) throw usage_error("the buckets have no memory yet: call bind", at);
    wait_all(pending_);  // of a step that was withdrawn
    shards_.wait_all(at);
    copies_.wait_all(at);
    compare_replicas(at);
  }
  void expect(std::size_t micro_batches, where at) {
    for (std::size_t p = 0; micro_batches == 0 && p < members_.size(); ++p)
      if (contributors_[p].unwritten()) zero(p);
    contributions_.begin(micro_batches, at);
    if (compares_ranks()) {
      const char* why = nullptr;
      if (shards_.any())
        why =
            "reduce divided gradients in each: give all as many, or reduce once a step with "
            "store_options{.reduce = belay::reduce_when::last}";
      if (gathered_together_) why = "gather divided parameters together in each: give all as many";
      if (why != nullptr) expect_one_number(compared_, replica_groups_, micro_batches, why, at);
    }
    shards_.begin(micro_batches, contributions_, at);
    copies_.begin();
    computed_ = {};
    states_.begin([&](std::size_t b) {
      std::size_t uses = 0;
      for (std::size_t parameter : layout_.buckets()[b].members) uses += contributions_.uses(parameter);
      for (std::size_t p = members_.size(); p < contributing_count(); ++p) uses += bucket_of_[p] == b ? 1 : 0;
      return micro_batches * uses;
    });
    uses_added_ = !tied_.any();
    if (seals()) {
      for (std::size_t p = 0; p < members_.size() && micro_batches == 0; ++p)
        if (!shards_.divides(bucket_of_[p]) && !has_uses(p)) note_complete(p, gradient_checksums::no_micro_batch, at);
    }
    launch_ready(at);
  }

  void launch_ready(where at) {
    for (; states_.can_start(); states_.note_started()) {
      const std::size_t number = states_.started();
      const auto& b = layout_.buckets()[number];
      if (!uses_added_ && has_uses(b.members.front())) break;  // a bucket of its own
      Group& group = replica_groups_[b.replica_group].group;
      if (group.size() < 2 || b.count == 0 || shards_.divides(number)) continue;
      const start_order how = start_order(after(computed_, at)).keeping(kept_);
      // (nvcc takes an assignment for a result that is ignored.)
      const bucket_reduction<T> work{*kept_, number, memory_, at};
      static_cast<void>(pending_[number] = work.start(group, how));
      copies_.reduced(number, pending_[number].event());
    }
    copies_.launch(kept_, at);
  }

  // Of checked builds: what a parameter's gradient has is not changed from here on.
  void note_complete(std::size_t parameter, std::size_t micro_batch, where at) {
    checksums_.note(parameter, micro_batch, at);
    if (computed_.ready()) checksums_.seal(parameter, gradient_of(parameter));
  }

  void wait_for_buckets() {
    wait_all(pending_);
    shards_.wait_all(where::current());
    copies_.wait_all(where::current());
    if (!rehearsed()) shards_.zero_untouched();
  }

  // What is wrong with the gradients, or "". It is thrown after the peers have this rank's divisor.
  [[nodiscard]] std::string wait_complete(where at) {
    if (!in_step()) throw usage_error("finish without begin, or twice", at);
    if (!complete()) throw usage_error(missing_text(), at);
    add_sums_of_uses(at);
    wait_for_buckets();
    std::string changed = seal_all();
    sum_over_ranks(at);
    return changed;
  }
  // How a gradient has changed after its last contribution, or "". Reduced copies are the gradients from here on.
  [[nodiscard]] std::string seal_all() {
    if (seals()) {
      for (std::size_t p = 0; p < members_.size(); ++p) {
        if (shards_.divides(bucket_of_[p])) continue;
        checksums_.seal(p, gradient_of(p));  // where no peer has waited for it
        if (checksums_.changed(p, gradient_of(p)))
          return changed_gradient(members_[p].parameter().name(), checksums_.text(p));
      }
      for (std::size_t b = 0; b < layout_.buckets().size(); ++b)
        if (!shards_.divides(b))
          std::ranges::copy(memory_.reduction_of(layout_, b), memory_.gradients_of(layout_, b).data());
    }
    return {};
  }

  // Of a complete step: the sums of uses on this rank, to the first one's, which may then be reduced.
  void add_sums_of_uses(where at) {
    if (uses_added_) return;
    for (std::size_t i = 0; i < tied_.uses().size() && !rehearsed(); ++i)
      if (const std::size_t use = members_.size() + i; !contributors_[use].unwritten())
        tied_.add_use(any_group(), i, contributing(tied_.uses()[i].of).gradient(), at);
    for (std::size_t p = 0; seals() && p < members_.size(); ++p)
      if (has_uses(p)) note_complete(p, gradient_checksums::no_micro_batch, at);
    uses_added_ = true;
    launch_ready(at);
  }
  // Of what other ranks have of parameters that stages share. Also where the step is abandoned: they wait.
  void sum_over_ranks(where at) {
    if (tied_.shared().empty()) return;
    const auto own = [&](std::size_t p) {
      const std::size_t b = bucket_of_[p];
      const std::span<gradient_type> kept = memory_.gradients_of(layout_, b);
      return shards_.divides(b) ? kept : kept.subspan(memory_.places[b].before, memory_.places[b].own);
    };
    tied_.sum(any_group(), own, computed_, at);
  }

  void reduce_what_there_is(where at) {
    uses_added_ = true;
    states_.abandon();
    shards_.reduce_the_rest(contributors_, computed_, kept_, copies_, at);
    launch_ready(at);
    wait_for_buckets();
    sum_over_ranks(at);
    states_.withdraw();
  }

  [[nodiscard]] reduced_gradients<T> note_over() noexcept { return {owned_, states_.note_over(), states_}; }

  [[nodiscard]] reduced_gradients<T> divide(reduced_gradients<T> reduced, target_tokens divisor,
                                            const std::string& changed, where at) {
    const std::string different = compare_targets(changed.empty() ? divisor.count() : rank_comparison::abstains, at);
    if (!changed.empty()) throw usage_error(changed, at);
    if (!different.empty()) throw usage_error(different, at);
    if (!rehearsed()) {
      const auto scale = static_cast<gradient_type>(1.0 / static_cast<double>(divisor.count()));
      scale_owned(scale, at);
    }
    reduced.targets_ = divisor.count();
    return reduced;
  }

  // How the replica groups' ranks differ in their divisors, or "". Called once in every step, also where the step ends
  // without a divisor: the other ranks wait.
  std::string compare_targets(std::uint64_t targets, where at) {
    if (compares_ranks()) return difference_of_targets(compared_, replica_groups_, targets, at);
    return {};
  }

  void refuse_contribution(std::size_t parameter, std::size_t micro_batch, where at) {
    contributions_.count_wrong(parameter, micro_batch);
    if constexpr (checked(check_level::local))
      throw usage_error(wrong_contribution<T>(contributions_, all_contributing(), parameter, micro_batch), at);
  }

  std::vector<bucket_member<T>> members_;
  std::vector<bucket_replica_group<Group>> replica_groups_;
  std::shared_ptr<bucket_reductions<T>> kept_;  // by a reduction under way, also where nobody waits for it any more
  const bucket_layout& layout_;
  std::vector<std::size_t> bucket_of_;
  std::vector<owned_range<T>> owned_;
  bucket_memory<T> memory_;
  update_observers updates_;
  value_gathers<Group> gathers_;
  gradient_shards<T, Group> shards_;
  tied_sums<T> tied_;
  bool uses_added_ = true;  // to the parameters' gradients, in this step
  contribution_map contributions_;
  gradient_checksums& checksums_;
  shard_copies<T, Group> copies_;
  rank_comparison compared_;
  bool gathered_together_ = false;
  std::vector<bucket_contributor<gradient_buckets>> contributors_;
  gradient_states states_;
  std::vector<pending> pending_;
  stream_event computed_;  // the last contribution of a stream is in the gradients
  bool replicas_compared_ = false;
};

}  // namespace belay::inline BELAY_ABI
