// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter store out of its class: a program links those of ranks of the host, and compiles others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/stage_names.hpp"
#include "belay/train/store.hpp"

namespace belay::inline BELAY_ABI {

/// The parameters of one rank of a tensor axis. Its ranks must agree on the list, and on the first values of those that
/// the axis does not cut: otherwise copies drift apart, and the loss is merely worse.
template <class T>
class tensor_copies {
 public:
  void add(const parameter_base<T>& parameter) {
    parameters_.push_back(&parameter);
    kinds_.push_back(content_hash().add_text(parameter.name()).add(parameter.global_size()).value());
    // Ranks differ in the values of a parameter that is cut or divided.
    const bool whole = !parameter.cut_directions().has(axis::tensor) && !parameter.divided();
    content_hash values;
    if (whole)
      parameter.each_kept(
          [&](std::size_t, std::span<const T> kept) { values.add_bytes(kept.data(), kept.size_bytes()); });
    values_.push_back(whole ? values.value() : rank_comparison::abstains);
  }

  /// Throws usage_error on all ranks of `along`, a tensor axis, where they differ. Collective.
  template <can_all_gather<std::uint64_t> Group>
  void expect_equal(const Group& along, where at) const {
    rank_comparison compared;
    const std::uint64_t count[] = {parameters_.size()};
    if (compared.differ(along, count, at))
      throw usage_error(
          "along the tensor axis ranks list different numbers of parameters (" + compared.text(along) + ")", at);
    if (compared.differ(along, kinds_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis list different parameters: their number " +
                            std::to_string(compared.first()) + " is " + name_of(compared) + " here",
                        at);
    if (compared.differ(along, values_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis begin with different values of parameter " +
                            name_of(compared) +
                            ", which it does not cut: initialise it with one seed, or fill it from "
                            "one source",
                        at);
  }

 private:
  [[nodiscard]] std::string name_of(const rank_comparison& compared) const {
    return printable(parameters_[compared.first()]->name());
  }

  std::vector<const parameter_base<T>*> parameters_;
  std::vector<std::uint64_t> kinds_, values_;
};

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::owned_elements(int number) const {
  return buckets_.layout().owned_elements(in_replica_groups(number));
}

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::owned_ranges(int number) const {
  const auto& ranks = in_replica_groups(number);
  const bucket_layout& layout = buckets_.layout();
  std::size_t all = 0;
  for (const bucket_layout::bucket& each : layout.buckets())
    layout.each_owned(each, ranks[each.replica_group], [&](const parameter_range&) { ++all; });
  return all;
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::ask_shards() const {
  static_cast<void>(mesh_->replicas().rank());
  static_cast<void>(mesh_->data().rank());
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::gathered(phase in) const noexcept -> gather_counts {
  return gathers_ ? gathers_->counts(in) : gather_counts{};
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::take_gathered(phase in) noexcept -> gather_counts {
  return gathers_ ? gathers_->take_counts(in) : gather_counts{};
}

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::gathered_bytes() const noexcept {
  return gathers_ ? gathers_->live_bytes() : 0;
}

template <class Run, class Precision>
bool parameter_store<Run, Precision>::in_file() const noexcept {
  return in_file_;
}

template <class Run, class Precision>
bool parameter_store<Run, Precision>::gathers_alone() const noexcept {
  return !gathers_ || (reaches_ && !together_);
}

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::drain(where at) {
  const std::size_t bytes = gathered_bytes();
  if (gathers_) gathers_->retire(at);
  return bytes;
}

template <class Run, class Precision>
std::uint64_t parameter_store<Run, Precision>::plan_hash() const noexcept {
  return gathers_ ? gathers_->fingerprint() : 0;
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::copies_of(std::size_t p) const -> stored_copies {
  const std::size_t number = buckets_.layout().buckets()[buckets_.bucket_of(p)].replica_group;
  const replica_group_shape replica_group = buckets_.layout().replica_groups()[number];
  const bool divides_state = replica_group.ranks > 1 && replica_group.stage >= zero_stage::optimizer_state;
  const auto& parameter = buckets_.parameter(p);
  return {copies_of_box(parameter, replica_group.divides_values()), copies_of_box(parameter, divides_state)};
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::give_back(std::uint32_t layer) noexcept {
  gathers_->give_back(layer);
}

template <class Run, class Precision>
bool parameter_store<Run, Precision>::rehearsed() const {
  return is_rehearsed(mesh_->world());
}

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::bytes_of(std::uint32_t layer) const noexcept {
  return gathers_->bytes_of(layer);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::note_micro_batches(std::size_t count) {
  if (rehearsed() && gathers_) run_->note_micro_batches(gathers_number_, count);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::expect_plan_compared(where at) {
  if (!gathers_ || std::exchange(compared_plan_, true)) return;
  rank_comparison compared;
  expect_one_plan(compared, mesh_->replicas(), gathers_->fingerprint(), at, gathers_->micro_batches());
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::expect_settled(where at) const {
  if (!gathers_ || !buckets_.holds_reduced()) return;
  throw usage_error(
      "parameters that ranks divide are gathered between a commit and its update: "
      "optimizer.apply(std::move(*ok), {...}), or std::move(*ok).discard(), comes first",
      at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::lease_memory(const stored_parameters<value_type, gradient_type>& found,
                                                   std::span<const held_stage> stages, const store_options& options,
                                                   where at) {
  run_->keep(buckets_.kept_layout());
  if (!found.values.empty() && stages.front().stage >= zero_stage::gradients)
    throw usage_error("borrowed memory holds whole values and gradients: ZeRO 2 and 3 divide memory of the run", at);
  const auto lower = [](const held_stage& each) {
    return each.tiers.values != tier::device || each.tiers.gradients != tier::device;
  };
  if (mesh_->shape().replicates_shards() && mesh_->shape().shards() == 1 && std::ranges::any_of(stages, lower))
    throw usage_error("a shard group of one rank has no shards, which could lie in a lower tier", at);
  if (mesh_->shape().replicates_shards() &&
      std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients == tier::file; }))
    throw usage_error("gradients in tier file are not summed over shard groups: keep them in tier host or pinned", at);
  if (takes_device_memory_alone(mesh_->world()) && mesh_->shape().replicates_shards() &&
      std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
    throw usage_error("NCCL sums gradients over shard groups in memory of the device alone: keep them there", at);
  bind(found.values, found.gradients, at);
  if (on_device(run_->computes())) {
    const auto size_of = [&](int rank) { return range_table::size_of(buckets_.layout(), in_replica_groups(rank)); };
    division_.emplace(*run_, buckets_.owned(), buckets_.layout().buckets().size(), size_of, at);
    // (nvcc takes an assignment for a result that is ignored.)
    if constexpr (works_on_device<group_type>)
      static_cast<void>(divides_by_ = buckets_.updates().add(*division_, observer_turn::queues_work, at));
  }
  if (buckets_.divides_gradients()) {
    staging_.emplace(run_->step_memory("gradient buckets"));
    buckets_.use(*staging_);
    if (std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
      buckets_.use(tier_copies_on<gradient_type>(run_->engine(), buckets_.gradient_file()));
  }
  if (!frozen_.members().empty()) {
    const tiered_memory<value_type> frozen =
        lease_values(frozen_, reached_frozen_, "frozen parameters", "frozen parameter ring", at);
    frozen_.bind(frozen, std::exchange(file_, nullptr));
  }
  run_->keep(frozen_.kept());
  lease_ties(found, at);
  if (const host_access* const access = run_->engine().access(at)) {
    set_host_view(access, buckets_, [&](std::size_t p) -> auto& { return buckets_.parameter(p); });
    set_host_view(access, frozen_, [&](std::size_t p) -> auto& { return *frozen_.members()[p].parameter; });
  }
  if (buckets_.divides_values() || frozen_.places().divided()) {
    whole_.emplace(run_->step_memory("gathered parameters"));
    gathers_number_ = run_->add_gathers();
    gathers_.emplace(*whole_, options.reshard, options.gathers_ahead, run_->planned_gathers(gathers_number_));
    if (!gathers_alone()) buckets_.gather_together();
  }
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::bind(std::span<value_type> values, std::span<gradient_type> gradients, where at) {
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
auto parameter_store<Run, Precision>::copies_of_box(const parameter_base<value_type>& parameter, bool divided) const
    -> copy_place {
  return belay::copies_of(mesh_->shape(), mesh_->layout_coordinate(), parameter.cut_directions(),
                          divided ? kept_part::shard : kept_part::local_part);
}

template <class Run, class Precision>
std::size_t parameter_store<Run, Precision>::bucket_of(const parameter_base<value_type>& parameter) const noexcept {
  std::size_t p = 0;
  while (&buckets_.parameter(p) != &parameter) ++p;
  return buckets_.bucket_of(p);
}

template <class Run, class Precision>
std::uint32_t parameter_store<Run, Precision>::gathers_for(const std::set<std::size_t>& trained,
                                                        const std::set<std::size_t>& never_trained, const char* name,
                                                        std::size_t index) {
  std::vector<gathered_bucket<value_type, group_type>> all;
  for (std::size_t b : trained) all.push_back(gathered_trained(b));
  for (std::size_t b : never_trained) all.push_back(gathered_frozen(b));
  return all.empty() ? whole : gathers_->add_layer(std::move(all), name, index);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::gathered_trained(std::size_t number) const
    -> gathered_bucket<value_type, group_type> {
  return gathered_bucket_of(buckets_, reached_, number);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::gathered_frozen(std::size_t number) const
    -> gathered_bucket<value_type, group_type> {
  return gathered_bucket_of(frozen_, reached_frozen_, number);
}

template <class Run, class Precision>
std::vector<std::size_t> parameter_store<Run, Precision>::in_replica_groups(int number) const {
  const coordinate there = coordinate_of(mesh_->shape(), number);
  std::vector<std::size_t> all;
  for (std::size_t p = 0; p < parts_; ++p)
    for (std::size_t kind = 0; kind < replica_groups_of_part; ++kind)
      all.push_back(static_cast<std::size_t>(
          place_along(mesh_->shape(), there, divided_over(cut_of_replica_group(kind))).number));
  return all;
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::hold(std::uint32_t layer, typename Run::engine_type& engine, where at) {
  expect_plan_compared(at);
  expect_settled(at);
  gathers_->hold(layer, engine, at);
  if (rehearsed())
    for (const phase each : all_phases) run_->note_gathers(gathers_number_, each, gathers_->noted(each));
}

template <class Run, class Precision>
double parameter_store<Run, Precision>::norm_of(std::size_t parameter) const noexcept {
  return norm_->of_parameter(norm_places_[parameter].parameter);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::fill(std::uint64_t seed, where at) {
  rewrite([&] { write_first_values(seed, at); }, at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::begin(const step_start& start, where at) {
  if (unapplied_ != 0) throw usage_error(unapplied_text(std::exchange(unapplied_, 0)), at);
  note_micro_batches(start.micro_batches);
  if (buckets_.in_step()) return buckets_.begin_again(start.micro_batches, at);
  if (gathers_) gathers_->retire(at);
  // A store that one rank forgets would be waited for in the comparison of another.
  if (!std::exchange(compared_, true)) {
    static_cast<void>(expect_agreement(*mesh_, start.participants, at));
    compare_along_tensor(at);
    compare_ties(at);
  }
  expect_plan_compared(at);
  buckets_.begin_unwritten(start.micro_batches, at);
  gathers_compared_ = false;
  if (gathers_) gathers_->begin_step(run_->engine(), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::compare(order_of_step own, where at) {
  if (gathers_ && !std::exchange(gathers_compared_, true)) gathers_->expect_one_order(own, at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::finish(const divisor_value& divisor, where at) {
  end_gathers(order_of_step::executed, at);
  static_cast<void>(reduced_.emplace(divisor.where_it_is == divisor_value::counted::on_this_rank
                                         ? buckets_.finish(local_targets{divisor.count}, mesh_->replicas(), at)
                                         : buckets_.finish(target_tokens{divisor.count, at}, at)));
  squares_ = rehearsed() ? 0
                               : norm_->template squares_over<group_type>(
                                     *reduced_, *mesh_, buckets_.updates().last(observer_turn::queues_work), at);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::reduced() const -> reduced_sums {
  return reduced_ ? reduced_sums{squares_, reduced_->targets(), true} : reduced_sums{};
}

template <class Run, class Precision>
std::string parameter_store<Run, Precision>::not_finite() const {
  std::string first;
  std::size_t more = 0;
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) {
    if (is_finite(norm_of(p))) continue;
    if (first.empty())
      first = ": parameter " + printable(buckets_.parameter(p).name());
    else
      ++more;
  }
  return more == 0 ? first : first + " and " + std::to_string(more) + " more";
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::each_not_finite(function_ref<void(double)> see) const {
  for (std::size_t p = 0; p < buckets_.parameters(); ++p)
    if (const double norm = norm_of(p); !kernel::are_finite(&norm, 1)) see(norm);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::take_part() noexcept -> committed_part {
  committed_part out{*this, std::move(*reduced_), squares_};
  reduced_.reset();
  return out;
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::abandon(where at) {
  end_gathers(order_of_step::abandoned, at);
  buckets_.abandon(at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::withdraw() noexcept {
  reduced_.reset();
  if (gathers_) gathers_->end_step();
  buckets_.withdraw();
}

template <class Run, class Precision>
update_observation parameter_store<Run, Precision>::observe(update_observer& observer, observer_turn turn, where at) {
  return buckets_.updates().add(observer, turn, at);
}

template <class Run, class Precision>
std::uint64_t parameter_store<Run, Precision>::fingerprint() const {
  return fnv1a().add_text("parameter_store").add(buckets_.updates().updated_with()).value();
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::gathers_in(gathers_begin when) noexcept {
  if (gathers_) gathers_->begin_gathers(when);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::begin_body(where at) {
  if (gathers_) gathers_->begin_in(run_->engine().compute(), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::end_body(where at) {
  auto& stream = run_->engine().compute();
  if (gathers_) gathers_->end_in(stream, at);
  buckets_.join(stream, at);
}

template <class Run, class Precision>
std::string parameter_store<Run, Precision>::unapplied_text(std::uint64_t step) {
  return "the gradients of step " + std::to_string(step) +
         " were committed, and neither applied nor discarded: optimizer.apply(std::move(*ok), {...}), or "
         "std::move(*ok).discard()";
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::note_unapplied(std::uint64_t step) noexcept {
  unapplied_ = step;
  try {
    if (std::uncaught_exceptions() == 0)
      run_->engine().note_refusal(unapplied_text(step), run_->engine().step_site()) = true;
  } catch (...) {  // no memory for the text
  }
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::end_gathers(order_of_step own, where at) {
  if (!gathers_) return;
  compare(own, at);
  gathers_->end_step();
  gathers_->retire(at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::write_first_values(std::uint64_t seed, where at) {
  if (rehearsed()) return;
  const auto write = [&](parameter_base<value_type>& parameter) {
    if (parameter.spec().first_values.how() != initial::initializer::filled) parameter.initialise(seed, at);
  };
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) write(buckets_.parameter(p));
  for (const auto& one : frozen_.members()) write(*one.parameter);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::find_ties(listed_parameters& found, const mesh& mesh, where at) {
  shared_parameters& shared = found.shared;
  const std::vector<tied_name> all = shared.names.find_ties(mesh, at);
  for (const tied_name& each : all) {
    shared.all.push_back(each.name);
    shared.own.push_back(shared_parameters::nowhere);
    const auto& ranks = each.ranks;
    const int here = mesh.layout_coordinate().pipeline;
    if (std::find(ranks.begin(), ranks.end(), here) == ranks.end()) continue;
    std::size_t number = 0;
    while (stage_names::hash_of(found.stored.members[number].parameter().name()) != each.name) ++number;
    shared.own.back() = number;
    shared.over_ranks.push_back({number, ranks});
    if (ranks.front() == here) continue;
    found.places[number].share = norm_share::counted_elsewhere;
    found.norm.count_elsewhere(found.places[number].parameter);
  }
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::lease_ties(const stored_parameters<value_type, gradient_type>& found, where at) {
  for (const auto& [use, of] : found.frozen_uses)
    use->bind(const_cast<value_type*>(frozen_.members()[of].parameter->value()));
  if (buckets_.use_elements() > 0)
    buckets_.bind_uses(
        run_->template lease<gradient_type>(tier::device, buckets_.use_elements(), "gradients of tied uses", at));
  if (const host_access* const access = run_->engine().access(at)) {
    for (const auto& each : buckets_.tied().uses()) each.use->set_host_view(access);
    for (const auto& [use, of] : found.frozen_uses) use->set_host_view(access);
  }
  if (shared_.over_ranks.empty()) return;
  const auto room = [&](int rank) {
    const bucket_places places(buckets_.layout(), in_replica_groups(rank));
    std::size_t most = 0;
    for (const tied_ranks& each : shared_.over_ranks)
      most = greater_of(
          most, tied_sums<value_type>::room_for(places[buckets_.bucket_of(each.parameter)].own, each.ranks.size() - 1));
    return most;
  };
  buckets_.sum_over(mesh_->pipeline(at), shared_.over_ranks,
                    run_->template lease_shard<gradient_type>(tier::device, room, "gradients of other stages", at));
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::compare_ties(where at) {
  if (rehearsed() || shared_.all.empty()) return;
  std::vector<std::uint64_t> values;
  for (const std::size_t number : shared_.own) {
    content_hash hash;
    const bool is_whole = number != shared_parameters::nowhere && !buckets_.parameter(number).divided();
    if (is_whole)
      buckets_.parameter(number).each_kept(
          [&](std::size_t, std::span<value_type> kept) { hash.add_bytes(kept.data(), kept.size_bytes()); });
    values.push_back(is_whole ? hash.value() : rank_comparison::abstains);
  }
  rank_comparison compared;
  if (!compared.differ(mesh_->pipeline(at), values, at)) return;
  const std::size_t number = shared_.own[compared.first()];
  const bool here = number != shared_parameters::nowhere;
  throw usage_error(compared.ranks(mesh_->pipeline(at)) +
                        " of the pipeline begin with different values of a parameter that their stages share" +
                        (here ? ", " + printable(buckets_.parameter(number).name()) : std::string()) +
                        ": initialise it with one seed, or fill it from one source",
                    at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::compare_along_tensor(where at) {
  if (rehearsed() || mesh_->shape().tensor == 1) return;
  tensor_copies<value_type> own;
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) own.add(buckets_.parameter(p));
  for (const auto& one : frozen_.members()) own.add(*one.parameter);
  own.expect_equal(mesh_->tensor(at), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::expect_even(const parameter_base<value_type>& parameter, std::size_t elements,
                                                  where at) {
  if (parameter.local_size() == elements) return;
  throw usage_error("parameter " + printable(parameter.name()) + ": box " + parameter.local_box().text() + " has " +
                        std::to_string(parameter.local_size()) + " elements, even cuts give this rank of the mesh " +
                        std::to_string(elements) + ": make it of the mesh, parameter{spec, mesh}",
                    at);
}

template <class Run, class Precision>
parameter_store<Run, Precision>::parameter_store(Run& run, const mesh& mesh, listed_parameters found,
                                                 std::vector<held_stage> stages, store_options options, where at)
    : run_(&run),
      mesh_(&mesh),
      parts_(stages.size()),
      in_file_(std::ranges::any_of(stages, [](const auto& each) { return each.tiers.values == tier::file; })),
      // No rank reaches into a peer's file: who owns a shard stages it, and the ranks gather together.
      gathers_by_(in_file_                                   ? gather_by::collectives
                  : found.stored.gathers == gather_by::reach ? options.gathers
                                                             : found.stored.gathers),
      files_(options.files),
      buckets_(std::move(found.stored.members),
               replica_groups_of_parts<group_type>(mesh, stages, std::identity(), zero_stage::optimizer_state,
                                                   options.reduce),
               options.bucket_bytes, 1, found.norm.unit(), at),
      frozen_(std::move(found.stored.frozen),
              replica_groups_of_parts<group_type>(mesh, stages, frozen_stage, zero_stage::none, options.reduce),
              options.bucket_bytes, at),
      norm_places_(found.places),
      shared_(std::move(found.shared)) {
  buckets_.add_uses(std::move(found.stored.uses), at);
  lease_memory(found.stored, stages, options, at);
  norm_.emplace(found.norm, std::move(found.places),
                run.template lease<double>(tier::host, found.norm.entries(), "gradient norm", at), at);
  write_first_values(options.seed, at);
  if (reaches_) expect_plan_compared(at);  // which ends on no rank before the values are there
  if (mesh.shape().tensor > 1) static_cast<void>(mesh.tensor(at));  // of the norm
}

template <class Run, class Precision>
parameter_store<Run, Precision>::~parameter_store() = default;

}  // namespace belay::inline BELAY_ABI
