// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gives layers whose parameters are divided among ranks the whole of them, for as long as a call of theirs runs. What a
// layer reads is gathered as one: into memory of the step, started when the layer before it begins where the step's
// order is known, and free for the next when the last call that holds it is over.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/lease_source.hpp"
#include "belay/device/stream.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/gathers/order.hpp"

namespace belay::inline BELAY_ABI {

/// When the whole parameters of a layer are given back: after each call, or when the step ends.
enum class reshard_when : std::uint8_t { after_use, after_step };

/// One bucket's gather: this rank's share, and those of its peers, into `whole`.
template <class T>
struct bucket_gather {
  std::span<T> whole;
  std::span<const T> share;
  std::size_t before;  // elements of the bucket before the share
  std::span<const std::size_t> counts;
  where at;

  template <class Calls>
  void operator()(const Calls& group) const {
    std::copy_n(share.data(), share.size(), whole.data() + before);
    group.all_gather_v(whole, counts, at);
  }
};

template <class Buckets>
class parameter_gathers {
 public:
  using value_type = typename Buckets::value_type;

  /// `buckets` and `source` outlive it. Layers are `expected` in that order.
  parameter_gathers(Buckets& buckets, lease_source& source, reshard_when reshards, gather_order expected)
      : buckets_(&buckets), source_(&source), reshards_(reshards), expected_(std::move(expected)) {}

  /// The layer that reads these buckets gets the next number.
  [[nodiscard]] std::uint32_t add_layer(std::vector<std::size_t> buckets, [[maybe_unused]] where at) {
    layer made;
    for (std::size_t b : buckets) made.slots.push_back({b, nullptr, {}, {}});
    layers_.push_back(std::move(made));
    return static_cast<std::uint32_t>(layers_.size() - 1);
  }

  void begin_step(auto& stream, where at) {
    expected_.begin_step();
    in_step_ = true;
    start_next(stream, at);
  }
  void end_step() noexcept { in_step_ = false; }

  /// Later work of `stream` finds the layer's parameters whole, until as many calls of `give_back`.
  void hold(std::uint32_t number, auto& stream, where at) {
    layer& one = layers_[number];
    if (one.holders++ > 0) return;
    const bool in_order = in_step_ && expected_.advance(number);
    if (in_step_) noted_.note(number);
    if (one.resident) {  // it was kept
      counts_.prefetched += in_step_ ? 1 : 0;
      return start_next(stream, at);
    }
    if (!one.started) {
      // The plan's memory is that of the next layer: it gives way.
      if (!in_order && started_ != gather_order::nothing) take_back(layers_[started_], stream, at);
      start(number, stream, at);
      if (in_step_) ++(in_order ? counts_.in_order : counts_.missed);
    } else if (in_step_) {
      ++counts_.prefetched;
    }
    if (started_ == number) started_ = gather_order::nothing;
    one.started = false;
    one.resident = true;
    for (slot& each : one.slots) {
      std::move(each.over).then(stream, at);
      place(each, each.first);
    }
    if (in_step_ && reshards_ == reshard_when::after_step) ++one.holders;
    start_next(stream, at);
  }
  void give_back(std::uint32_t number) noexcept {
    layer& one = layers_[number];
    const bool is_next = in_step_ && expected_.next() == number;
    if (--one.holders == 0 && !is_next) release(one);
  }

  /// Between steps: ends what a step has left, and what it holds to its end. Waits for gathers that nobody used.
  void retire(where at) {
    for (layer& one : layers_) {
      for (slot& each : one.slots)
        if (each.over.open()) std::move(each.over).wait(at);
      if (one.started || one.resident) release(one);
      one.holders = 0;
    }
    started_ = gather_order::nothing;
  }

  [[nodiscard]] const gather_counts& counts() const noexcept { return counts_; }
  /// What was counted since the last call.
  [[nodiscard]] gather_counts take_counts() noexcept { return std::exchange(counts_, {}); }
  /// The order in which layers were gathered since `forget_order`.
  [[nodiscard]] const gather_order& noted() const noexcept { return noted_; }
  void forget_order() noexcept { noted_ = {}; }
  [[nodiscard]] std::size_t bytes_of(std::uint32_t number) const noexcept {
    std::size_t all = 0;
    for (const slot& each : layers_[number].slots)
      all += buckets_->layout().buckets()[each.bucket].count * sizeof(value_type);
    return all;
  }
  /// Bytes of the layers that are whole, or on their way.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }

 private:
  struct slot {
    std::size_t bucket;
    value_type* first;  // while it has a lease
    lease_chain lease;
    pending over;
  };
  struct layer {
    std::vector<slot> slots;
    std::size_t holders = 0;
    bool started = false, resident = false;
  };

  void start_next(auto& stream, where at) {
    if (!in_step_) return;
    const std::uint32_t next = expected_.next();
    if (next == gather_order::nothing || started_ != gather_order::nothing) return;
    if (layers_[next].started || layers_[next].resident) return;
    start(next, stream, at);
    started_ = next;
  }
  void start(std::uint32_t number, auto& stream, where at) {
    layer& one = layers_[number];
    const auto& layout = buckets_->layout();
    for (slot& each : one.slots) {
      const auto& b = layout.buckets()[each.bucket];
      each.first = reinterpret_cast<value_type*>(source_->lease_bytes(b.count * sizeof(value_type), each.lease, at));
      const bucket_gather<value_type> work{{each.first, b.count},
                                           buckets_->values_of(each.bucket),
                                           buckets_->places()[each.bucket].before,
                                           b.counts,
                                           at};
      // What the memory held before is used up, and the last update is in the shares.
      const start_order order = start_order(after(stream.record(), at)).keeping(buckets_->kept_layout());
      each.over = buckets_->group_of(each.bucket).start_composite(operation::all_gather_v, work, order);
    }
    one.started = true;
    live_ += bytes_of(number);
    counts_.peak_bytes = std::max(counts_.peak_bytes, live_);
  }
  void take_back(layer& one, auto& stream, where at) {
    for (slot& each : one.slots) std::move(each.over).then(stream, at);
    release(one);
    started_ = gather_order::nothing;
  }
  void release(layer& one) noexcept {
    for (slot& each : one.slots) {
      place(each, nullptr);
      source_->release(each.lease);
      live_ -= buckets_->layout().buckets()[each.bucket].count * sizeof(value_type);
    }
    one.started = one.resident = false;
  }
  void place(const slot& each, value_type* first) const noexcept {
    const auto& layout = buckets_->layout();
    const auto& b = layout.buckets()[each.bucket];
    for (std::size_t p : b.members)
      buckets_->parameter(p).place_values(first == nullptr ? nullptr : first + layout.offset(p) - b.first);
  }

  Buckets* buckets_;
  lease_source* source_;
  reshard_when reshards_;
  gather_order expected_, noted_;
  std::vector<layer> layers_;
  std::uint32_t started_ = gather_order::nothing;
  gather_counts counts_;
  std::size_t live_ = 0;
  bool in_step_ = false;
};

}  // namespace belay::inline BELAY_ABI
