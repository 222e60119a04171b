// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How buckets learn that a backward has added to a parameter, what of a step is still missing, and the words for what
// is wrong with its contributions.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/start_order.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/step/contribution.hpp"

namespace belay::inline BELAY_ABI {

/// Tells the buckets of what frames have added to one of their parameters.
template <class Buckets>
class bucket_contributor final : public contribution_target {
 public:
  /// `owner` outlives this and stays where it is.
  bucket_contributor(Buckets& owner, std::size_t parameter) noexcept : owner_(&owner), parameter_(parameter) {}

  void begin_adding() override {
    if (needs_memory())
      throw usage_error(
          "gradients that are divided among ranks (ZeRO 2 and 3) have memory for frame.add_to alone: a "
          "trainer's own functions add to those of belay::zero<1>",
          where{});
    if (unwritten()) owner_->zero(parameter_);
  }
  [[nodiscard]] std::uint64_t content() const override { return owner_->content_of(parameter_); }
  [[nodiscard]] std::string_view parameter_name() const noexcept override {
    return owner_->contributing(parameter_).name();
  }
  [[nodiscard]] stream_event before_memory() const override { return owner_->before_memory(); }
  stream_event give_memory(where at) override { return owner_->give_memory(parameter_, at); }
  void contribute(std::size_t micro_batch, const stream_event& added, where at) override {
    begin_adding();  // a call that adds nothing
    owner_->contributed(parameter_, 1, micro_batch, after(added, at));
  }

 private:
  Buckets* owner_;
  std::size_t parameter_;
};

/// One bit for every (use of a parameter, micro-batch) of a step. A gradient is complete when every bit was set exactly
/// once. A count alone would let a double contribution hide a missing one.
class contribution_map {
 public:
  /// `uses[p]`: how often a micro-batch contributes to parameter p.
  contribution_map(std::span<const std::size_t> uses, std::size_t max_micro_batches, where at = where::current())
      : words_(checked_size(max_micro_batches).rounded_up(64).saturated() / 64),
        max_micro_batches_(max_micro_batches),
        first_row_(uses.size() + 1),
        counts_(uses.size()) {
    checked_size rows;
    for (std::size_t p = 0; p < uses.size(); ++p) first_row_[p + 1] = (rows += uses[p]).saturated();
    const auto words = [&] {
      return std::to_string(max_micro_batches) + " micro-batches of " + std::to_string(rows.saturated()) +
             " uses of parameters are";
    };
    static_cast<void>((checked_size(max_micro_batches).rounded_up(64) * rows).value(words, at));
    bits_.resize(first_row_.back() * words_);
  }

  /// Forgets the last step; allocates nothing.
  void begin(std::size_t micro_batches, where at) {
    if (micro_batches > max_micro_batches_)
      throw usage_error("a step of " + std::to_string(micro_batches) + " micro-batches; the buckets were made for " +
                            std::to_string(max_micro_batches_),
                        at);
    micro_batches_ = micro_batches;
    for (std::uint64_t& word : bits_) word = 0;
    for (std::size_t& count : counts_) count = 0;
    missing_ = first_row_.back() * micro_batches;
    wrong_ = 0;
  }

  /// False if every use was marked before. Both indices are in range.
  [[nodiscard]] bool mark(std::size_t parameter, std::size_t micro_batch) noexcept {
    for (std::size_t row = first_row_[parameter]; row < first_row_[parameter + 1]; ++row) {
      std::uint64_t& word = bits_[row * words_ + micro_batch / 64];
      const std::uint64_t bit = std::uint64_t{1} << (micro_batch % 64);
      if ((word & bit) != 0) continue;
      word |= bit;
      ++counts_[parameter];
      --missing_;
      return true;
    }
    return false;
  }
  /// Contributions of a micro-batch to a parameter so far, `uses(parameter)` at most.
  [[nodiscard]] std::size_t count(std::size_t parameter, std::size_t micro_batch) const noexcept {
    std::size_t found = 0;
    for (std::size_t row = first_row_[parameter]; row < first_row_[parameter + 1]; ++row)
      found += bits_[row * words_ + micro_batch / 64] >> (micro_batch % 64) & 1;
    return found;
  }

  /// Remembers a contribution that was made too often or out of range.
  void count_wrong(std::size_t parameter, std::size_t micro_batch) noexcept {
    if (wrong_++ == 0) first_wrong_ = parameter, first_wrong_micro_batch_ = micro_batch;
  }

  [[nodiscard]] std::size_t uses(std::size_t parameter) const noexcept {
    return first_row_[parameter + 1] - first_row_[parameter];
  }
  [[nodiscard]] std::size_t micro_batches() const noexcept { return micro_batches_; }
  [[nodiscard]] std::size_t max_micro_batches() const noexcept { return max_micro_batches_; }
  /// Whether anything was contributed since `begin`.
  [[nodiscard]] bool any() const noexcept { return wrong_ != 0 || missing_ != first_row_.back() * micro_batches_; }
  /// Whether anything was contributed to one parameter since `begin`.
  [[nodiscard]] bool any(std::size_t parameter) const noexcept { return counts_[parameter] != 0; }
  [[nodiscard]] std::size_t wrong() const noexcept { return wrong_; }
  /// Of the first of them, where there is one.
  [[nodiscard]] std::size_t first_wrong() const noexcept { return first_wrong_; }
  [[nodiscard]] std::size_t first_wrong_micro_batch() const noexcept { return first_wrong_micro_batch_; }
  /// Whether a parameter has every contribution of the step.
  [[nodiscard]] bool complete(std::size_t parameter) const noexcept {
    return counts_[parameter] == uses(parameter) * micro_batches_;
  }
  [[nodiscard]] bool complete() const noexcept { return missing_ == 0 && wrong_ == 0; }

 private:
  std::size_t words_;
  std::size_t max_micro_batches_;
  std::size_t micro_batches_ = 0;
  std::size_t missing_ = 0;
  std::size_t wrong_ = 0;
  std::size_t first_wrong_ = 0;
  std::size_t first_wrong_micro_batch_ = 0;
  std::vector<std::size_t> first_row_;  // of each parameter: a row of bits for every use
  std::vector<std::uint64_t> bits_;
  std::vector<std::size_t> counts_;
};

/// A contribution that was made too often, or to a parameter or micro-batch that does not exist.
template <class T>
[[nodiscard]] std::string wrong_contribution(const contribution_map& made, std::span<const bucket_member<T>> members,
                                             std::size_t parameter, std::size_t micro_batch) {
  if (parameter >= members.size())
    return "contribution to parameter number " + std::to_string(parameter) + " of " + std::to_string(members.size());
  const std::string name = printable(members[parameter].parameter().name());
  if (micro_batch >= made.micro_batches())
    return "contribution of micro-batch " + std::to_string(micro_batch) + " to parameter " + name + ": the step has " +
           std::to_string(made.micro_batches());
  const std::size_t uses = made.uses(parameter);
  return "micro-batch " + std::to_string(micro_batch) + " contributed to parameter " + name +
         (uses == 1 ? " twice; one that two layers share is made with {.uses = 2}"
                    : " more often than its " + std::to_string(uses) + " uses");
}

/// "parameter wte misses micro-batch 0 2; ...": the first few parameters that lack a contribution.
template <class T>
[[nodiscard]] std::string missing_contributions(const contribution_map& made,
                                                std::span<const bucket_member<T>> members) {
  std::string text = "the step's gradients are not complete:";
  if (made.wrong() != 0)
    text += " " + std::to_string(made.wrong()) + " contributions too many or out of range (the first: " +
            wrong_contribution<T>(made, members, made.first_wrong(), made.first_wrong_micro_batch()) + ");";
  std::size_t told = 0;
  for (std::size_t p = 0; p < members.size() && told < 8; ++p) {
    if (made.complete(p)) continue;
    const std::size_t uses = made.uses(p);
    text += (told++ == 0 ? " parameter " : "; parameter ") + printable(members[p].parameter().name()) +
            " misses micro-batch";
    for (std::size_t m = 0; m < made.micro_batches(); ++m) {
      const std::size_t count = made.count(p, m);
      if (count == uses) continue;
      text += " " + std::to_string(m);
      if (uses > 1) text += " (" + std::to_string(count) + " of " + std::to_string(uses) + " uses)";
    }
  }
  return text;
}

/// The message about a gradient that changed after its last contribution, which `last` names.
[[nodiscard]] inline std::string changed_gradient(const std::string& name, const std::string& last) {
  return "the gradient of parameter " + name + " changed after its last contribution (" + last +
         "): call contributed when the backward that adds to it is over; a parameter that several layers share is "
         "made with as many uses";
}

}  // namespace belay::inline BELAY_ABI
