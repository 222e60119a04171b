// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store's part of a committed step: its reduced, divided gradients. An optimizer consumes it; one that is dropped is
// named when the store begins the next step.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/printable.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/step/commit.hpp"

namespace belay::inline BELAY_ABI {

template <class Store>
class [[nodiscard]] store_gradients {
 public:
  using store_type = Store;
  using value_type = typename Store::value_type;
  static constexpr bool reduces = true;

  store_gradients(store_gradients&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        reduced_(std::move(other.reduced_)),
        squares_(other.squares_),
        summary_(other.summary_) {}
  store_gradients& operator=(store_gradients&&) = delete;
  ~store_gradients() {
    if (store_ != nullptr) store_->note_unapplied(summary_.number);
  }

  /// The ranges that this rank owns, in the order of memory, to look at.
  [[nodiscard]] owned_gradients<value_type> owned() const {
    if (store_ != nullptr && store_->rehearsed()) store_->ask_shards();
    return owned_gradients<value_type>(reduced_.owned());
  }
  /// Whether they are still to be applied, and those of a store with such buckets.
  [[nodiscard]] bool are_of(const typename Store::buckets_type& buckets) const noexcept {
    return store_ != nullptr && &std::as_const(*store_).buckets() == &buckets;
  }
  [[nodiscard]] const step_summary& summary() const noexcept { return summary_; }
  /// The sum of squares of all gradients of the store, on all ranks.
  [[nodiscard]] double squares() const noexcept { return squares_; }
  [[nodiscard]] std::uint64_t divisor() const noexcept { return reduced_.targets(); }
  template <class Participant>
  [[nodiscard]] bool is_of(const Participant& participant) const noexcept {
    return static_cast<const void*>(store_) == static_cast<const void*>(std::addressof(participant));
  }

  /// For optimizers: the gradients, which are no longer owed.
  [[nodiscard]] reduced_gradients<value_type> take() && noexcept {
    store_ = nullptr;
    return std::move(reduced_);
  }
  void discard() noexcept { static_cast<void>(std::move(*this).take()); }
  /// For `committed_gradients`: the step that was committed.
  void note(const step_summary& summary) noexcept { summary_ = summary; }

 private:
  friend Store;
  store_gradients(Store& store, reduced_gradients<value_type>&& reduced, double squares) noexcept
      : store_(&store), reduced_(std::move(reduced)), squares_(squares) {}

  Store* store_;
  reduced_gradients<value_type> reduced_;
  double squares_;
  step_summary summary_;
};

}  // namespace belay::inline BELAY_ABI
