// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run out of its class: a program links that of ranks of the host, and compiles those of its own kits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/symmetric.hpp"
#include "belay/core/bounds.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine>
run_of<Engine>::run_of(int number, int ranks, planned_run planned, planner again, const stream_settings& streams,
                       run_parts<Engine> parts)
    : number_(number),
      ranks_(ranks),
      plan_(std::move(planned.plan)),
      planned_(std::move(planned.memory)),
      again_(again),
      parts_(std::move(parts)) {
  parts_.addresses_only = streams.policy == stream_policy::rehearsal;
  parts_.make(engine_, planned_.activations, meters_[tier::device], streams, number);
  leased_.add({tier::device, "findings", Engine::findings_bytes, Engine::findings_bytes});
  meters_[tier::device].add(Engine::findings_bytes);
  if (!rehearsing()) engine_->activations().say_when_full(of_smaller_step);
  if (rehearsing()) return;
  if (planned_.notes > 0)
    engine_->notes().use(lease<std::byte>(tier::host, weight_note_pool::bytes_of(planned_.notes), notes_row));
  if (planned_.workspace == 0) return;
  [[maybe_unused]] const auto workspace = lease<std::byte>(tier::device, planned_.workspace, workspace_row);
  if constexpr (requires { engine_->kit().use_workspace(workspace); }) engine_->kit().use_workspace(workspace);
}

template <class Engine>
void run_of<Engine>::each_live(function_ref<void(tier, std::string_view, std::size_t)> see) const {
  const std::vector<plan_item>& rows = lasting().items();
  for (std::size_t row = 0; row < rows.size(); ++row)
    see(rows[row].where_it_is, std::string_view(rows[row].purpose), leased_.live_bytes(row));
  for (const auto& one : of_steps_)
    see(one->leases.where_it_is(), std::string_view(one->purpose), one->leases.offsets().live_bytes());
  see(tier::device, std::string_view("activations"), engine_->activations().offsets().live_bytes());
  if (planned_.owed) see(tier::device, std::string_view("owed activations"), engine_->owed().live_bytes());
  std::size_t windows = 0;
  for (const auto& one : windows_) windows += one->heap->live_bytes();
  see(tier::device, std::string_view("expert windows"), windows);
}

template <class Engine>
std::vector<lasting_lease> run_of<Engine>::leases_of(tier where_it_is, std::string_view purpose) const {
  return leased_.of(where_it_is, purpose);
}

template <class Engine>
std::size_t run_of<Engine>::bytes_on(const lasting_lease& leased, int rank) const {
  const rank_shards* const shards = leased_.shards_of(leased.item);
  return shards == nullptr ? leased.memory.size() : shards->bytes[static_cast<std::size_t>(rank)];
}

template <class Engine>
void run_of<Engine>::vacate(tier where_it_is, std::span<std::byte> part) noexcept {
  meters_[where_it_is].remove(leased_size(part.size()));
  leased_.vacate(part);
  if constexpr (!device_region<memory_type>)
    if (!rehearsing()) discard_pages(part.data(), part.size());
}

template <class Engine>
void run_of<Engine>::occupy(tier where_it_is, std::span<std::byte> part) noexcept {
  meters_[where_it_is].add(leased_size(part.size()));
  leased_.occupy(part);
}

template <class Engine>
void run_of<Engine>::charge_shard(tier where_it_is, function_ref<std::size_t(int)> bytes_of, const char* purpose,
                                  file_bytes of_file) {
  if (rehearsing()) leased_.add_shards(ranks_, bytes_of);
  const std::size_t bytes = leased_size(bytes_of(number_));
  leased_.add({where_it_is, purpose, bytes, bytes, of_file});
  meters_[where_it_is].add(bytes);
  meters_[where_it_is].count_allocation();
}

template <class Engine>
auto run_of<Engine>::windows(const belay::group& group, where at) -> heap_type& {
  const std::size_t bytes = rehearsing() ? planned_.activations : planned_.windows.at(windows_.size());
  windows_.push_back(std::make_unique<window>(group));
  open_window(windows_.size() - 1, bytes, at);
  return *windows_.back()->heap;
}

template <class Engine>
auto run_of<Engine>::step_memory(const char* purpose, tier in, file_bytes of_file) -> arena<memory_type>& {
  const std::size_t bytes = rehearsing() ? planned_.activations : planned_.of_steps.at(of_steps_.size());
  of_steps_.push_back(std::make_unique<within_steps>(
      within_steps{purpose, {in, parts_.region(in, bytes), most_leases, meters_[in]}, of_file}));
  if (!rehearsing()) of_steps_.back()->leases.say_when_full(of_smaller_step);
  if (in == tier::device)
    engine_->adopt(of_steps_.back()->leases);
  else
    of_steps_.back()->leases.name_lost_of(engine_->obligations());
  return of_steps_.back()->leases;
}

template <class Engine>
auto run_of<Engine>::rehearsed_returns() -> rehearsed_order& {
  returns_.push_back(std::make_unique<rehearsed_order>());
  if (returns_.size() <= planned_.returns.size()) returns_.back()->expected = planned_.returns[returns_.size() - 1];
  return *returns_.back();
}

template <class Engine>
std::size_t run_of<Engine>::add_gathers() {
  gathers_.emplace_back();
  return gathers_.size() - 1;
}

template <class Engine>
auto run_of<Engine>::planned_gathers(std::size_t store) const -> gather_plan {
  gather_plan out;
  if (store < planned_.gathers.size()) out = planned_.gathers[store];
  return out;
}

template <class Engine>
void run_of<Engine>::note_gathers(std::size_t store, phase in, const gather_order& found) {
  gathers_[store][static_cast<std::size_t>(in)] = found;
}

template <class Engine>
void run_of<Engine>::make_room(std::uint64_t rows, where at) {
  rows = greater_of(rows, engine_->room());
  if (again_) {
    planned_run grown = again_(rows);
    plan_ = std::move(grown.plan);
    planned_ = std::move(grown.memory);
    engine_->use(parts_.region(tier::device, 0));  // what there was is freed first
    engine_->use(parts_.region(tier::device, planned_.activations));
    engine_->activations().say_when_full(of_smaller_step);
    for (std::size_t i = 0; i < windows_.size(); ++i) open_window(i, planned_.windows.at(i), at);
    for (std::size_t i = 0; i < of_steps_.size(); ++i) grow_step_memory(i);
  }
  engine_->make_room(rows);
}

template <class Engine>
auto run_of<Engine>::leased_by(int rank) const -> planned_run {
  planned_run out;
  out.memory.computes = planned_.computes;
  if (rehearsing()) {
    add_workspace(out, engine_->kit().workspace_bytes());
    add_notes(out, engine_->notes());
  }
  for (std::size_t i = 0; i < lasting().items().size(); ++i) {
    plan_item item = lasting().items()[i];
    const rank_shards* const shards = leased_.shards_of(i);
    if (shards != nullptr) item.bytes = shards->bytes[static_cast<std::size_t>(rank)];
    const std::size_t reached = shards == nullptr ? 0 : shards->reached;
    item.capacity = greater_of(item.bytes, reached);
    out.plan.add(item);
    if (reached == 0) out.memory.persistent[static_cast<std::size_t>(item.where_it_is)] += item.bytes;
  }
  std::size_t window_peak = 0, window_extent = 0;
  for (const auto& one : windows_) {
    window_peak += one->heap->peak_bytes();
    window_extent += one->heap->extent_bytes();
    out.memory.windows.push_back(one->heap->extent_bytes());
  }
  out.memory.activations = engine_->activations().offsets().extent_bytes();
  // Of each tier's peak; what the others have at peaks of their own is not counted twice.
  std::array<std::size_t, tier_count> left{};
  for (std::size_t t = 0; t < tier_count; ++t) {
    const std::size_t peak = meters_[static_cast<tier>(t)].peak_bytes();
    left[t] = peak - lesser_of(peak, lasting().peak_bytes(static_cast<tier>(t)));  // less, where a part was vacated
  }
  std::size_t& rest = left[static_cast<std::size_t>(tier::device)];
  rest -= window_peak;
  for (const auto& one : of_steps_) {
    const auto& [purpose, leases, of_file] = *one;
    std::size_t& of_tier = left[static_cast<std::size_t>(leases.where_it_is())];
    const std::size_t peak = lesser_of(of_tier, leases.offsets().peak_bytes());
    out.memory.of_steps.push_back(leases.offsets().extent_bytes());
    out.plan.add({leases.where_it_is(), purpose, peak, greater_of(peak, out.memory.of_steps.back()), of_file});
    of_tier -= peak;
  }
  const std::size_t owed = lesser_of(rest, engine_->owed().peak_bytes());
  rest -= owed;
  out.plan.add(tier::device, "activations", rest, out.memory.activations);
  out.memory.owed = owed > 0;
  if (out.memory.owed) out.plan.add(tier::device, "owed activations", owed);
  out.memory.gathers = gathers_;
  for (const auto& each : returns_) out.memory.returns.push_back(each->found);
  if (!windows_.empty()) out.plan.add(tier::device, "expert windows", window_peak, window_extent);
  return out;
}

template <class Engine>
void run_of<Engine>::open_window(std::size_t index, std::size_t bytes, where at) {
  window& one = *windows_[index];
  const symmetric_heap_options options{
      .bytes = bytes, .meter = &meters_[tier::device], .at = at, .when_full = rehearsing() ? "" : of_smaller_step};
  one.heap.emplace(ranks_of_heap(one.ranks), options, at);
  engine_->adopt(*one.heap);
}

template <class Engine>
std::size_t run_of<Engine>::lasting_bytes(tier where_it_is, std::size_t elements, std::size_t size, where at) {
  const auto owner = [&] { return std::string(name(where_it_is)) + " tier"; };
  return tensor_bytes(extents<1>{elements}, size, owner, at);
}

template <class Engine>
std::byte* run_of<Engine>::lease_bytes(tier where_it_is, std::size_t wanted, lease_mark mark, const char* purpose,
                                       where at) {
  auto& region = persistent_[static_cast<std::size_t>(where_it_is)];
  const std::size_t most = planned_.persistent[static_cast<std::size_t>(where_it_is)];
  if (!region)
    region.emplace(where_it_is, parts_.zeroed_region(*engine_, where_it_is, most), 4096, meters_[where_it_is]);
  std::byte* const memory = region->lease_bytes(wanted, leases_, at, mark);
  const std::size_t bytes = leased_size(wanted);
  leased_.add({where_it_is, purpose, bytes, bytes}, {memory, wanted});
  return memory;
}

template <class Engine>
void run_of<Engine>::note_shards(tier where_it_is, function_ref<std::size_t(int)> bytes_of) {
  if (!rehearsing()) return;
  leased_.add_shards(ranks_, bytes_of);
  if (engine_->step_number() > 0)
    meters_[where_it_is].expect_peak(meters_[where_it_is].peak_bytes() + leased_size(bytes_of(number_)));
}

template <class Engine>
std::byte* run_of<Engine>::reached_bytes(tier where_it_is, const belay::group& group,
                                         function_ref<std::size_t(int)> bytes_of, lease_mark mark, const char* purpose,
                                         std::vector<std::byte*>& ranks, where at) {
  std::size_t most = 0;  // each rank has as much address space
  for (int rank = 0; rank < ranks_; ++rank) most = greater_of(most, leased_size(bytes_of(rank)));
  const std::size_t own = bytes_of(number_);
  if (most == 0 || rehearsing()) {
    note_shards(where_it_is, bytes_of);
    std::byte* const memory = lease_bytes(where_it_is, own, mark, purpose, at);
    if (most > 0) leased_.note_reach(most);
    return memory;
  }
  const std::size_t bytes = leased_size(own);
  leased_.add({where_it_is, purpose, bytes, most});
  if (addresses_peers(group) && (where_it_is == tier::device || !works_on_device<group_type>)) {
    const symmetric_heap_options options{.bytes = most, .max_slots = 1, .meter = &meters_[where_it_is], .at = at};
    reached_.push_back(std::make_unique<heap_type>(group, options, at));
    const auto slot = reached_.back()->lease(own, purpose, at);
    for (int peer = 0; peer < group.size(); ++peer) ranks.push_back(slot.at(peer));
    return slot.local();
  }
  unreached_.push_back(std::make_unique<arena<memory_type>>(
      where_it_is, parts_.zeroed_region(*engine_, where_it_is, bytes), 1, meters_[where_it_is]));
  return unreached_.back()->lease_bytes(own, leases_, at, mark);
}

template <class Engine>
void run_of<Engine>::grow_step_memory(std::size_t index) {
  arena<memory_type>& leases = of_steps_[index]->leases;
  const std::size_t bytes = planned_.of_steps.at(index);
  if (leases.memory().size_bytes() == bytes) return;
  const tier of = leases.where_it_is();
  leases.open_addresses();
  leases = {of, parts_.region(of, 0), most_leases, meters_[of]};
  leases = {of, parts_.region(of, bytes), most_leases, meters_[of]};
  leases.say_when_full(of_smaller_step);
  if (of == tier::device)
    engine_->adopt(leases);
  else
    leases.name_lost_of(engine_->obligations());
}

template <class Engine>
auto run_of<Engine>::next() -> next_step {
  engine_->synchronize(engine_->step_site());  // the optimizer's update
  engine_->expect_refusal_read();
  if (engine_->last_end() != end_of_step::replay) return next_step::another;
  make_room(engine_->needed_rows());
  return next_step::same;
}

template <class Engine>
run_of<Engine>::~run_of() = default;

}  // namespace belay::inline BELAY_ABI
