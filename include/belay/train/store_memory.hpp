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
#include "belay/comm/device_group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/bucket/shards.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/range_table.hpp"
#include "belay/train/shards_in_file.hpp"
#include "belay/train/store_options.hpp"
#include "belay/train/whole_parameter.hpp"

namespace belay::inline BELAY_ABI {

// A sum has the same bits whichever of its terms is in the file.
template <class Gradient>
void add_shard(std::byte* to, const std::byte* from, std::size_t bytes) {
  kernel::for_each_index(bytes / sizeof(Gradient),
                         kernel::axpy<Gradient, Gradient>{Gradient(1), reinterpret_cast<const Gradient*>(from),
                                                          reinterpret_cast<Gradient*>(to)});
}

/// `engine` outlives it, and `file`, which has the shards in tier file.
template <class Gradient, class Engine>
[[nodiscard]] tier_copies<Gradient> tier_copies_on(Engine& engine, file_shards* file) {
  static_cast<void>(engine.copies());  // its thread is there before the first step
  tier_copies<Gradient> out;
  out.copy_to_tier = [&engine, file](const stream_event& reduced, Gradient* from, std::span<Gradient> shard, tier in,
                                     first_of_step which) {
    auto& copies = engine.copies();
    copies.wait(reduced);
    const where at = engine.step_site();
    if (in == tier::file) {
      if (which == first_of_step::no) file->queue_add(from, shard.data(), shard.size_bytes(), add_shard<Gradient>, at);
      file->queue_write(shard.data(), from, shard.size_bytes(), at);
    } else if (which == first_of_step::yes)
      copies.copy(shard.data(), from, shard.size_bytes());
    else
      copies.each(shard.size(), kernel::axpy<Gradient, Gradient>{Gradient(1), from, shard.data()});
    return copies.record();
  };
  out.copy_from_tier = [&engine, file](std::span<const Gradient> shard, tier in, Gradient* to) {
    auto& copies = engine.copies();
    const stream_event ready = engine.compute().record();
    if (in == tier::file) return file->load(ready, shard.data(), to, shard.size_bytes(), engine.step_site());
    copies.wait(ready);
    copies.copy(to, shard.data(), shard.size_bytes());
    return copies.record();
  };
  return out;
}

/// The parameters of a model, in its order, and memory that it lends.
template <class T, class Gradient>
struct stored_parameters {
  std::vector<bucket_member<T>> members;
  std::vector<frozen_member<T>> frozen;
  std::span<T> values;            // borrowed, or empty
  std::span<Gradient> gradients;  // alike
  // Collectives where ranks along expert have parts of different sizes: no rank knows where a peer's shards lie.
  gather_by gathers = gather_by::reach;
};

/// The copies of a parameter's values, and of its optimizer's state.
struct stored_copies {
  copy_place of_values, of_state;
};

/// The base of a `parameter_store`: all that it has beside its part in steps.
template <class Run, class Precision>
  requires is_precision<Precision>
class store_memory {
 public:
  using value_type = typename Precision::parameters;
  using gradient_type = typename Precision::gradients;
  using group_type = typename group_with_kit<group, typename Run::engine_type::kit_type>::type;
  using buckets_type = gradient_buckets<value_type, group_type>;

  store_memory(const store_memory&) = delete;
  store_memory& operator=(const store_memory&) = delete;

  [[nodiscard]] Run& run() const noexcept { return *run_; }
  [[nodiscard]] buckets_type& buckets() noexcept { return buckets_; }
  [[nodiscard]] const buckets_type& buckets() const noexcept { return buckets_; }
  /// For graphs and optimizers of a device: its division of gradients, and the table of its ranges; null on a host.
  [[nodiscard]] gradient_division<Run, value_type>* division() noexcept { return division_ ? &*division_ : nullptr; }

  /// Elements that rank `number` of the world owns, of those that this rank's model lists.
  [[nodiscard]] std::size_t owned_elements(int number) const;

  /// In a rehearsal: what a body does from here on depends on what its rank owns.
  void ask_shards() const;

  /// Since `take_gathered` was last called; zeros where no parameters are divided. `eval` has the passes outside of
  /// rollouts.
  [[nodiscard]] gather_counts gathered(phase in = phase::train) const noexcept;
  [[nodiscard]] gather_counts take_gathered(phase in = phase::train) noexcept;
  /// Bytes of parameters that are whole now, or on their way.
  [[nodiscard]] std::size_t gathered_bytes() const noexcept;

  /// Whether shards of parameters lie in tier file.
  [[nodiscard]] bool in_file() const noexcept;
  /// Whether a rank that gathers does so by itself: it reaches its peers' shards, or nothing is divided. Else all ranks
  /// that divide a layer's parameters gather them together.
  [[nodiscard]] bool gathers_alone() const noexcept;

  /// Calls `write()`, which changes parameters otherwise than an optimizer does: no peer reads this rank's shards
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
      return {*whole_, gathered_trained(bucket_of(parameter)), parameter, engine.access(at), at};
    else
      return {*whole_, gathered_frozen(frozen_.bucket_of(parameter)), parameter, engine.access(at), at};
  }

  // For `phase_switch`.

  /// Ends what is gathered. Returns its bytes. Collective over the ranks that divide parameters.
  std::size_t drain(where at);
  /// A hash of the plan of gathers; 0 without.
  [[nodiscard]] std::uint64_t plan_hash() const noexcept;

  // For checkpoints.

  /// Calls `visit(parameter, copies)` for all parameters, trained ones first, in model order.
  template <class Visit>
  void each_stored(Visit&& visit) {
    for (std::size_t p = 0; p < buckets_.parameters(); ++p) visit(buckets_.parameter(p), copies_of(p));
    for (const auto& one : frozen_.members()) {
      const bool divided = frozen_.layout().replica_groups()[one.replica_group].divides_values();
      const copy_place place = copies_of_box(*one.parameter, divided);
      visit(*one.parameter, stored_copies{place, place});
    }
  }
  /// Which ranks keep the same state of trained parameter `p`: the same shard where that is divided.
  [[nodiscard]] stored_copies copies_of(std::size_t p) const;

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
    return gathers_for(trained, never_trained, layer_name(layer), layer_index(layer));
  }
  void hold(std::uint32_t layer, typename Run::engine_type& engine, where at);
  void give_back(std::uint32_t layer) noexcept;
  /// Whether nothing is moved, and memory is addresses.
  [[nodiscard]] bool rehearsed() const;
  [[nodiscard]] std::size_t bytes_of(std::uint32_t layer) const noexcept;

 protected:
  store_memory(Run& run, const mesh& mesh, stored_parameters<value_type, gradient_type> found,
               std::vector<held_stage> stages, const store_options& options, ownership_unit unit, where at);

  void note_micro_batches(std::size_t count);

  /// Once: whether all ranks that gather together have one plan. Collective over them.
  void expect_plan_compared(where at);

  /// Peers may write what a gather reads until all of them have updated what they own.
  void expect_settled(where at) const;

  ~store_memory();

  Run* run_;
  const mesh* mesh_;
  std::size_t parts_;  // of `holds`
  bool in_file_;
  gather_by gathers_by_;
  file_memory files_;
  bool reaches_ = false;   // its peers' shards
  bool together_ = false;  // or some of them not
  std::optional<reached_values<value_type>> reached_, reached_frozen_;
  std::optional<lease_source_of<arena<typename Run::memory_type>>> staging_, whole_;
  buckets_type buckets_;
  frozen_buckets<value_type, group_type> frozen_;
  std::optional<gradient_division<Run, value_type>> division_;
  update_observation divides_by_;
  std::optional<parameter_gathers<value_type, group_type>> gathers_;  // where parameters are divided

 private:
  void bind(std::span<value_type> values, std::span<gradient_type> gradients, where at);

  [[nodiscard]] copy_place copies_of_box(const parameter_base<value_type>& parameter, bool divided) const;
  [[nodiscard]] std::size_t bucket_of(const parameter_base<value_type>& parameter) const noexcept;
  // Of the buckets with these numbers, and of those of frozen parameters.
  [[nodiscard]] std::uint32_t gathers_for(const std::set<std::size_t>& trained,
                                          const std::set<std::size_t>& never_trained, const char* name,
                                          std::size_t index);
  [[nodiscard]] gathered_bucket<value_type, group_type> gathered_trained(std::size_t number) const;
  [[nodiscard]] gathered_bucket<value_type, group_type> gathered_frozen(std::size_t number) const;

  // The numbers of rank `number` of the world in the replica groups.
  [[nodiscard]] std::vector<std::size_t> in_replica_groups(int number) const;
  // Memory of values or gradients: of divided ones each rank has its shard, in its tier.
  template <class T>
  [[nodiscard]] tiered_memory<T> lease_of_buckets(const auto& all,
                                                  std::size_t (bucket_places::*elements)(tier) const noexcept,
                                                  tier replica_group_shape::* its_tier, const char* purpose,
                                                  const char* ring, where at) {
    if (!all.places().divided())
      return run_->template lease<T>(tier::device, (all.places().*elements)(tier::device), purpose, at);
    tiered_memory<T> out;
    for (const tier in : {tier::device, tier::pinned, tier::host, tier::file}) {
      const auto lies_there = [&](const replica_group_shape& each) { return each.*its_tier == in; };
      if (in != tier::device && std::ranges::none_of(all.layout().replica_groups(), lies_there)) continue;
      const auto elements_of = [&](int rank) {
        return (bucket_places(all.layout(), in_replica_groups(rank)).*elements)(in);
      };
      if (in != tier::file) {
        out[in] = run_->template lease_shard<T>(in, elements_of, purpose, at);
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
      return lease_of_buckets<value_type>(all, &bucket_places::value_elements, &replica_group_shape::values, purpose,
                                          ring, at);
    // A device addresses its peers' memory, and not that of their host.
    const bool lower = std::ranges::any_of(all.layout().replica_groups(),
                                           [](const replica_group_shape& each) { return each.values != tier::device; });
    const bool reaches = addresses_peers(mesh_->world()) && (!works_on_device<group_type> || !lower);
    (reaches ? reaches_ : together_) = true;
    if (reaches && !rehearsed()) {
      std::vector<bucket_places> places;
      for (const int rank : dividing().members()) places.emplace_back(all.layout(), in_replica_groups(rank));
      reached.emplace(dividing().members(), std::move(places));
    }
    tiered_memory<value_type> out;
    for (const tier in : {tier::device, tier::pinned, tier::host}) {
      const auto lies_there = [&](const replica_group_shape& each) { return each.values == in; };
      if (in != tier::device && std::ranges::none_of(all.layout().replica_groups(), lies_there)) continue;
      const auto elements = [&](int rank) {
        return bucket_places(all.layout(), in_replica_groups(rank)).value_elements(in);
      };
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
  // The ranks that divide parameters, in any replica group.
  [[nodiscard]] decltype(auto) dividing() const {
    return mesh_->shape().replicates_shards() ? mesh_->dense_shards() : mesh_->replicas();
  }

  std::size_t gathers_number_ = 0;
  file_shards* file_ = nullptr;  // of what was leased last
  bool compared_plan_ = false;
};

}  // namespace belay::inline BELAY_ABI

#include "belay/train/store_memory.ipp"  // IWYU pragma: export
