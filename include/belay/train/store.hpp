// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter store gives a model's parameters their memory, and takes part in every step: backwards add to its
// gradients (`frame.add_to`), the step's commit reduces them over the ranks that replicate them and divides them once,
// and an optimizer gets them with the token of the committed step alone. The memory is the run's.
//
//   network net;                                     // has for_each_parameter(visit)
//   belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
//   belay::adamw optimizer{store};
//   belay::step step{run.engine(), store};
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/device_group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
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
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/participant.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/norm_table.hpp"
#include "belay/train/range_table.hpp"
#include "belay/train/shards_in_file.hpp"
#include "belay/train/stage_names.hpp"
#include "belay/train/store_gradients.hpp"
#include "belay/train/store_options.hpp"  // IWYU pragma: export
#include "belay/train/store_update.hpp"
#include "belay/train/whole_parameter.hpp"

namespace belay::inline BELAY_ABI {

/// Adds a shard to another one in memory. A sum has the same bits whichever of its terms is in the file.
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
  /// Trained parameters and frozen ones, and what the model lends.
  std::vector<bucket_member<T>> members;
  std::vector<frozen_member<T>> frozen;
  // Of parameters that stages share, those of further stages of the rank, and the first one's number in those lists.
  std::vector<tied_use<T>> uses;
  std::vector<std::pair<frozen_parameter<T>*, std::size_t>> frozen_uses;
  std::span<T> values;            // borrowed, or empty
  std::span<Gradient> gradients;  // alike
  /// Collectives where ranks along expert have parts of different sizes: no rank knows where a peer's shards lie.
  gather_by gathers = gather_by::reach;
};

/// Parameters that stages share, of a rank with these stages: how many of them list each, where the first one is in the
/// rank's lists, and what ranks of the pipeline agree on.
struct shared_parameters {
  std::map<std::string, std::size_t> listings;  // of those of a name
  std::map<std::string, std::size_t> trained;   // number of the first among trained ones,
  std::map<std::string, std::size_t> frozen;    // or among frozen ones
  stage_names names;                            // of all parameters
  /// Those that lie on several ranks, this one among them.
  std::vector<tied_ranks> over_ranks;
  std::vector<std::uint64_t> all;  // those of the pipeline that lie on several ranks, and
  std::vector<std::size_t> own;    // the number of each here, or `nowhere`
  /// The number of one that this rank has not.
  static constexpr std::size_t nowhere = ~std::size_t{0};
};

/// The copies of a parameter's values, and of its optimizer's state.
struct stored_copies {
  /// Of values, and of state.
  copy_place of_values, of_state;
};

/// `Run` has the memory (run.hpp), `Precision` the element types. It stays where it was made:
/// parameters point to it.
template <class Run, class Precision = precision<>>
class parameter_store final : public participant {
  static_assert(is_precision<Precision>);

 public:
  using value_type = typename Precision::parameters;
  using gradient_type = typename Precision::gradients;
  using group_type = typename group_with_kit<group, typename Run::engine_type::kit_type>::type;
  using buckets_type = gradient_buckets<value_type, group_type>;
  using run_type = Run;
  using kit_type = typename Run::engine_type::kit_type;
  using committed_part = store_gradients<parameter_store>;
  friend committed_part;

  /// Gives every parameter of `model` its memory and its first values, except those of `initial::filled()`. A model
  /// that `lends_memory` keeps its own. `run`, `mesh` and `model` outlive the store. Throws usage_error where two
  /// parameters have one name, on one stage of a pipeline or, if it is trained, on two, or one is listed twice.
  template <lists_parameters Model, int Stage>
  parameter_store(Run& run, const mesh& mesh, Model& model, zero<Stage> divided, Precision = {},
                  store_options options = {}, where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options, at),
                        {stage_in(divided.stage, tier::device, options, at)}, options, at) {}
  template <lists_parameters Model, int Stage>
  parameter_store(Run& run, const mesh& mesh, Model& model, zero<Stage> divided, store_options options,
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options, at),
                        {stage_in(divided.stage, tier::device, options, at)}, options, at) {}
  /// Gives every parameter of `model` its memory and its first values, except those of `initial::filled()`, with a
  /// stage that is known when the program runs. A model that `lends_memory` keeps its own. `run`, `mesh` and `model`
  /// outlive the store. Throws usage_error where two parameters have one name, on one stage of a pipeline or, if it is
  /// trained, on two, or one is listed twice.
  template <lists_parameters Model>
  parameter_store(Run& run, const mesh& mesh, Model& model, zero_stage divided, store_options options = {},
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options, at), {stage_in(divided, tier::device, options, at)},
                        options, at) {}
  /// Of several parts, each with a stage of its own; the model's order is theirs.
  template <lists_parameters... Parts>
  requires(sizeof...(Parts) > 0)
      parameter_store(Run& run, const mesh& mesh, store_options options, held_parameters<Parts>... parts)
      : parameter_store(run, mesh, listed(mesh, options, parts...),
                        {stage_in(parts.stage, parts.values, options, parts.at)...}, options, first_site(parts...)) {}
  template <lists_parameters... Parts>
    requires(sizeof...(Parts) > 0)
  parameter_store(Run& run, const mesh& mesh, held_parameters<Parts>... parts)
      : parameter_store(run, mesh, store_options{}, parts...) {}
  parameter_store(const parameter_store&) = delete;
  parameter_store& operator=(const parameter_store&) = delete;
  ~parameter_store() override;

  /// The run that has the memory, and the buckets of trained parameters.
  [[nodiscard]] Run& run() const noexcept { return *run_; }
  [[nodiscard]] buckets_type& buckets() noexcept { return buckets_; }
  [[nodiscard]] const buckets_type& buckets() const noexcept { return buckets_; }
  /// For graphs and optimizers of a device: its division of gradients, and the table of its ranges; null on a host.
  [[nodiscard]] gradient_division<Run, value_type>* division() noexcept { return division_ ? &*division_ : nullptr; }

  /// Elements that rank `number` of the world owns, of those that this rank's model lists.
  [[nodiscard]] std::size_t owned_elements(int number) const;
  /// Parts of parameters that these are.
  [[nodiscard]] std::size_t owned_ranges(int number) const;

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

  /// Writes the first values again, of another seed. Collective over the ranks that divide parameters, between steps.
  void fill(std::uint64_t seed, where at = where::current());

  /// The norm of one parameter at the last commit, by its number in model order.
  [[nodiscard]] double norm_of(std::size_t parameter) const noexcept;

  /// An optimizer of one's own: consumes the token of a committed step, calls `f(name, values, gradients, first)` for
  /// each range that this rank owns, in the order of the compute stream, and gathers the values on the ranks that
  /// replicate them. `values` (`std::span<float>`, of a bf16 store the master copies, which are then rounded; of a
  /// double store double) and `gradients` (`std::span<const float>`, reduced and divided) begin at element `first` of
  /// the parameter's local part and are good within the call; ranges are alike in every step. `f` runs on the calling
  /// thread, and never in a rehearsal. `f(frame, name, values, gradients, first)` queues kernels instead, `frame.each`,
  /// which is what memory of a device takes; a rehearsal calls it without memory. Where shards lie in a file, or below
  /// a device, a call has a chunk. Ranks that replicate a value agree on what `f` computes. Collective over the
  /// replica groups of the parameters. Master copies are memory of the run ("master copies"), no part of a checkpoint.
  /// Throws usage_error for a token that was applied before or is another store's.
  template <class... Participants, class F>
  void update(committed_gradients<Participants...>&& token, F&& f, where at = where::current()) {
    update(std::move(token).only_part(), f, at);
  }
  /// Updates by the part of one of several stores of a step: `store.update(ok->part(store), f)`.
  template <class F>
  void update(committed_part&& part, F&& f, where at = where::current()) {
    if constexpr (store_update<parameter_store>::template takes<std::remove_reference_t<F>>()) {
      if (!part.are_of(buckets_))
        throw usage_error("these gradients were applied before, or belong to another store", at);
      note_before_update(at);
      static_cast<void>(std::move(part).take().consume(at));
      update_.run(f, at);
      note_update(fnv1a().add_text("update").value());
    }
  }
  /// Does not compile, with a sentence.
  template <class Token, class F>
    requires(std::is_lvalue_reference_v<Token>)
  void update(Token&&, F&&, where = where::current()) {
    static_assert(!std::is_lvalue_reference_v<Token>,
                  "belay: update consumes the token: store.update(std::move(*ok), f)");
  }

  // A step asks its participants for these.

  /// Throws usage_error where the last committed step's gradients were neither applied nor discarded.
  void begin(const step_start& start, where at) override;

  /// Throws usage_error on all ranks that gather together where they have gathered other layers in the step: a device
  /// would wait for the others' gathers. Collective over them; nothing where each rank gathers by itself.
  void compare(order_of_step own, where at) override;
  /// Reduces and divides. Collective over the replica groups of the parameters and, for the norm, the mesh.
  void finish(const divisor_value& divisor, where at) override;
  [[nodiscard]] reduced_sums reduced() const override;
  /// ": parameter w1 and 3 more": those of this rank's stage whose gradients are not finite on some rank.
  [[nodiscard]] std::string not_finite() const override;
  void each_not_finite(function_ref<void(double)> see) const override;
  void discard_part() noexcept override { reduced_.reset(); }
  /// The gradients that were finished, for the token of a committed step.
  [[nodiscard]] committed_part take_part() noexcept;

  /// Ends a step that is refused before its gradients were complete: joins the reductions that peers wait in.
  void abandon(where at) override;
  void withdraw() noexcept override;
  [[nodiscard]] std::uint64_t fingerprint() const override;
  /// For graphs, whose body has all gathers of its step: they begin as `when` says, with the step or with `begin_body`.
  /// Later work of the stream comes after all that has begun up to `end_body`.
  void gathers_in(gathers_begin when) noexcept;
  void begin_body(where at);
  void end_body(where at);
  /// `observer` takes part in updates of the parameters, in its turn, while the result lives; the store outlives that.
  /// Throws usage_error where another one moves gradients and state.
  [[nodiscard]] update_observation observe(update_observer& observer, observer_turn turn, where at = where::current());
  /// Before parameters, or the state of their optimizer, change: tells the observers. Throws usage_error where a part
  /// of that is away.
  void note_before_update(where at = where::current()) const { buckets_.updates().before_update(at); }
  /// Gradients and the state of the optimizers are on the device while the result lives, and then where they were. The
  /// store outlives it. Between steps. Throws tier_file_error where they cannot be read.
  [[nodiscard]] residency_hold hold_state(where at = where::current()) const { return {buckets_.updates(), at}; }
  /// Whether the phase that this rank is in has them away, alike on all ranks.
  [[nodiscard]] bool state_away() const noexcept {
    const update_observer* const mover = buckets_.updates().last(observer_turn::moves_state);
    return mover != nullptr && mover->away();
  }
  /// A hash of what an optimizer was last applied with; the next vote compares it.
  void note_update(std::uint64_t arguments) noexcept { buckets_.updates().note_update(arguments); }

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

  /// Of a layer that gathers nothing.
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

 private:
  struct listed_parameters {
    stored_parameters<value_type, gradient_type> stored;
    norm_table norm;
    std::vector<norm_place> places;
    shared_parameters shared;
  };

  void note_micro_batches(std::size_t count);

  // Once: whether all ranks that gather together have one plan. Collective over them.
  void expect_plan_compared(where at);

  // Peers may write what a gather reads until all of them have updated what they own.
  void expect_settled(where at) const;

  // Of the run for what the model does not lend, and what moves in it: gathers, copies to lower tiers.
  void lease_memory(const stored_parameters<value_type, gradient_type>& found, std::span<const held_stage> stages,
                    const store_options& options, where at);
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

  [[nodiscard]] static std::string unapplied_text(std::uint64_t step);
  // Said by the next step or, in a loop over `run.steps`, before the next number, which is also after the last.
  void note_unapplied(std::uint64_t step) noexcept;

  void end_gathers(order_of_step own, where at);
  parameter_store(Run& run, const mesh& mesh, listed_parameters found, std::vector<held_stage> stages,
                  store_options options, where at);
  void write_first_values(std::uint64_t seed, where at);

  template <class Model>
  [[nodiscard]] static listed_parameters listed(Model& model, const mesh& mesh, const store_options& options,
                                                where at) {
    listed_parameters found;
    list(found, 0, model, mesh, options, at);
    if constexpr (lends_memory<Model>) {
      found.stored.values = model.borrowed_values();
      found.stored.gradients = model.borrowed_gradients();
    }
    find_ties(found, mesh, at);
    found.norm.widen(mesh.pipeline(), at);  // the unit of the whole model, whatever part of it is here
    if constexpr (lists_stages<Model>) found.norm.find_holders(mesh.pipeline(), at);
    return found;
  }
  template <class... Parts>
  [[nodiscard]] static listed_parameters listed(const mesh& mesh, const store_options& options,
                                                const held_parameters<Parts>&... parts) {
    listed_parameters found;
    std::size_t number = 0;
    (list(found, number++, *parts.part, mesh, options, parts.at), ...);
    find_ties(found, mesh, first_site(parts...));
    found.norm.widen(mesh.pipeline(), first_site(parts...));
    return found;
  }
  template <class First, class... Rest>
  [[nodiscard]] static where first_site(const held_parameters<First>& first, const Rest&...) noexcept {
    return first.at;
  }

  // The parameters of one part, in its replica groups.
  template <class Model>
  static void list(listed_parameters& found, std::size_t number, Model& model, const mesh& mesh,
                   const store_options& options, where at) {
    const parameter_layers layers(model);
    std::string before;  // the name of the last parameter
    auto stage_here = static_cast<std::size_t>(mesh.layout_coordinate().pipeline);
    model.for_each_parameter([&](const auto& parameter) {
      if (parameter.tied_over_stages()) ++found.shared.listings[parameter.name()];
    });
    const auto add = [&]<class Parameter>(Parameter& parameter) {
      if (const std::string& follows = parameter.spec().follows; !follows.empty() && follows != before)
        throw usage_error("parameter " + printable(parameter.name()) + " follows " + printable(follows) +
                              ", which is not the one before it in for_each_parameter",
                          at);
      before = parameter.name();
      using element = typename Parameter::value_type;
      constexpr bool fits = std::is_same_v<element, value_type>;
      static_assert(fits,
                    "belay: the store's parameters are of another type than its precision: add belay::precision<T>{} "
                    "to the store's arguments");
      using placement_type = typename Parameter::placement_type;
      constexpr axis_set cut = cut_directions<placement_type>();
      constexpr bool is_kept = axis_set{axis::expert, axis::tensor}.has_all(cut);
      static_assert(is_kept,
                    "belay: a store's parameters are cut over the expert axis, the tensor axis or both: what the ranks "
                    "along data keep of them, belay::zero<S> says");
      if (!alike_along_experts<placement_type>(parameter.shape().extents(), mesh.shape(), mesh.layout_coordinate()))
        found.stored.gathers = gather_by::collectives;
      // Of the largest part, so that all ranks say the same where a cut is not even.
      const norm_parts parts =
          norm_parts_of<placement_type>(parameter.shape().extents(), mesh.shape(), mesh.layout_coordinate());
      const std::size_t largest = *std::max_element(parts.elements.begin(), parts.elements.end());
      // Sums of several uses of a rank are added when the step is complete: until then they are whole.
      const bool is_tied = parameter.tied_over_stages();
      const bool has_uses = is_tied && found.shared.listings.at(parameter.name()) > 1;
      const bool is_small =
          largest * sizeof(element) < options.whole_below || has_uses || (is_tied && options.gradients != tier::device);
      const std::size_t replica_group =
          replica_groups_of_part * number + replica_group_of(cut) + (is_small ? first_small_replica_group : 0);
      constexpr bool trained = has_gradient<typename Parameter::learning_type>;
      if constexpr (fits && is_kept) {
        const tensor_box& box = parameter.local_box();
        found.shared.names.add(
            {.name = parameter.name(),
             .trained = trained,
             .uses = is_tied ? parameter.uses() : 0,
             .stage = stage_here,
             .shape = content_hash().add_text(shape_text(parameter.shape().extents())).add_text(box.text()).value(),
             .decay = static_cast<std::uint64_t>(parameter.decay())});
      }
      if constexpr (!fits || !is_kept) {
        return;
      } else if constexpr (!trained) {
        if (has_uses) {
          const auto [first, is_new] = found.shared.frozen.emplace(parameter.name(), found.stored.frozen.size());
          if (!is_new) return found.stored.frozen_uses.push_back({&parameter, first->second});
        }
        found.stored.frozen.push_back({&parameter, replica_group, layers.of(parameter)});
      } else {
        if (is_tied) {
          const auto [first, is_new] = found.shared.trained.emplace(parameter.name(), found.stored.members.size());
          // One that is listed twice is refused like any other.
          if (!is_new && &found.stored.members[first->second].parameter() != &parameter)
            return found.stored.uses.push_back({&parameter, first->second});
        }
        expect_even(parameter, parts.elements[parts.mine], at);
        std::size_t first = placed_by_layout;
        if constexpr (lends_memory<Model>) first = model.first_of(found.stored.members.size());
        found.stored.members.emplace_back(parameter, replica_group, first, layers.of(parameter));
        if (is_tied && (has_uses || mesh.shape().pipeline > 1)) found.stored.members.back().set_uses(1);
        found.places.push_back({found.norm.add(parts.elements, at), parts.mine, parts.share});
      }
    };
    if constexpr (lists_stages<Model>) {
      model.for_each_stage([&](std::size_t stage, auto& part) {
        found.norm.begin_stage(stage_here = stage);
        part.for_each_parameter(add);
      });
    } else {
      model.for_each_parameter(add);
    }
  }
  // Which parameters stages share, and who counts them in the norm: the first of the ranks that have them.
  static void find_ties(listed_parameters& found, const mesh& mesh, where at);
  // Memory for sums of uses, and for what other ranks have of them.
  void lease_ties(const stored_parameters<value_type, gradient_type>& found, where at);
  void compare_ties(where at);
  void compare_along_tensor(where at);
  static void expect_even(const parameter_base<value_type>& parameter, std::size_t elements, where at);

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
  std::size_t gathers_number_ = 0;
  file_shards* file_ = nullptr;  // of what was leased last
  bool compared_plan_ = false;
  std::vector<norm_place> norm_places_;
  shared_parameters shared_;
  std::optional<gradient_norm<value_type>> norm_;  // its memory comes after that of the parameters
  std::optional<reduced_gradients<value_type>> reduced_;  // by the commit that is under way
  double squares_ = 0;                                    // of those
  std::uint64_t unapplied_ = 0;                           // the number of the step whose part was dropped, or 0
  store_update<parameter_store> update_{*this};
  bool compared_ = false;
  bool gathers_compared_ = false;  // in this step
};

template <class Run, class... Parts>
parameter_store(Run&, const mesh&, held_parameters<Parts>...) -> parameter_store<Run>;
template <class Run, class... Parts>
parameter_store(Run&, const mesh&, store_options, held_parameters<Parts>...) -> parameter_store<Run>;
template <class Run, class Model, int Stage>
parameter_store(Run&, const mesh&, Model&, zero<Stage>) -> parameter_store<Run>;
template <class Run, class Model, int Stage>
parameter_store(Run&, const mesh&, Model&, zero<Stage>, store_options) -> parameter_store<Run>;
template <class Run, class Model, int Stage, class... Types>
parameter_store(Run&, const mesh&, Model&, zero<Stage>, precision<Types...>)
    -> parameter_store<Run, precision<Types...>>;
template <class Run, class Model, int Stage, class... Types>
parameter_store(Run&, const mesh&, Model&, zero<Stage>, precision<Types...>, store_options)
    -> parameter_store<Run, precision<Types...>>;

}  // namespace belay::inline BELAY_ABI

#include "belay/train/store.ipp"  // IWYU pragma: export
