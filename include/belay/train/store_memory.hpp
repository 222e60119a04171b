// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a store: its parameters in buckets, what a rank has of each, and the gathers of what is divided.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/lease_source.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/file_shares.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/shares_in_file.hpp"
#include "belay/train/store_carrier.hpp"
#include "belay/train/store_options.hpp"
#include "belay/train/stored_parameters.hpp"
#include "belay/train/whole_parameter.hpp"

namespace belay::inline BELAY_ABI {

/// The base of a `parameter_store`: all that it has beside its part in steps.
template <class Run, class Mesh, class Precision>
  requires is_precision<Precision>
class store_memory {
 public:
  using value_type = typename Precision::parameters;
  using gradient_type = typename Precision::gradients;
  using group_type = typename Mesh::group_type;
  using buckets_type = gradient_buckets<value_type, group_type>;

  store_memory(const store_memory&) = delete;
  store_memory& operator=(const store_memory&) = delete;

  [[nodiscard]] Run& run() const noexcept { return *run_; }
  [[nodiscard]] buckets_type& buckets() noexcept { return buckets_; }
  [[nodiscard]] const buckets_type& buckets() const noexcept { return buckets_; }

  /// Elements that rank `number` of the world owns, of those that this rank's model lists.
  [[nodiscard]] std::size_t owned_elements(int number) const {
    return buckets_.layout().owned_elements(in_families(number));
  }

  /// In a rehearsal: what a body does from here on depends on what its rank owns.
  void ask_shares() const {
    static_cast<void>(mesh_->replicas().rank());
    static_cast<void>(mesh_->data().rank());
  }

  /// Since `take_gathered` was last called; zeros where no parameters are divided. `eval` has the passes outside of
  /// rollouts.
  [[nodiscard]] gather_counts gathered(phase in = phase::train) const noexcept {
    return gathers_ ? gathers_->counts(in) : gather_counts{};
  }
  [[nodiscard]] gather_counts take_gathered(phase in = phase::train) noexcept {
    return gathers_ ? gathers_->take_counts(in) : gather_counts{};
  }
  /// Bytes of parameters that are whole now, or on their way.
  [[nodiscard]] std::size_t gathered_bytes() const noexcept { return gathers_ ? gathers_->live_bytes() : 0; }

  /// Whether shares of parameters lie in tier file.
  [[nodiscard]] bool in_file() const noexcept { return in_file_; }
  /// Whether a rank that gathers does so by itself: it reaches its peers' shares, or nothing is divided. Else all ranks
  /// that divide a layer's parameters gather them together.
  [[nodiscard]] bool gathers_alone() const noexcept { return !gathers_ || (reaches_ && !together_); }

  /// Calls `write()`, which changes parameters otherwise than an optimizer does: no peer reads this rank's shares
  /// before it is done on all ranks. Collective over the ranks that divide parameters, between steps. Throws
  /// usage_error where a step or pass is open.
  template <std::invocable Write>
  void rewrite(Write&& write, where at = where::current()) {
    run_->engine().expect_between_steps(at);
    if (gathers_) gathers_->retire(at);
    if (reaches_) dividing().barrier(at);
    write();
    if (reaches_) dividing().barrier(at);
  }

  /// All values of `parameter`, one of the store's, as long as the result lives. Where they are divided they are
  /// gathered into memory of the row "gathered parameters", with the others of their bucket, so a rehearsal must come
  /// by here. Between steps; collective over the ranks that divide it, unless the store `gathers_alone()`. Throws
  /// usage_error where a step or pass is open, and of what ranks divide between a commit and its update.
  template <class Parameter>
  [[nodiscard]] whole_parameter<value_type> read(const Parameter& parameter, where at = where::current()) {
    auto& engine = run_->engine();
    engine.expect_between_steps(at);
    engine.synchronize(at);  // the last update
    if (!parameter.divided()) return {{parameter.values().data(), parameter.local_size()}, engine.access(at), at};
    expect_settled(at);
    gathers_->retire(at);  // what a pass has left
    if constexpr (has_gradient<typename Parameter::learning_type>)
      return {*whole_, gathered_bucket_of(buckets_, reached_, bucket_of(parameter)), parameter, engine.access(at), at};
    else
      return {*whole_, gathered_bucket_of(frozen_, reached_frozen_, frozen_.bucket_of(parameter)), parameter,
              engine.access(at), at};
  }

  // For `phase_switch`.

  /// Ends what is gathered. Returns its bytes. Collective over the ranks that divide parameters.
  std::size_t drain(where at) {
    const std::size_t bytes = gathered_bytes();
    if (gathers_) gathers_->retire(at);
    return bytes;
  }
  /// A hash of the plan of gathers; 0 without.
  [[nodiscard]] std::uint64_t plan_hash() const noexcept { return gathers_ ? gathers_->fingerprint() : 0; }

  // For checkpoints.

  /// Calls `visit(parameter, copies)` for all parameters, trained ones first, in model order.
  template <class Visit>
  void each_stored(Visit&& visit) {
    for (std::size_t p = 0; p < buckets_.parameters(); ++p) visit(buckets_.parameter(p), copies_of(p));
    for (const auto& one : frozen_.members()) {
      const bool divided = frozen_.layout().families()[one.family].divides_values();
      const copy_place place = copies_of_box(*one.parameter, divided);
      visit(*one.parameter, stored_copies{place, place});
    }
  }
  /// Which ranks keep the same state of trained parameter `p`: the same share where that is divided.
  [[nodiscard]] stored_copies copies_of(std::size_t p) const {
    const std::size_t number = buckets_.layout().buckets()[buckets_.bucket_of(p)].family;
    const family_shape family = buckets_.layout().families()[number];
    const bool divides_state = family.ranks > 1 && family.stage >= zero_stage::optimizer_state;
    const auto& parameter = buckets_.parameter(p);
    return {copies_of_box(parameter, family.divides_values()), copies_of_box(parameter, divides_state)};
  }

  // For `belay::gathers`.

  static constexpr std::uint32_t whole = gather_order::nothing;
  /// The number of a layer whose parameters are gathered together; `whole` where none of them is divided. Each of the
  /// buckets that hold them is of this layer alone.
  template <class Layer>
  [[nodiscard]] std::uint32_t gathers_for(Layer& layer) {
    if (!gathers_) return whole;
    std::set<std::size_t> trained, never_trained;
    layer.for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      if (!parameter.divided()) return;
      if constexpr (has_gradient<typename Parameter::learning_type>)
        trained.insert(bucket_of(parameter));
      else
        never_trained.insert(frozen_.bucket_of(parameter));
    });
    std::vector<gathered_bucket<value_type, group_type>> all;
    for (std::size_t b : trained) all.push_back(gathered_bucket_of(buckets_, reached_, b));
    for (std::size_t b : never_trained) all.push_back(gathered_bucket_of(frozen_, reached_frozen_, b));
    return all.empty() ? whole : gathers_->add_layer(std::move(all), layer_name(layer), layer_index(layer));
  }
  void hold(std::uint32_t layer, auto& engine, where at) {
    expect_plan_compared(at);
    expect_settled(at);
    gathers_->hold(layer, engine, at);
    if (rehearsed())
      for (const phase each : all_phases) run_->note_gathers(gathers_number_, each, gathers_->noted(each));
  }
  void give_back(std::uint32_t layer) noexcept { gathers_->give_back(layer); }
  /// Whether nothing is moved, and memory is addresses.
  [[nodiscard]] bool rehearsed() const { return is_rehearsed(mesh_->world()); }
  [[nodiscard]] std::size_t bytes_of(std::uint32_t layer) const noexcept { return gathers_->bytes_of(layer); }

  // For `store_gradients`: gradients are committed that are to be applied, or are no longer.
  void note_unsettled() noexcept { settled_ = false; }
  void note_settled() noexcept { settled_ = true; }

 protected:
  store_memory(Run& run, const Mesh& mesh, stored_parameters<value_type, gradient_type> found,
               std::vector<held_stage> stages, const store_options& options, ownership_unit unit, where at)
      : run_(&run),
        mesh_(&mesh),
        parts_(stages.size()),
        in_file_(std::ranges::any_of(stages, [](const auto& each) { return each.tiers.values == tier::file; })),
        // No rank reaches into a peer's file: who owns a share stages it, and the ranks gather together.
        gathers_by_(in_file_                            ? gather_by::collectives
                    : found.gathers == gather_by::reach ? options.gathers
                                                        : found.gathers),
        files_(options.files),
        buckets_(std::move(found.members),
                 families_of_parts(mesh, stages, std::identity(), zero_stage::optimizer_state, options.reduce),
                 options.bucket_bytes, 1, unit, at),
        frozen_(std::move(found.frozen),
                families_of_parts(mesh, stages, frozen_stage, zero_stage::none, options.reduce), options.bucket_bytes,
                at) {
    run.keep(buckets_.kept_layout());
    if (!found.values.empty() && stages.front().stage >= zero_stage::gradients)
      throw usage_error("borrowed memory holds whole values and gradients: ZeRO 2 and 3 divide memory of the run", at);
    const auto lower = [](const held_stage& each) {
      return each.tiers.values != tier::device || each.tiers.gradients != tier::device;
    };
    if (mesh.shape().replicates_shards() && mesh.shape().shards() == 1 && std::ranges::any_of(stages, lower))
      throw usage_error("a shard group of one rank has no shares, which could lie in a lower tier", at);
    if (mesh.shape().replicates_shards() &&
        std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients == tier::file; }))
      throw usage_error("gradients in tier file are not summed over shard groups: keep them in tier host or pinned",
                        at);
    if constexpr (requires { requires group_type::takes_device_memory_alone; })
      if (mesh.shape().replicates_shards() &&
          std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
        throw usage_error("NCCL sums gradients over shard groups in memory of the device alone: keep them there", at);
    bind(found.values, found.gradients, at);
    if (buckets_.divides_gradients()) {
      staging_.emplace(run.step_memory("gradient buckets"));
      buckets_.use(*staging_);
      if (std::ranges::any_of(stages, [](const held_stage& each) { return each.tiers.gradients != tier::device; }))
        buckets_.carry_shares(carrier_on<gradient_type>(run.engine(), buckets_.gradient_file()));
    }
    if (!frozen_.members().empty()) {
      const tiered_memory<value_type> frozen =
          lease_values(frozen_, reached_frozen_, "frozen parameters", "frozen parameter ring", at);
      frozen_.bind(frozen, std::exchange(file_, nullptr));
    }
    run.keep(frozen_.kept());
    if (const host_access* const access = run.engine().access(at)) {
      see_through(access, buckets_, [&](std::size_t p) -> auto& { return buckets_.parameter(p); });
      see_through(access, frozen_, [&](std::size_t p) -> auto& { return *frozen_.members()[p].parameter; });
    }
    if (buckets_.divides_values() || frozen_.places().divided()) {
      whole_.emplace(run.step_memory("gathered parameters"));
      gathers_number_ = run.add_gathers();
      gathers_.emplace(*whole_, options.reshard, options.gathers_ahead, run.planned_gathers(gathers_number_));
      if (!gathers_alone()) buckets_.gather_together();
    }
  }

  void note_micro_batches(std::size_t count) {
    if (rehearsed() && gathers_) run_->note_micro_batches(gathers_number_, count);
  }

  /// Once: whether all ranks that gather together have one plan. Collective over them.
  void expect_plan_compared(where at) {
    if (!gathers_ || std::exchange(compared_plan_, true)) return;
    rank_comparison compared;
    expect_one_plan(compared, mesh_->replicas(), gathers_->fingerprint(), at, gathers_->micro_batches());
  }

  /// Peers may write what a gather reads until all of them have updated what they own.
  void expect_settled(where at) const {
    if (!gathers_ || settled_) return;
    throw usage_error(
        "parameters that ranks divide are gathered between a commit and its update: "
        "optimizer.apply(std::move(*ok), {...}), or std::move(*ok).discard(), comes first",
        at);
  }

  Run* run_;
  const Mesh* mesh_;
  std::size_t parts_;  // of `holds`
  bool in_file_;
  gather_by gathers_by_;
  file_memory files_;
  bool reaches_ = false;   // its peers' shares
  bool together_ = false;  // or some of them not
  bool settled_ = true;
  std::optional<reached_values<value_type>> reached_, reached_frozen_;
  std::optional<lease_source_of<arena<typename Run::memory_type>>> staging_, whole_;
  buckets_type buckets_;
  frozen_buckets<value_type, group_type> frozen_;
  std::optional<parameter_gathers<value_type, group_type>> gathers_;  // where parameters are divided

 private:
  void bind(std::span<value_type> values, std::span<gradient_type> gradients, where at) {
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
    file_shares* const value_file = std::exchange(file_, nullptr);
    if (reached_) buckets_.reach_shares_of(dividing());
    if (!buckets_.places().divided()) {
      const auto all = lease_gradients(layout.gradient_elements(), "gradients");
      return buckets_.bind({all_values, {all.first(own)}, all.subspan(own), wire}, at);
    }
    const auto all_gradients = lease_of_buckets<gradient_type>(
        buckets_, &bucket_places::gradient_elements, &family_shape::gradients, "gradients", "gradient ring", at);
    file_shares* const gradient_file = std::exchange(file_, nullptr);
    std::span<gradient_type> reductions;
    if (const std::size_t count = layout.gradient_elements() - own; count > 0)
      reductions = lease_gradients(count, "reductions");
    bucket_memory<value_type> memory{all_values, all_gradients, reductions, wire};
    memory.value_file = value_file;
    memory.gradient_file = gradient_file;
    buckets_.bind(memory, at);
  }

  [[nodiscard]] copy_place copies_of_box(const parameter_base<value_type>& parameter, bool divided) const {
    return belay::copies_of(mesh_->shape(), mesh_->layout_coordinate(), parameter.cut_directions(),
                            divided ? kept::share : kept::local_part);
  }
  [[nodiscard]] std::size_t bucket_of(const parameter_base<value_type>& parameter) const noexcept {
    std::size_t p = 0;
    while (&buckets_.parameter(p) != &parameter) ++p;
    return buckets_.bucket_of(p);
  }

  // The numbers of rank `number` of the world in the families.
  [[nodiscard]] std::vector<std::size_t> in_families(int number) const {
    const coordinate there = coordinate_of(mesh_->shape(), number);
    std::vector<std::size_t> all;
    for (std::size_t p = 0; p < parts_; ++p)
      for (std::size_t kind = 0; kind < families_of_part; ++kind)
        all.push_back(
            static_cast<std::size_t>(place_along(mesh_->shape(), there, divided_over(cut_of_family(kind))).number));
    return all;
  }
  // Memory of values or gradients: of divided ones each rank has its share, in its tier.
  template <class T>
  [[nodiscard]] tiered_memory<T> lease_of_buckets(const auto& all,
                                                  std::size_t (bucket_places::*elements)(tier) const noexcept,
                                                  tier family_shape::* its_tier, const char* purpose, const char* ring,
                                                  where at) {
    if (!all.places().divided())
      return run_->template lease<T>(tier::device, (all.places().*elements)(tier::device), purpose, at);
    tiered_memory<T> out;
    for (const tier in : {tier::device, tier::pinned, tier::host, tier::file}) {
      const auto lies_there = [&](const family_shape& each) { return each.*its_tier == in; };
      if (in != tier::device && std::ranges::none_of(all.layout().families(), lies_there)) continue;
      const auto elements_of = [&](int rank) { return (bucket_places(all.layout(), in_families(rank)).*elements)(in); };
      if (in != tier::file) {
        out[in] = run_->template lease_share<T>(in, elements_of, purpose, at);
        continue;
      }
      const auto leased = lease_in_file<T>(*run_, files_, (all.places().*elements)(in), elements_of, purpose, ring, at);
      out[in] = leased.addresses;
      file_ = leased.file;
    }
    return out;
  }

  // Values: where they are divided, and addresses reach, each rank of those that divide any can read the others'.
  template <class Buckets>
  [[nodiscard]] tiered_memory<value_type> lease_values(const Buckets& all,
                                                       std::optional<reached_values<value_type>>& reached,
                                                       const char* purpose, const char* ring, where at) {
    if (gathers_by_ == gather_by::collectives || !all.divides_values() || dividing().size() < 2)
      return lease_of_buckets<value_type>(all, &bucket_places::value_elements, &family_shape::values, purpose, ring,
                                          at);
    // A device addresses its peers' memory, and not that of their host.
    const bool lower = std::ranges::any_of(all.layout().families(),
                                           [](const family_shape& each) { return each.values != tier::device; });
    const bool reaches = addresses_peers(mesh_->world()) && (!works_on_device<group_type> || !lower);
    (reaches ? reaches_ : together_) = true;
    if (reaches && !rehearsed()) {
      std::vector<bucket_places> places;
      for (const int rank : dividing().members()) places.emplace_back(all.layout(), in_families(rank));
      reached.emplace(dividing().members(), std::move(places));
    }
    tiered_memory<value_type> out;
    for (const tier in : {tier::device, tier::pinned, tier::host}) {
      const auto lies_there = [&](const family_shape& each) { return each.values == in; };
      if (in != tier::device && std::ranges::none_of(all.layout().families(), lies_there)) continue;
      const auto elements = [&](int rank) { return bucket_places(all.layout(), in_families(rank)).value_elements(in); };
      auto lease = run_->template lease_reached<value_type>(in, dividing(), elements, purpose, at);
      out[in] = lease.own;
      if (reached) reached->lies(in, std::move(lease.ranks));
    }
    return out;
  }
  [[nodiscard]] static gathered_bucket<value_type, group_type> gathered_bucket_of(
      const auto& all, const std::optional<reached_values<value_type>>& reached, std::size_t number) {
    gathered_bucket<value_type, group_type> out = all.gathered(number);
    if (reached) out.reached = reached->of(number, out.group->members(), out.kept);
    return out;
  }
  // The ranks that divide parameters, in any family.
  [[nodiscard]] decltype(auto) dividing() const {
    return mesh_->shape().replicates_shards() ? mesh_->dense_shards() : mesh_->replicas();
  }

  std::size_t gathers_number_ = 0;
  file_shares* file_ = nullptr;  // of what was leased last
  bool compared_plan_ = false;
};

}  // namespace belay::inline BELAY_ABI
