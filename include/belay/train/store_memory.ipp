// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a store out of its class.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/device/host_access.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/store_memory.hpp"

namespace belay::inline BELAY_ABI {

template <class Run, class Precision>
  requires is_precision<Precision>
std::size_t store_memory<Run, Precision>::owned_elements(int number) const {
  return buckets_.layout().owned_elements(in_replica_groups(number));
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::ask_shards() const {
  static_cast<void>(mesh_->replicas().rank());
  static_cast<void>(mesh_->data().rank());
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::gathered(phase in) const noexcept -> gather_counts {
  return gathers_ ? gathers_->counts(in) : gather_counts{};
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::take_gathered(phase in) noexcept -> gather_counts {
  return gathers_ ? gathers_->take_counts(in) : gather_counts{};
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::size_t store_memory<Run, Precision>::gathered_bytes() const noexcept {
  return gathers_ ? gathers_->live_bytes() : 0;
}

template <class Run, class Precision>
  requires is_precision<Precision>
bool store_memory<Run, Precision>::in_file() const noexcept {
  return in_file_;
}

template <class Run, class Precision>
  requires is_precision<Precision>
bool store_memory<Run, Precision>::gathers_alone() const noexcept {
  return !gathers_ || (reaches_ && !together_);
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::size_t store_memory<Run, Precision>::drain(where at) {
  const std::size_t bytes = gathered_bytes();
  if (gathers_) gathers_->retire(at);
  return bytes;
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::uint64_t store_memory<Run, Precision>::plan_hash() const noexcept {
  return gathers_ ? gathers_->fingerprint() : 0;
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::copies_of(std::size_t p) const -> stored_copies {
  const std::size_t number = buckets_.layout().buckets()[buckets_.bucket_of(p)].replica_group;
  const replica_group_shape replica_group = buckets_.layout().replica_groups()[number];
  const bool divides_state = replica_group.ranks > 1 && replica_group.stage >= zero_stage::optimizer_state;
  const auto& parameter = buckets_.parameter(p);
  return {copies_of_box(parameter, replica_group.divides_values()), copies_of_box(parameter, divides_state)};
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::give_back(std::uint32_t layer) noexcept {
  gathers_->give_back(layer);
}

template <class Run, class Precision>
  requires is_precision<Precision>
bool store_memory<Run, Precision>::rehearsed() const {
  return is_rehearsed(mesh_->world());
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::size_t store_memory<Run, Precision>::bytes_of(std::uint32_t layer) const noexcept {
  return gathers_->bytes_of(layer);
}

template <class Run, class Precision>
  requires is_precision<Precision>
store_memory<Run, Precision>::store_memory(Run& run, const mesh& mesh,
                                           stored_parameters<value_type, gradient_type> found,
                                           std::vector<held_stage> stages, const store_options& options,
                                           ownership_unit unit, where at)
    : run_(&run),
      mesh_(&mesh),
      parts_(stages.size()),
      in_file_(std::ranges::any_of(stages, [](const auto& each) { return each.tiers.values == tier::file; })),
      // No rank reaches into a peer's file: who owns a shard stages it, and the ranks gather together.
      gathers_by_(in_file_                            ? gather_by::collectives
                  : found.gathers == gather_by::reach ? options.gathers
                                                      : found.gathers),
      files_(options.files),
      buckets_(std::move(found.members),
               replica_groups_of_parts<group_type>(mesh, stages, std::identity(), zero_stage::optimizer_state,
                                                   options.reduce),
               options.bucket_bytes, 1, unit, at),
      frozen_(std::move(found.frozen),
              replica_groups_of_parts<group_type>(mesh, stages, frozen_stage, zero_stage::none, options.reduce),
              options.bucket_bytes, at) {
  run.keep(buckets_.kept_layout());
  if (!found.values.empty() && stages.front().stage >= zero_stage::gradients)
    throw usage_error("borrowed memory holds whole values and gradients: ZeRO 2 and 3 divide memory of the run", at);
  const auto lower = [](const held_stage& each) {
    return each.tiers.values != tier::device || each.tiers.gradients != tier::device;
  };
  if (mesh.shape().replicates_shards() && mesh.shape().shards() == 1 && std::ranges::any_of(stages, lower))
    throw usage_error("a shard group of one rank has no shards, which could lie in a lower tier", at);
  if (mesh.shape().replicates_shards() &&
      std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients == tier::file; }))
    throw usage_error("gradients in tier file are not summed over shard groups: keep them in tier host or pinned", at);
  if (takes_device_memory_alone(mesh.world()) && mesh.shape().replicates_shards() &&
      std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
    throw usage_error("NCCL sums gradients over shard groups in memory of the device alone: keep them there", at);
  bind(found.values, found.gradients, at);
  if (on_device(run.computes())) {
    const auto size_of = [&](int rank) { return range_table::size_of(buckets_.layout(), in_replica_groups(rank)); };
    division_.emplace(run, buckets_.owned(), buckets_.layout().buckets().size(), size_of, at);
    // (nvcc takes an assignment for a result that is ignored.)
    if constexpr (works_on_device<group_type>)
      static_cast<void>(divides_by_ = buckets_.updates().add(*division_, observer_turn::queues_work, at));
  }
  if (buckets_.divides_gradients()) {
    staging_.emplace(run.step_memory("gradient buckets"));
    buckets_.use(*staging_);
    if (std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
      buckets_.use(tier_copies_on<gradient_type>(run.engine(), buckets_.gradient_file()));
  }
  if (!frozen_.members().empty()) {
    const tiered_memory<value_type> frozen =
        lease_values(frozen_, reached_frozen_, "frozen parameters", "frozen parameter ring", at);
    frozen_.bind(frozen, std::exchange(file_, nullptr));
  }
  run.keep(frozen_.kept());
  if (const host_access* const access = run.engine().access(at)) {
    set_host_view(access, buckets_, [&](std::size_t p) -> auto& { return buckets_.parameter(p); });
    set_host_view(access, frozen_, [&](std::size_t p) -> auto& { return *frozen_.members()[p].parameter; });
  }
  if (buckets_.divides_values() || frozen_.places().divided()) {
    whole_.emplace(run.step_memory("gathered parameters"));
    gathers_number_ = run.add_gathers();
    gathers_.emplace(*whole_, options.reshard, options.gathers_ahead, run.planned_gathers(gathers_number_));
    if (!gathers_alone()) buckets_.gather_together();
  }
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::note_micro_batches(std::size_t count) {
  if (rehearsed() && gathers_) run_->note_micro_batches(gathers_number_, count);
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::expect_plan_compared(where at) {
  if (!gathers_ || std::exchange(compared_plan_, true)) return;
  rank_comparison compared;
  expect_one_plan(compared, mesh_->replicas(), gathers_->fingerprint(), at, gathers_->micro_batches());
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::expect_settled(where at) const {
  if (!gathers_ || !buckets_.holds_reduced()) return;
  throw usage_error(
      "parameters that ranks divide are gathered between a commit and its update: "
      "optimizer.apply(std::move(*ok), {...}), or std::move(*ok).discard(), comes first",
      at);
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::bind(std::span<value_type> values, std::span<gradient_type> gradients, where at) {
  const auto& layout = buckets_.layout();
  const std::size_t own = layout.elements();
  const auto lease_gradients = [&](std::size_t count, const char* purpose) {
    return run_->template lease<gradient_type>(tier::device, count, purpose, at);
  };
  std::span<value_type> wire;
  if (const std::size_t count = buckets_.wire_elements(); count > 0)
    wire = run_->template lease<value_type>(tier::device, count, "gradients on the wire", at);
  if (values.size() >= own && !values.empty()) {
    const auto reductions = lease_gradients(layout.gradient_elements() - own, "reductions");
    return buckets_.bind({{values.first(own)}, {gradients.first(own)}, reductions, wire}, at);
  }
  const auto all_values = lease_values(buckets_, reached_, "parameters", "parameter ring", at);
  file_shards* const value_file = std::exchange(file_, nullptr);
  if (reached_) buckets_.reach_shards_of(dividing());
  if (!buckets_.places().divided()) {
    const auto all = lease_gradients(layout.gradient_elements(), "gradients");
    return buckets_.bind({all_values, {all.first(own)}, all.subspan(own), wire}, at);
  }
  const auto all_gradients = lease_of_buckets<gradient_type>(
      buckets_, &bucket_places::gradient_elements, &replica_group_shape::gradients, "gradients", "gradient ring", at);
  file_shards* const gradient_file = std::exchange(file_, nullptr);
  std::span<gradient_type> reductions;
  if (const std::size_t count = layout.gradient_elements() - own; count > 0)
    reductions = lease_gradients(count, "reductions");
  bucket_memory<value_type> memory{all_values, all_gradients, reductions, wire};
  memory.value_file = value_file;
  memory.gradient_file = gradient_file;
  buckets_.bind(memory, at);
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::copies_of_box(const parameter_base<value_type>& parameter, bool divided) const
    -> copy_place {
  return belay::copies_of(mesh_->shape(), mesh_->layout_coordinate(), parameter.cut_directions(),
                          divided ? kept_part::shard : kept_part::local_part);
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::size_t store_memory<Run, Precision>::bucket_of(const parameter_base<value_type>& parameter) const noexcept {
  std::size_t p = 0;
  while (&buckets_.parameter(p) != &parameter) ++p;
  return buckets_.bucket_of(p);
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::uint32_t store_memory<Run, Precision>::gathers_for(const std::set<std::size_t>& trained,
                                                        const std::set<std::size_t>& never_trained, const char* name,
                                                        std::size_t index) {
  std::vector<gathered_bucket<value_type, group_type>> all;
  for (std::size_t b : trained) all.push_back(gathered_trained(b));
  for (std::size_t b : never_trained) all.push_back(gathered_frozen(b));
  return all.empty() ? whole : gathers_->add_layer(std::move(all), name, index);
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::gathered_trained(std::size_t number) const
    -> gathered_bucket<value_type, group_type> {
  return gathered_bucket_of(buckets_, reached_, number);
}

template <class Run, class Precision>
  requires is_precision<Precision>
auto store_memory<Run, Precision>::gathered_frozen(std::size_t number) const
    -> gathered_bucket<value_type, group_type> {
  return gathered_bucket_of(frozen_, reached_frozen_, number);
}

template <class Run, class Precision>
  requires is_precision<Precision>
std::vector<std::size_t> store_memory<Run, Precision>::in_replica_groups(int number) const {
  const coordinate there = coordinate_of(mesh_->shape(), number);
  std::vector<std::size_t> all;
  for (std::size_t p = 0; p < parts_; ++p)
    for (std::size_t kind = 0; kind < replica_groups_of_part; ++kind)
      all.push_back(static_cast<std::size_t>(
          place_along(mesh_->shape(), there, divided_over(cut_of_replica_group(kind))).number));
  return all;
}

template <class Run, class Precision>
  requires is_precision<Precision>
void store_memory<Run, Precision>::hold(std::uint32_t layer, typename Run::engine_type& engine, where at) {
  expect_plan_compared(at);
  expect_settled(at);
  gathers_->hold(layer, engine, at);
  if (rehearsed())
    for (const phase each : all_phases) run_->note_gathers(gathers_number_, each, gathers_->noted(each));
}

template <class Run, class Precision>
  requires is_precision<Precision>
store_memory<Run, Precision>::~store_memory() = default;

}  // namespace belay::inline BELAY_ABI
