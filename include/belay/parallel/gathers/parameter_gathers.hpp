// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gives layers whose parameters are divided among ranks the whole of them, for as long as a call of theirs runs. What a
// layer reads is gathered as one: into memory of the step, started when a layer before it begins where the step's order
// is known, and free for others when the last call that holds it is over.
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
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/lease_owners.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"

namespace belay::inline BELAY_ABI {

/// When the whole parameters of a layer are given back: after each call, or when the step ends.
enum class reshard_when : std::uint8_t { after_use, after_step };

/// When a step gathers its first layers.
enum class gathers_begin : std::uint8_t { with_step, when_asked };

/// Whether a gather is the next one of the plan.
enum class plan_says : std::uint8_t { so, another };

/// One bucket's gather: this rank's shard, which is empty where it is in `whole` already, and those of its peers, into
/// `whole`. Where it is not as the plan says, its ranks first say which layer they mean, and how many they have
/// gathered together in this step or pass: if they do not agree, it throws usage_error, and the world stops.
template <class T>
struct bucket_gather {
  std::span<T> whole;
  std::span<const T> shard;
  std::size_t before;  // elements of the bucket before the shard
  std::span<const std::size_t> counts;
  std::uint64_t layer, place;  // this is the group's gather number `place` of the step or pass
  plan_says says;
  where at;

  template <class Calls>
  void operator()(const Calls& group) const {
    if (says == plan_says::another) expect_one_gather(group);
    each_among(group, shard.size(), kernel::copy<T, T>{shard.data(), whole.data() + before});
    group.all_gather_v(whole, counts, at);
  }

 private:
  template <class Calls>
  void expect_one_gather(const Calls& group) const {
    const std::uint64_t own[] = {layer, place};
    std::vector<std::uint64_t> all(2 * counts.size());
    host_calls_of(group).all_gather(std::span<const std::uint64_t>(own), std::span(all), at);
    for (std::size_t r = 1; r < counts.size(); ++r) {
      if (all[2 * r] == all[0] && all[2 * r + 1] == all[1]) continue;
      const char* const what =
          all[2 * r] == all[0] ? "ranks gather a layer at different places" : "ranks gather different layers";
      const auto said_by = [&](std::size_t rank) {
        return "rank " + std::to_string(rank) + " of the group says layer " + std::to_string(all[2 * rank]) +
               " of the store, as gather " + std::to_string(all[2 * rank + 1]) + " of its step or pass";
      };
      throw usage_error(what + (", and the plan says neither: " + said_by(0)) + "; " + said_by(r), at);
    }
  }
};

/// Throws usage_error on all ranks of `group` where their plans differ: each waits in the gathers of the others.
/// Collective.
template <class Group>
void expect_one_plan(rank_comparison& compared, const Group& group, std::uint64_t fingerprint, where at,
                     std::size_t micro_batches = 0) {
  if (!is_rehearsed(group)) {
    const std::array<std::uint64_t, 1> own{fingerprint}, count{micro_batches};
    if (!compared.differ(group, own, at)) return;
    const std::string who = compared.ranks(group);  // the next comparison takes its place
    if (compared.differ(group, count, at))
      throw usage_error("ranks have different numbers of micro-batches in their first step (" + compared.text(group) +
                            "), and gather the layers whose parameters they divide together: give all as many",
                        at);
    throw usage_error(who +
                          " gather the layers of a step in different orders: ranks that divide parameters call their "
                          "layers in one order",
                      at);
  }
}

template <class T, class Group>
class parameter_gathers {
 public:
  using bucket_type = gathered_bucket<T, Group>;

  /// `source` outlives it. The next `ahead` layers of `expected` are gathered while one is held.
  parameter_gathers(lease_source& source, reshard_when reshards, std::size_t ahead, gather_plan expected)
      : source_(&source), reshards_(reshards), ahead_(ahead), expected_(std::move(expected)) {}

  /// The layer that reads these buckets gets the next number. `name`, and `index` where it has one, are its own.
  [[nodiscard]] std::uint32_t add_layer(std::vector<bucket_type> buckets, const char* name = "", std::size_t index = 0);

  /// Between `begin_step` and `end_step` gathers are those of a step; all of one epoch of the engine beside that are a
  /// pass's, of a rollout where the engine is in that phase, else of an evaluation.
  void begin_step(auto& engine, where at) {
    begin(phase::train, engine.epoch());
    in_step_ = true;
    if (begins_ == gathers_begin::with_step) start_ahead(engine.compute(), at);
  }
  /// For graphs: the first gathers of a step begin with it or, from now on, where `begin_in` is called; what `end_in`
  /// says to the stream, `retire` says to the host.
  void begin_gathers(gathers_begin when) noexcept { begins_ = when; }
  void begin_in(auto& stream, where at) { start_ahead(stream, at); }
  void end_in(auto& stream, where at) {
    for (layer& one : layers_) one.holders = 0;
    give_way(stream, at);
  }
  void end_step() noexcept { in_step_ = false; }
  /// Throws usage_error on all ranks that gather together where they have gathered other layers in the step, or in
  /// another order. Collective over them; does nothing where each rank gathers by itself.
  void expect_one_order(order_of_step own, where at) { executed_.expect_equal(own, at); }

  /// Later work of the engine's stream finds the layer's parameters whole, until as many calls of `give_back`.
  void hold(std::uint32_t number, auto& engine, where at) {
    auto& stream = engine.compute();
    if (!in_step_ && engine.epoch() != epoch_) {
      give_way(stream, at);
      begin(engine.current_phase() == phase::rollout ? phase::rollout : phase::eval, engine.epoch());
    }
    layer& one = layers_[number];
    if (one.holders > 0) {
      ++one.holders;
      return;
    }
    const bool planned = !expected().numbers().empty(), in_order = expected().advance(number);
    if (engine.rehearsing()) noted_[index(phase_)].note(number);
    for (const std::size_t group : one.groups) executed_.note(group, number);
    // The plan's memory is that of the layers which come next: they give way, and begin again when the plan goes on.
    if (!in_order) give_way(stream, at);
    if (one.started || one.resident) {
      ++counts().prefetched;
    } else {
      start_asked(number, in_order ? plan_says::so : plan_says::another, stream, at);
      ++(in_order ? counts().in_order : counts().missed);
    }
    // What is gathered beside the plan is gathered again where the plan has it.
    one.holders = in_step_ && reshards_ == reshard_when::after_step && (in_order || !planned) ? 2 : 1;
    if (one.started) {
      one.started = false;
      one.resident = true;
      for (gather_slot& each : one.gathered) {
        std::move(each.over).then(stream, at);
        place(each, each.first);
      }
    }
    if (in_order) start_ahead(stream, at);
  }
  void give_back(std::uint32_t number) noexcept {
    layer& one = layers_[number];
    if (--one.holders == 0 && !comes_soon(number)) release(one);
  }

  /// Between steps: ends what a step has left, and what it holds to its end. Waits for gathers that nobody used.
  void retire(where at);

  [[nodiscard]] const gather_counts& counts(phase of) const noexcept { return counts_[index(of)]; }
  /// The counts of gathers in phase `of` since the last call.
  [[nodiscard]] gather_counts take_counts(phase of) noexcept { return std::exchange(counts_[index(of)], {}); }
  /// In a rehearsal: the order in which the last step, or pass, gathered layers.
  [[nodiscard]] const gather_order& noted(phase of) const noexcept { return noted_[index(of)]; }
  /// Of the step that was rehearsed.
  [[nodiscard]] std::size_t micro_batches() const noexcept { return expected_.micro_batches; }
  /// A hash of the plan.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    fnv1a hash;
    for (const gather_order& order : expected_) hash.add(order.fingerprint());
    return hash.value();
  }

  [[nodiscard]] std::size_t bytes_of(std::uint32_t number) const noexcept {
    std::size_t all = 0;
    for (const gather_slot& each : layers_[number].gathered) all += each.of.count * sizeof(T);
    return all;
  }
  /// Bytes of the layers that are whole, or on their way.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }

 private:
  struct gather_slot {
    bucket_type of;
    std::size_t group;  // its number in `executed_`, where its ranks gather together
    T* first;           // while it has a lease
    lease_chain lease;
    pending over;
    lease_mark mark;  // once it had a lease
  };
  struct layer {
    std::vector<gather_slot> gathered;
    std::vector<std::size_t> groups;  // that gather it together, by their number in `executed_`
    std::string name;
    std::size_t index = 0;
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
    executed_.begin();
    noted_[index(now)] = {};
  }
  [[nodiscard]] bool comes_soon(std::uint32_t number) noexcept {
    for (std::size_t i = 0; i < ahead_ && expected().next(i) != gather_order::nothing; ++i)
      if (expected().next(i) == number) return true;
    return false;
  }
  // After a departure from the plan memory may be divided so that there is no room: the layer is gathered when it asks.
  void start_ahead(auto& stream, where at) {
    for (std::size_t i = 0; i < ahead_; ++i) {
      const std::uint32_t next = expected().next(i);
      if (next >= layers_.size()) return;  // nothing, or a layer that is not there before the step
      if (layers_[next].started || layers_[next].resident) continue;
      const stream_event ready = stream.record();
      if (!finds_room(layers_[next], ready, at)) return;
      start(next, plan_says::so, ready, at);
    }
  }
  void start_asked(std::uint32_t number, plan_says says, auto& stream, where at) {
    layer& one = layers_[number];
    stream_event ready = stream.record();
    if (!finds_room(one, ready, at)) {
      give_way(stream, at);
      ready = stream.record();
      take_room(one, ready, at);
    }
    start(number, says, ready, at);
  }
  // `ready`: what the memory held before is used up then, and this rank's last update is in its shard.
  void take_room(layer& one, const stream_event& ready, where at);
  [[nodiscard]] lease_mark mark_of(const layer& one, const bucket_type& of, where at) const noexcept;
  [[nodiscard]] bool finds_room(layer& one, const stream_event& ready, where at);
  // In memory that it has.
  void start(std::uint32_t number, plan_says says, const stream_event& ready, where at);
  [[nodiscard]] pending gather(const gather_slot& into, std::uint32_t number, plan_says says,
                               const start_order& order) const;
  // What no call holds gives its memory back.
  void give_way(auto& stream, where at) {
    for (layer& one : layers_) {
      if (one.holders > 0 || !(one.started || one.resident)) continue;
      for (gather_slot& each : one.gathered)
        if (each.over.open()) std::move(each.over).then(stream, at);
      release(one);
    }
  }
  void release(layer& one) noexcept;
  static void place(const gather_slot& each, T* first) noexcept {
    for (const auto& one : each.of.parameters)
      one.parameter->place_values(first == nullptr ? nullptr : first + one.offset);
  }

  lease_source* source_;
  reshard_when reshards_;
  std::size_t ahead_;
  gather_plan expected_, noted_;
  std::vector<layer> layers_;
  executed_orders<Group> executed_;
  std::array<gather_counts, phase_count> counts_;
  std::size_t live_ = 0;
  std::uint64_t epoch_ = 0;    // of the engine, in which the step or pass began
  phase phase_ = phase::eval;  // of the step or pass
  bool in_step_ = false;
  gathers_begin begins_ = gathers_begin::with_step;
};

template <class T, class Group>
std::uint32_t parameter_gathers<T, Group>::add_layer(std::vector<bucket_type> buckets, const char* name,
                                                     std::size_t index) {
  layer made;
  made.name = name;
  made.index = index;
  for (bucket_type& b : buckets) {
    std::size_t group = 0;
    if (!is_rehearsed(*b.group))
      if (b.reached == nullptr) add_unique(made.groups, group = executed_.add(*b.group));
    made.gathered.push_back({std::move(b), group, nullptr, {}, {}, {}});
  }
  layers_.push_back(std::move(made));
  return static_cast<std::uint32_t>(layers_.size() - 1);
}

template <class T, class Group>
void parameter_gathers<T, Group>::retire(where at) {
  for (layer& one : layers_) {
    for (gather_slot& each : one.gathered)
      if (each.over.open()) {
        const stream_event over = each.over.event();
        std::move(each.over).wait(at);
        source_->host_waited(over);
      }
    if (one.started || one.resident) release(one);
    one.holders = 0;
  }
}

template <class T, class Group>
void parameter_gathers<T, Group>::take_room(layer& one, const stream_event& ready, where at) {
  for (gather_slot& each : one.gathered) {
    // A shard in a file is staged by its owner: the stream of copies reads it to where it belongs.
    const stream_kind first_user = each.of.file == nullptr ? stream_kind::communication : stream_kind::copy;
    const std::size_t bytes = each.of.count * sizeof(T);
    if (each.mark.kind() == element_kind::unknown) each.mark = mark_of(one, each.of, at);
    each.first = reinterpret_cast<T*>(source_->lease_bytes_for(first_user, ready, bytes, each.lease, at, each.mark));
  }
}

template <class T, class Group>
lease_mark parameter_gathers<T, Group>::mark_of(const layer& one, const bucket_type& of, where at) const noexcept {
  const std::size_t count = of.parameters.size();
  const char* const first = count == 0 ? "" : of.parameters[0].parameter->name().c_str();
  return source_->mark(kind_of_element<T>(), {lease_purpose::gathered, one.name.c_str(), first, one.index, 0,
                                              count == 0 ? 0 : count - 1, at});
}

template <class T, class Group>
bool parameter_gathers<T, Group>::finds_room(layer& one, const stream_event& ready, where at) {
  try {
    take_room(one, ready, at);
    return true;
  } catch (const budget_error&) {
    for (gather_slot& each : one.gathered) {
      if (each.lease.empty()) continue;
      source_->used_until(ready, each.first, each.of.count * sizeof(T));  // by nobody
      source_->release(each.lease);
    }
    return false;
  }
}

template <class T, class Group>
void parameter_gathers<T, Group>::start(std::uint32_t number, plan_says says, const stream_event& ready, where at) {
  layer& one = layers_[number];
  for (gather_slot& each : one.gathered) {
    const bucket_type& b = each.of;
    const stream_event begins =
        b.file == nullptr ? ready
                          : b.file->load(ready, b.shard.data(), each.first + b.before, b.shard.size_bytes(), at);
    static_cast<void>(each.over = gather(each, number, says, start_order(after(begins, at))));
    source_->used_until(each.over.event(), each.first, b.count * sizeof(T));
  }
  one.started = true;
  live_ += bytes_of(number);
  counts().peak_bytes = greater_of(counts().peak_bytes, live_);
}

template <class T, class Group>
pending parameter_gathers<T, Group>::gather(const gather_slot& into, std::uint32_t number, plan_says says,
                                            const start_order& order) const {
  const bucket_type& b = into.of;
  T* const whole = into.first;
  if constexpr (can_start_local<Group, bucket_pull<T>>) {
    const std::span<const std::size_t> counts = b.counts;
    if (b.reached != nullptr)
      return b.group->start_local(operation::all_gather_v, bucket_pull<T>{whole, b.reached->first, counts},
                                  order.keeping(b.reached));
  }
  const std::span<const T> shard = b.file == nullptr ? b.shard : std::span<const T>();
  std::uint64_t place = 0;
  start_order how = order.keeping(b.kept);
  if (!is_rehearsed(*b.group))
    place = executed_.count(into.group);
  else if (!b.counts.empty())  // what no run reads
    how = how.giving(*std::max_element(b.counts.begin(), b.counts.end()) * sizeof(T));
  const bucket_gather<T> work{{whole, b.count}, shard, b.before, b.counts, number, place, says, order.at};
  return b.group->start_composite(operation::all_gather_v, work, how);
}

template <class T, class Group>
void parameter_gathers<T, Group>::release(layer& one) noexcept {
  for (gather_slot& each : one.gathered) {
    place(each, nullptr);
    source_->release(each.lease);
    live_ -= each.of.count * sizeof(T);
  }
  one.started = one.resident = false;
}

}  // namespace belay::inline BELAY_ABI
