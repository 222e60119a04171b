// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gives layers whose parameters are divided among ranks the whole of them, for as long as a call of theirs runs. What a
// layer reads is gathered as one: into memory of the step, started when the layer before it begins where the step's
// order is known, and free for the next when the last call that holds it is over.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/lease_source.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/parallel/gathers/executed_orders.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/parallel/gathers/reached_values.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"

namespace belay::inline BELAY_ABI {

/// When the whole parameters of a layer are given back: after each call, or when the step ends.
enum class reshard_when : std::uint8_t { after_use, after_step };

/// Whether a gather is the next one of the plan.
enum class plan_says : std::uint8_t { so, another };

/// One bucket's gather: this rank's share, which is empty where it is in `whole` already, and those of its peers, into
/// `whole`. Where it is not as the plan says, its
/// ranks first say which layer they mean: if they do not agree, it throws usage_error, and the world stops.
template <class T>
struct bucket_gather {
  std::span<T> whole;
  std::span<const T> share;
  std::size_t before;  // elements of the bucket before the share
  std::span<const std::size_t> counts;
  std::uint32_t layer;
  plan_says says;
  where at;

  template <class Calls>
  void operator()(const Calls& group) const {
    if (says == plan_says::another) expect_one_layer(group);
    std::copy_n(share.data(), share.size(), whole.data() + before);
    group.all_gather_v(whole, counts, at);
  }

 private:
  template <class Calls>
  void expect_one_layer(const Calls& group) const {
    const std::uint64_t own[] = {layer};
    std::vector<std::uint64_t> all(counts.size());
    group.all_gather(std::span<const std::uint64_t>(own), std::span(all), at);
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r] != all.front())
        throw usage_error("ranks gather different layers, and the plan says neither: rank 0 of the group number " +
                              std::to_string(all.front()) + " of its gathers, rank " + std::to_string(r) + " number " +
                              std::to_string(all[r]),
                          at);
  }
};

/// Throws usage_error on all ranks of `group` where their plans differ: each waits in the gathers of the others.
/// Collective.
template <class Group>
void expect_one_plan(rank_comparison& compared, const Group& group, std::uint64_t fingerprint, where at) {
  if constexpr (!moves_nothing<Group>) {
    const std::array<std::uint64_t, 1> own{fingerprint};
    if (!compared.differ(group, own, at)) return;
    throw usage_error(compared.ranks(group) +
                          " gather the layers of a step in different orders: ranks that divide parameters call their "
                          "layers in one order",
                      at);
  }
}

template <class T, class Group>
class parameter_gathers {
 public:
  using bucket_type = gathered_bucket<T, Group>;

  /// `source` outlives it. Layers are gathered early as `expected`.
  parameter_gathers(lease_source& source, reshard_when reshards, gather_plan expected)
      : source_(&source), reshards_(reshards), expected_(std::move(expected)) {}

  /// The layer that reads these buckets gets the next number.
  [[nodiscard]] std::uint32_t add_layer(std::vector<bucket_type> buckets) {
    layer made;
    for (bucket_type& b : buckets) {
      if constexpr (!moves_nothing<Group>)
        if (b.reached == nullptr) add_unique(made.groups, executed_.add(*b.group));
      made.slots.push_back({std::move(b), nullptr, {}, {}});
    }
    layers_.push_back(std::move(made));
    return static_cast<std::uint32_t>(layers_.size() - 1);
  }

  /// Between `begin_step` and `end_step` gathers are those of a step; all of one epoch of the engine beside that are a
  /// pass's, of a rollout where the engine is in that phase, else of an evaluation.
  void begin_step(auto& engine, where at) {
    begin(phase::train, engine.epoch());
    in_step_ = true;
    executed_.begin();
    start_next(engine.compute(), at);
  }
  void end_step() noexcept { in_step_ = false; }
  /// Throws usage_error on all ranks that gather together where they have gathered other layers in the step, or in
  /// another order. Collective over them; does nothing where each rank gathers by itself.
  void expect_one_order(order_of_step own, where at) { executed_.expect_equal(own, at); }

  /// Later work of the engine's stream finds the layer's parameters whole, until as many calls of `give_back`.
  void hold(std::uint32_t number, auto& engine, where at) {
    auto& stream = engine.compute();
    if (!in_step_ && engine.epoch() != epoch_) {
      if (started_ != gather_order::nothing) take_back(layers_[started_], stream, at);
      begin(engine.current_phase() == phase::rollout ? phase::rollout : phase::eval, engine.epoch());
    }
    layer& one = layers_[number];
    if (one.holders++ > 0) return;
    const bool in_order = expected().advance(number);
    if constexpr (std::remove_cvref_t<decltype(stream)>::runs_nothing) noted_[index(phase_)].note(number);
    if (in_step_)
      for (const std::size_t group : one.groups) executed_.note(group, number);
    if (one.resident) {  // it was kept
      ++counts().prefetched;
      return start_next(stream, at);
    }
    if (!one.started) {
      // The plan's memory is that of the next layer: it gives way.
      if (!in_order && started_ != gather_order::nothing) take_back(layers_[started_], stream, at);
      start(number, in_order ? plan_says::so : plan_says::another, stream, at);
      ++(in_order ? counts().in_order : counts().missed);
    } else {
      ++counts().prefetched;
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
    const bool is_next = expected().next() == number;
    if (--one.holders == 0 && !is_next) release(one);
  }

  /// Between steps: ends what a step has left, and what it holds to its end. Waits for gathers that nobody used.
  void retire(where at) {
    for (layer& one : layers_) {
      for (slot& each : one.slots)
        if (each.over.open()) {
          const stream_event over = each.over.event();
          std::move(each.over).wait(at);
          source_->host_waited(over);
        }
      if (one.started || one.resident) release(one);
      one.holders = 0;
    }
    started_ = gather_order::nothing;
  }

  [[nodiscard]] const gather_counts& counts(phase of) const noexcept { return counts_[index(of)]; }
  /// What was counted since the last call.
  [[nodiscard]] gather_counts take_counts(phase of) noexcept { return std::exchange(counts_[index(of)], {}); }
  /// In a rehearsal: the order in which the last step, or pass, gathered layers.
  [[nodiscard]] const gather_order& noted(phase of) const noexcept { return noted_[index(of)]; }
  /// A hash of the plan.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    fnv1a hash;
    for (const gather_order& order : expected_) hash.add(order.fingerprint());
    return hash.value();
  }

  [[nodiscard]] std::size_t bytes_of(std::uint32_t number) const noexcept {
    std::size_t all = 0;
    for (const slot& each : layers_[number].slots) all += each.of.count * sizeof(T);
    return all;
  }
  /// Bytes of the layers that are whole, or on their way.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }

 private:
  struct slot {
    bucket_type of;
    T* first;  // while it has a lease
    lease_chain lease;
    pending over;
  };
  struct layer {
    std::vector<slot> slots;
    std::vector<std::size_t> groups;  // that gather it together, by their number in `executed_`
    std::size_t holders = 0;
    bool started = false, resident = false;
  };

  [[nodiscard]] static constexpr std::size_t index(phase of) noexcept { return static_cast<std::size_t>(of); }
  [[nodiscard]] gather_order& expected() noexcept { return expected_[index(phase_)]; }
  [[nodiscard]] gather_counts& counts() noexcept { return counts_[index(phase_)]; }

  static void add_unique(std::vector<std::size_t>& all, std::size_t number) {
    if (std::find(all.begin(), all.end(), number) == all.end()) all.push_back(number);
  }
  void begin(phase now, std::uint64_t epoch) noexcept {
    phase_ = now;
    epoch_ = epoch;
    expected().begin();
    noted_[index(now)] = {};
  }
  void start_next(auto& stream, where at) {
    const std::uint32_t next = expected().next();
    if (next == gather_order::nothing || started_ != gather_order::nothing) return;
    if (layers_[next].started || layers_[next].resident) return;
    start(next, plan_says::so, stream, at);
    started_ = next;
  }
  void start(std::uint32_t number, plan_says says, auto& stream, where at) {
    layer& one = layers_[number];
    // What the memory held before is used up then, and this rank's last update is in its share.
    const stream_event ready = stream.record();
    for (slot& each : one.slots) {
      const bucket_type& b = each.of;
      const std::size_t bytes = b.count * sizeof(T);
      // A share in a file is staged by its owner: the stream of copies reads it to where it belongs.
      const stream_kind first_user = b.file == nullptr ? stream_kind::communication : stream_kind::copy;
      each.first = reinterpret_cast<T*>(source_->lease_bytes_for(first_user, ready, bytes, each.lease, at));
      const stream_event begins =
          b.file == nullptr ? ready
                            : b.file->load(ready, b.share.data(), each.first + b.before, b.share.size_bytes(), at);
      each.over = gather(b, each.first, number, says, start_order(after(begins, at)));
      source_->used_until(each.over.event(), each.first, bytes);
    }
    one.started = true;
    live_ += bytes_of(number);
    counts().peak_bytes = std::max(counts().peak_bytes, live_);
  }
  [[nodiscard]] static pending gather(const bucket_type& b, T* whole, std::uint32_t number, plan_says says,
                                      const start_order& order) {
    if constexpr (can_start_local<Group, bucket_pull<T>>) {
      const std::span<const std::size_t> counts = b.counts;
      if (b.reached != nullptr)
        return b.group->start_local(operation::all_gather_v, bucket_pull<T>{whole, b.reached->first, counts},
                                    order.keeping(b.reached));
    }
    const std::span<const T> share = b.file == nullptr ? b.share : std::span<const T>();
    const bucket_gather<T> work{{whole, b.count}, share, b.before, b.counts, number, says, order.at};
    return b.group->start_composite(operation::all_gather_v, work, order.keeping(b.kept));
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
      live_ -= each.of.count * sizeof(T);
    }
    one.started = one.resident = false;
  }
  static void place(const slot& each, T* first) noexcept {
    for (const auto& one : each.of.parameters)
      one.parameter->place_values(first == nullptr ? nullptr : first + one.offset);
  }

  lease_source* source_;
  reshard_when reshards_;
  gather_plan expected_, noted_;
  std::vector<layer> layers_;
  executed_orders<Group> executed_;
  std::uint32_t started_ = gather_order::nothing;
  std::array<gather_counts, phase_count> counts_;
  std::size_t live_ = 0;
  std::uint64_t epoch_ = 0;    // of the engine, in which the step or pass began
  phase phase_ = phase::eval;  // of the step or pass
  bool in_step_ = false;
};

}  // namespace belay::inline BELAY_ABI
