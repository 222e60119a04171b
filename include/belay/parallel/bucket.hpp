// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gradients live in the buckets from the start: fixed memory, bound once, never copied. Every backward says
// which parameters it contributed to; when a bucket has all micro-batches it is reduced while the backward
// goes on, and `finish` waits for every bucket once and divides once. What it returns is the only thing an
// optimizer takes, so a gradient that was not reduced, or not divided, cannot be applied.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/contributions.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// A parameter in the list that buckets are made from, and the number of its family.
template <class T>
class bucket_member {
 public:
  template <class Parameter>
  bucket_member(Parameter& parameter, std::size_t family) : family_(family) {
    static_assert(std::derived_from<Parameter, trainable_parameter<T>>,
                  "only a trainable parameter of the buckets' type goes into a gradient bucket: a frozen one has no "
                  "gradient to reduce");
    if constexpr (std::derived_from<Parameter, trainable_parameter<T>>) parameter_ = &parameter;
  }

  [[nodiscard]] trainable_parameter<T>& parameter() const noexcept { return *parameter_; }
  [[nodiscard]] std::size_t family() const noexcept { return family_; }
  operator bucket_entry() const noexcept { return {parameter_->local_size(), family_}; }

 private:
  trainable_parameter<T>* parameter_ = nullptr;
  std::size_t family_;
};

/// What the buckets ask of a communicator.
template <class Group, class T>
concept reduces_buckets = communicator<Group> && can_start_all_reduce<Group, T> &&
                          can_start_reduce_scatter_v<Group, T> && can_start_all_gather_v<Group, T>;

/// The layout of `members`, for plans and for the buckets themselves.
template <class T>
[[nodiscard]] bucket_layout layout_of(std::span<const bucket_member<T>> members, std::span<const family_shape> families,
                                      std::size_t bucket_bytes, where at = where::current()) {
  return {members, families, sizeof(T), bucket_bytes, at};
}

/// The ranks that replicate some parameters, as a handle of this rank, and what they divide. The
/// group is a handle; its rank outlives the buckets.
template <class Group>
struct bucket_family {
  Group group;
  zero_stage stage = zero_stage::none;

  operator family_shape() const noexcept { return {static_cast<std::size_t>(group.size()), stage}; }
};

/// All gradient buckets of one rank. Buckets of all families are launched in one fixed order, so that ranks
/// never meet in different orders. One thread calls; the memory given to `bind` outlives the object. Over a
/// rehearsal's group they touch no memory: addresses without pages will do.
template <class T, class Group>
class gradient_buckets {
  static_assert(reduces_buckets<Group, T>,
                "gradient buckets need a communicator that can start all_reduce, reduce_scatter_v and all_gather_v");

 public:
  /// `members` in model order; at most `max_micro_batches` a step on this rank.
  gradient_buckets(std::vector<bucket_member<T>> members, std::vector<bucket_family<Group>> families,
                   std::size_t bucket_bytes, std::size_t max_micro_batches, where at = where::current())
      : members_(std::move(members)),
        families_(std::move(families)),
        layout_(members_, families_, sizeof(T), bucket_bytes, at),
        contributions_(members_.size(), max_micro_batches),
        bucket_of_(members_.size()),
        open_(layout_.buckets().size()),
        pending_(layout_.buckets().size()),
        gathers_(layout_.buckets().size()) {
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b)
      for (std::size_t parameter : layout_.buckets()[b].members) bucket_of_[parameter] = b;
  }
  gradient_buckets(const gradient_buckets&) = delete;  // parameters point into its memory
  gradient_buckets& operator=(const gradient_buckets&) = delete;

  [[nodiscard]] const bucket_layout& layout() const noexcept { return layout_; }

  /// Gives every parameter its memory: `layout().elements()` values and as many gradients. Touches neither: values are
  /// written by `initialise` or `fill` of their parameters, every gradient is zeroed by each `begin`.
  void bind(std::span<T> values, std::span<T> gradients, where at = where::current()) {
    if (values.size() != layout_.elements() || gradients.size() != layout_.elements())
      throw usage_error("the buckets need " + std::to_string(layout_.elements()) +
                            " values and as many gradients, got " + std::to_string(values.size()) + " and " +
                            std::to_string(gradients.size()),
                        at);
    values_ = values;
    gradients_ = gradients;
    for (std::size_t p = 0; p < members_.size(); ++p)
      members_[p].parameter().bind(values.data() + layout_.offset(p), gradients.data() + layout_.offset(p));
    list_owned();
  }

  /// Begins a step in which this rank contributes `micro_batches` (0 and more): gradients are zeroed.
  void begin(std::size_t micro_batches, where at = where::current()) {
    if (stage_ == phase::reducing)
      throw usage_error("the last step's gradients were neither finished nor abandoned", at);
    contributions_.begin(micro_batches, at);
    for (std::size_t b = 0; b < open_.size(); ++b)
      open_[b] = micro_batches * layout_.buckets()[b].members.size();
    if constexpr (!moves_nothing<Group>) {
      for (T& gradient : gradients_) gradient = T(0);
    }
    launched_ = 0;
    stage_ = phase::reducing;
    launch_ready(at);
  }

  /// A backward of `micro_batch` has added its part to parameters `first` to `first + count - 1` (model order).
  /// Once per parameter and micro-batch; a second time is a usage_error in checked builds and makes `finish`
  /// refuse in all.
  void contributed(std::size_t first, std::size_t count, std::size_t micro_batch, where at = where::current()) {
    if (stage_ != phase::reducing) throw usage_error("a contribution outside of a step: call begin first", at);
    for (std::size_t p = first; p < first + count; ++p) {
      if (p < members_.size() && micro_batch < contributions_.micro_batches() && contributions_.mark(p, micro_batch)) {
        --open_[bucket_of_[p]];
      } else if (contributions_.count_wrong(); checked(check_level::local)) {
        throw usage_error(wrong_contribution(p, micro_batch), at);
      }
    }
    launch_ready(at);
  }

  /// Whether every (parameter, micro-batch) was contributed, each once.
  [[nodiscard]] bool complete() const noexcept { return contributions_.complete(); }

  /// Waits for every bucket and divides by the number of target tokens of the global batch, once. Refuses a
  /// step that is not complete with the names of what is missing.
  [[nodiscard]] reduced_gradients<T> finish(target_tokens divisor, where at = where::current()) {
    if (stage_ != phase::reducing) throw usage_error("finish without begin, or twice", at);
    if (!complete()) throw usage_error(missing_text(), at);
    wait_for_buckets();
    stage_ = phase::reduced;
    const T scale = static_cast<T>(1.0 / static_cast<double>(divisor.count()));
    if constexpr (!moves_nothing<Group>) {
      for (const owned_range<T>& range : owned_)
        kernel::for_each_index(range.count, kernel::scale<T>{scale, range.gradient});
    }
    return reduced_gradients<T>(owned_, ++reductions_);
  }

  /// Ends a step that will not be committed: launches what the peers still wait for, waits, and leaves nothing
  /// in flight. The gradients are garbage afterwards.
  void abandon(where at = where::current()) {
    if (stage_ != phase::reducing) return;
    for (std::size_t& awaited : open_) awaited = 0;
    launch_ready(at);
    wait_for_buckets();
    stage_ = phase::idle;
  }

  /// "layer 3 norm: micro-batches 0 2; ..." of the first few that lack a contribution.
  [[nodiscard]] std::string missing_text() const {
    std::string text = "the step's gradients are not complete:";
    if (contributions_.wrong() != 0)
      text += " " + std::to_string(contributions_.wrong()) + " contributions were made twice or out of range;";
    std::size_t told = 0;
    for (std::size_t p = 0; p < members_.size() && told < 8; ++p) {
      if (contributions_.count(p) == contributions_.micro_batches()) continue;
      text += (told++ == 0 ? " parameter " : "; parameter ") + members_[p].parameter().name() + " misses micro-batch";
      for (std::size_t m = 0; m < contributions_.micro_batches(); ++m)
        if (!contributions_.has(p, m)) text += " " + std::to_string(m);
    }
    return text;
  }

  /// Buckets launched so far in this step.
  [[nodiscard]] std::size_t launched() const noexcept { return launched_; }

  /// What this rank updates, in the order of memory; `bucket` is ascending. Valid after bind.
  [[nodiscard]] std::span<const owned_range<T>> owned() const noexcept { return owned_; }

  /// Shares the owned values of a bucket with its family, after they were updated. Every rank of the family
  /// calls it for the same buckets in ascending order, then `finish_gathers`.
  void start_gather(std::size_t bucket, where at = where::current()) {
    const auto& b = layout_.buckets()[bucket];
    if (b.counts.size() < 2 || b.count == 0) return;
    gathers_[bucket] = families_[b.family].group.start_all_gather_v(values_.subspan(b.first, b.count), b.counts, at);
  }
  void finish_gathers() { settle(gathers_); }

  [[nodiscard]] trainable_parameter<T>& parameter(std::size_t number) const noexcept {
    return members_[number].parameter();
  }
  [[nodiscard]] std::size_t parameters() const noexcept { return members_.size(); }

 private:
  enum class phase { idle, reducing, reduced };

  void list_owned() {
    owned_.clear();
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
      const auto& bucket = layout_.buckets()[b];
      const auto rank = static_cast<std::size_t>(families_[bucket.family].group.rank());
      const norm_share share =
          bucket.counts.empty() && rank != 0 ? norm_share::counted_elsewhere : norm_share::counted_here;
      layout_.each_owned(bucket, rank, [&](const parameter_range& range) {
        const trainable_parameter<T>& p = members_[range.parameter].parameter();
        owned_.push_back({range.parameter, range.offset, range.count, b, p.value() + range.offset,
                          p.gradient() + range.offset, p.decay(), share});
      });
    }
  }

  void launch_ready(where at) {
    for (; launched_ < open_.size() && open_[launched_] == 0; ++launched_) {
      const auto& b = layout_.buckets()[launched_];
      Group& group = families_[b.family].group;
      if (group.size() < 2 || b.count == 0) continue;
      const std::span<T> memory = gradients_.subspan(b.first, b.count);
      if (b.counts.empty())
        pending_[launched_] = group.start_all_reduce(memory, sum, at);
      else
        pending_[launched_] = group.start_reduce_scatter_v(memory, b.counts, sum, at);
    }
  }

  void wait_for_buckets() {
    settle(pending_);
    launched_ = 0;
  }

  static void settle(std::vector<pending>& slots) {
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (slots[i].open()) std::move(slots[i]).wait();
  }

  [[nodiscard]] std::string wrong_contribution(std::size_t parameter, std::size_t micro_batch) const {
    if (parameter >= members_.size())
      return "contribution to parameter number " + std::to_string(parameter) + " of " + std::to_string(members_.size());
    const std::string& name = members_[parameter].parameter().name();
    if (micro_batch >= contributions_.micro_batches())
      return "contribution of micro-batch " + std::to_string(micro_batch) + " to parameter " + name +
             ": the step has " + std::to_string(contributions_.micro_batches());
    return "micro-batch " + std::to_string(micro_batch) + " contributed to parameter " + name + " twice";
  }

  std::vector<bucket_member<T>> members_;
  std::vector<bucket_family<Group>> families_;
  bucket_layout layout_;
  contribution_map contributions_;
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> open_;  // contributions a bucket still waits for
  std::vector<pending> pending_;
  std::vector<pending> gathers_;
  std::vector<owned_range<T>> owned_;
  std::span<T> values_;
  std::span<T> gradients_;
  std::size_t launched_ = 0;
  std::uint64_t reductions_ = 0;
  phase stage_ = phase::idle;
};

}  // namespace belay::inline BELAY_ABI
