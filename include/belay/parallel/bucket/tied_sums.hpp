// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The gradients of parameters that several stages of a pipeline share. A use, which is what one stage has of such a
// parameter, has a sum of its own, to which its micro-batches add in their order, whatever the schedule. Sums of stages
// of one rank lie beside the parameter's bucket, are added to it in the order of stages when the step is complete, and
// are reduced with it. Then ranks that hold other stages exchange their reduced shards, and each adds all of them in
// one order: all get the same bits.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// A further use of a parameter of the buckets by another stage of this rank: it reads that parameter's values, and its
/// gradient is a sum of its own.
template <class T>
struct tied_use {
  trainable_parameter<T>* use = nullptr;
  std::size_t of = 0;  // the number of the parameter
};

/// Number `parameter` of the buckets, and the ranks of the pipeline that have stages with it, this one among them, in
/// the order in which their gradients are added.
struct tied_ranks {
  std::size_t parameter = 0;
  std::vector<int> ranks = {};
};

template <class T>
class tied_sums {
 public:
  using gradient_type = compute_type_t<T>;

  /// Further uses, in the order in which their sums are added. Called once, before `bind`.
  void add(std::vector<tied_use<T>> uses) { uses_ = std::move(uses); }
  [[nodiscard]] std::span<const tied_use<T>> uses() const noexcept { return uses_; }
  [[nodiscard]] bool any() const noexcept { return !uses_.empty(); }
  /// Whether the gradient of parameter `number` is complete only with sums beside it.
  [[nodiscard]] bool has_uses_of(std::size_t number) const noexcept {
    return std::any_of(uses_.begin(), uses_.end(), [&](const tied_use<T>& each) { return each.of == number; });
  }
  /// Elements of the memory for their sums.
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t all = 0;
    for (const tied_use<T>& each : uses_) all += each.use->local_size();
    return all;
  }
  /// Gives each use the values of its parameter, `value_of(number)`, and a sum in `memory`, of which
  /// `contribution_of(use)` is told.
  template <class ValueOf, class ContributionOf>
  void bind(std::span<gradient_type> memory, const ValueOf& value_of, const ContributionOf& contribution_of) {
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      uses_[i].use->bind(value_of(uses_[i].of), memory.data(), contribution_of(i));
      memory = memory.subspan(uses_[i].use->local_size());
    }
  }
  /// Of a complete step: adds the sum of use `number` to `gradient`, which is its parameter's.
  template <class Group>
  void add_use(const Group& group, std::size_t number, gradient_type* gradient, where at) const {
    const trainable_parameter<T>& use = *uses_[number].use;
    each_in_memory_of(group, use.local_size(),
                      kernel::axpy<gradient_type, gradient_type>{gradient_type(1), use.gradient(), gradient}, at);
  }

  /// From now on `sum` adds gradients of `shared` over `stages`, a pipeline, one after the other, in this order, which
  /// is one on all of its ranks. What others have comes into `room`, which has `room_for` elements.
  void sum_over(const group& stages, std::vector<tied_ranks> shared, std::span<gradient_type> room) {
    stages_.emplace(stages);
    shared_ = std::move(shared);
    room_ = room;
    transfers_->clear();
    for (const tied_ranks& each : shared_) transfers_->emplace_back(2 * (each.ranks.size() - 1));
  }
  [[nodiscard]] std::span<const tied_ranks> shared() const noexcept { return shared_; }
  /// Elements of the largest exchange with `others` ranks more, where `own_elements` is what a rank has of a gradient.
  [[nodiscard]] static constexpr std::size_t room_for(std::size_t own_elements, std::size_t others) noexcept {
    return own_elements * others;
  }
  /// Collective over the ranks of each. `gradient_of(number)` is what this rank keeps of a gradient: on all of its
  /// ranks the same part. `memory_group` works on that memory.
  template <class Group, class GradientOf>
  void sum(const Group& memory_group, const GradientOf& gradient_of, const stream_event& computed, where at) {
    for (std::size_t i = 0; i < shared_.size(); ++i) {
      const std::span<gradient_type> own = gradient_of(shared_[i].parameter);
      exchange((*transfers_)[i], shared_[i].ranks, own, computed, at);
      if (is_rehearsed(*stages_)) continue;
      add_in_order(memory_group, shared_[i].ranks, own, at);
    }
  }

 private:
  [[nodiscard]] std::span<gradient_type> arrived(std::size_t number, std::size_t elements) const noexcept {
    return room_.subspan(number * elements, elements);
  }
  void exchange(std::vector<p2p>& transfers, const std::vector<int>& ranks, std::span<gradient_type> own,
                const stream_event& computed, where at) {
    if (own.empty()) return;
    std::size_t count = 0, number = 0;
    for (const int rank : ranks) {
      if (rank == layout_rank(*stages_)) continue;
      transfers[count++] = p2p::send(rank, own);
      transfers[count++] = p2p::receive(rank, arrived(number++, own.size()));
    }
    pending under_way = stages_->start_exchange(transfers, start_order(after(computed, at)).keeping(transfers_));
    std::move(under_way).wait(at);
  }
  // Every rank adds in the order of `ranks`: those before this one to each other, then its own, then those after it.
  template <class Group>
  void add_in_order(const Group& group, const std::vector<int>& ranks, std::span<gradient_type> own, where at) const {
    const auto add = [&](std::span<gradient_type> from, std::span<gradient_type> to) {
      each_in_memory_of(group, to.size(),
                        kernel::axpy<gradient_type, gradient_type>{gradient_type(1), from.data(), to.data()}, at);
    };
    const auto before =
        static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), layout_rank(*stages_)) - ranks.begin());
    for (std::size_t i = 1; i < before; ++i) add(arrived(i, own.size()), arrived(0, own.size()));
    if (before > 0) add(arrived(0, own.size()), own);  // a sum of two has the same bits in either order
    for (std::size_t i = before; i + 1 < ranks.size(); ++i) add(arrived(i, own.size()), own);
  }

  std::vector<tied_use<T>> uses_;
  std::optional<group> stages_;
  std::vector<tied_ranks> shared_;
  std::span<gradient_type> room_;
  std::shared_ptr<std::vector<std::vector<p2p>>> transfers_ = std::make_shared<std::vector<std::vector<p2p>>>();
};

}  // namespace belay::inline BELAY_ABI
