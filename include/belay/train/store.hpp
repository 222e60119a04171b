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
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/lease_source.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/parameter_layers.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step/participant.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/store_gradients.hpp"
#include "belay/train/store_options.hpp"  // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// `Run` has the memory (run.hpp), `Mesh` the ranks, `Precision` the element types. It stays where it was made:
/// parameters point to it.
template <class Run, class Mesh, class Precision = precision<>>
class parameter_store {
  static_assert(is_precision<Precision>, "a store's types are a belay::precision<...>");

 public:
  using value_type = typename Precision::parameters;
  using gradient_type = typename Precision::gradients;
  using group_type = typename Mesh::group_type;
  using run_type = Run;
  using kit_type = typename Run::engine_type::kit_type;
  using buckets_type = gradient_buckets<value_type, group_type>;
  using committed_part = store_gradients<parameter_store>;
  friend committed_part;

  /// Gives every parameter of `model` its memory and its first values, except those of `initial::filled()`. A model
  /// that `lends_memory` keeps its own. `run`, `mesh` and `model` outlive the store. Throws usage_error where two
  /// parameters have one name or one is listed twice.
  template <lists_parameters Model, int Stage>
  parameter_store(Run& run, const Mesh& mesh, Model& model, zero<Stage> divided, Precision = {},
                  store_options options = {}, where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at), divided.stage, options, at) {}
  template <lists_parameters Model, int Stage>
  parameter_store(Run& run, const Mesh& mesh, Model& model, zero<Stage> divided, store_options options,
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at), divided.stage, options, at) {}
  /// The same for a stage that is known when the program runs.
  template <lists_parameters Model>
  parameter_store(Run& run, const Mesh& mesh, Model& model, zero_stage divided, store_options options = {},
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at), divided, options, at) {}
  parameter_store(const parameter_store&) = delete;
  parameter_store& operator=(const parameter_store&) = delete;

  /// Writes the first values again, of another seed.
  void fill(std::uint64_t seed, where at = where::current()) {
    for (const auto& write : fillers_) write(seed, at);
  }

  [[nodiscard]] Run& run() const noexcept { return *run_; }
  [[nodiscard]] buckets_type& buckets() noexcept { return buckets_; }
  [[nodiscard]] const buckets_type& buckets() const noexcept { return buckets_; }
  /// The norm of one parameter at the last commit, by its number in model order.
  [[nodiscard]] double norm_of(std::size_t parameter) const noexcept {
    return norm_.of_parameter(norm_places_[parameter].parameter);
  }

  /// Elements that rank `number` of the world owns, of those that this rank's model lists.
  [[nodiscard]] std::size_t owned_elements(int number) const {
    return buckets_.layout().owned_elements(in_families(number));
  }

  /// In a rehearsal: what a body does from here on depends on what its rank owns.
  void ask_shares() const {
    static_cast<void>(mesh_->replicas().rank());
    static_cast<void>(mesh_->data().rank());
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
    for (std::size_t b : trained) all.push_back(buckets_.gathered(b));
    for (std::size_t b : never_trained) all.push_back(frozen_.gathered(b));
    return all.empty() ? whole : gathers_->add_layer(std::move(all));
  }
  void hold(std::uint32_t layer, auto& engine, where at) {
    if (!std::exchange(compared_plan_, true)) expect_one_plan(mesh_->replicas(), gathers_->fingerprint(), at);
    gathers_->hold(layer, engine, at);
    if constexpr (moves_nothing<group_type>)
      for (const gather_phase phase : {gather_phase::step, gather_phase::pass})
        run_->note_gathers(gathers_number_, phase, gathers_->noted(phase));
  }
  void give_back(std::uint32_t layer) noexcept { gathers_->give_back(layer); }
  [[nodiscard]] std::size_t bytes_of(std::uint32_t layer) const noexcept { return gathers_->bytes_of(layer); }
  /// Since `take_gathered` was last called; zeros where no parameters are divided.
  [[nodiscard]] gather_counts gathered(gather_phase in = gather_phase::step) const noexcept {
    return gathers_ ? gathers_->counts(in) : gather_counts{};
  }
  [[nodiscard]] gather_counts take_gathered(gather_phase in = gather_phase::step) noexcept {
    return gathers_ ? gathers_->take_counts(in) : gather_counts{};
  }
  /// Bytes of parameters that are whole now, or on their way.
  [[nodiscard]] std::size_t gathered_bytes() const noexcept { return gathers_ ? gathers_->live_bytes() : 0; }

  // What a step asks of its participants.

  /// Throws usage_error where the last committed step's gradients were neither applied nor discarded.
  void begin(const step_start& start, where at) {
    if (unapplied_ != 0) throw usage_error(unapplied_text(std::exchange(unapplied_, 0)), at);
    if (std::exchange(stepping_, true)) return buckets_.begin_again(start.micro_batches, at);
    if (gathers_) gathers_->retire(at);
    // A store that one rank forgets would be waited for in the comparison of another.
    if (!std::exchange(compared_, true)) expect_agreement(*mesh_, start.participants, at);
    if (gathers_ && !std::exchange(compared_plan_, true))
      expect_one_plan(mesh_->replicas(), gathers_->fingerprint(), at);
    buckets_.begin_unwritten(start.micro_batches, at);
    if (gathers_) gathers_->begin_step(run_->engine(), at);
  }

  /// Reduces and divides. Collective over the families of the parameters and, for the norm, the mesh.
  template <step_divisor Divisor>
  [[nodiscard]] committed_part finish(const Mesh& mesh, const Divisor& divisor, where at) {
    end_gathers(at);
    auto reduced = reduce(mesh, divisor, at);
    double squares = 0;
    if constexpr (!moves_nothing<group_type>) squares = norm_.squares(reduced, mesh.replicas(), mesh.pipeline(), at);
    return committed_part{*this, std::move(reduced), squares};
  }
  template <class Divisor>
  requires(!step_divisor<Divisor>) [[nodiscard]] committed_part finish(const Mesh&, const Divisor&, where) {
    static_assert(is_step_divisor<Divisor>,
                  "belay: a step is divided by belay::samples{n} or belay::target_tokens{n} of the global batch, or by "
                  "belay::local_targets{n} of this rank, which the commit sums");
    std::terminate();
  }

  /// Ends a step that is refused before its gradients were complete: joins the reductions that peers wait in.
  void abandon(const Mesh& mesh, where at) {
    end_gathers(at);
    buckets_.abandon(mesh.replicas(), at);
  }
  void withdraw() noexcept {
    if (gathers_) gathers_->end_step();
    if (std::exchange(stepping_, false)) buckets_.withdraw();
  }
  [[nodiscard]] ballot findings() const noexcept { return {}; }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    return fnv1a().add_text("parameter_store").add(update_).value();
  }
  /// A hash of what an optimizer was last applied with; the next vote compares it.
  void note_update(std::uint64_t arguments) noexcept { update_ = fnv1a(update_).add(arguments).value(); }

 private:
  struct parameters {
    std::vector<bucket_member<value_type>> members;
    std::vector<frozen_member<value_type>> frozen;
    norm_table norm;
    std::vector<norm_place> places;
    std::span<value_type> values;        // borrowed, or empty
    std::span<gradient_type> gradients;  // alike
  };

  [[nodiscard]] static std::string unapplied_text(std::uint64_t step) {
    return "the gradients of step " + std::to_string(step) +
           " were committed, and neither applied nor discarded: optimizer.apply(std::move(*ok), {...}), or "
           "std::move(*ok).discard()";
  }
  // Said by the next step or, in a loop over `run.steps`, before the next number, which is also after the last.
  void note_unapplied(std::uint64_t step) noexcept {
    unapplied_ = step;
    try {
      if (std::uncaught_exceptions() == 0)
        run_->engine().note_refusal(unapplied_text(step), run_->engine().step_site()) = true;
    } catch (...) {  // no memory for the text
    }
  }

  void end_gathers(where at) {
    stepping_ = false;
    if (!gathers_) return;
    gathers_->end_step();
    gathers_->retire(at);
  }
  [[nodiscard]] std::size_t bucket_of(const parameter_base<value_type>& parameter) const noexcept {
    std::size_t p = 0;
    while (&buckets_.parameter(p) != &parameter) ++p;
    return buckets_.bucket_of(p);
  }

  // The numbers of rank `number` of the world in the families.
  [[nodiscard]] std::array<std::size_t, 4> in_families(int number) const {
    const coordinate there = coordinate_of(mesh_->shape(), number);
    const int shard = there.data % mesh_->shape().shards();
    const auto dense_rank = static_cast<std::size_t>(shard * mesh_->shape().expert + there.expert);
    const auto expert_rank = static_cast<std::size_t>(shard);
    return {dense_rank, expert_rank, dense_rank, expert_rank};
  }
  // Memory of values or gradients: of divided ones each rank has its share.
  template <class T>
  [[nodiscard]] std::span<T> lease_of_buckets(const auto& all, std::size_t (bucket_places::*elements)() const noexcept,
                                              const char* purpose, where at) {
    if (!all.places().divided()) return run_->template lease<T>(tier::device, (all.places().*elements)(), purpose, at);
    return run_->template lease_share<T>(
        tier::device, [&](int rank) { return (bucket_places(all.layout(), in_families(rank)).*elements)(); }, purpose,
        at);
  }
  // Dense parameters are replicated over data x expert, those of experts over data.
  enum : std::size_t { dense, of_experts, undivided };  // those of either kind that are too small follow

  parameter_store(Run& run, const Mesh& mesh, parameters found, zero_stage stage, store_options options, where at)
      : run_(&run),
        mesh_(&mesh),
        buckets_(std::move(found.members), families_of(mesh, stage, zero_stage::optimizer_state, options.reduce),
                 options.bucket_bytes, 1, found.norm.unit(), at),
        frozen_(std::move(found.frozen), families_of(mesh, frozen_stage(stage), zero_stage::none, options.reduce),
                options.bucket_bytes, at),
        norm_places_(found.places),
        norm_(found.norm, std::move(found.places),
              run.template lease<double>(tier::host, found.norm.entries(), "gradient norm", at), at) {
    const auto& layout = buckets_.layout();
    run.keep(buckets_.kept_layout());
    std::span<value_type> wire;
    if (const std::size_t count = buckets_.wire_elements(); count > 0)
      wire = run.template lease<value_type>(tier::device, count, "gradients on the wire", at);
    if (!found.values.empty() && stage >= zero_stage::gradients)
      throw usage_error("borrowed memory holds whole values and gradients: ZeRO 2 and 3 divide memory of the run", at);
    if (const std::size_t own = layout.elements(); found.values.size() >= own && !found.values.empty()) {
      const auto reductions =
          run.template lease<gradient_type>(tier::device, layout.gradient_elements() - own, "reductions", at);
      buckets_.bind({found.values.first(own), found.gradients.first(own), reductions, wire}, at);
    } else {
      const auto values = lease_of_buckets<value_type>(buckets_, &bucket_places::value_elements, "parameters", at);
      if (!buckets_.places().divided()) {
        const auto all = run.template lease<gradient_type>(tier::device, layout.gradient_elements(), "gradients", at);
        buckets_.bind({values, all.first(own), all.subspan(own), wire}, at);
      } else {
        const auto gradients =
            lease_of_buckets<gradient_type>(buckets_, &bucket_places::gradient_elements, "gradients", at);
        std::span<gradient_type> reductions;
        if (const std::size_t count = layout.gradient_elements() - own; count > 0)
          reductions = run.template lease<gradient_type>(tier::device, count, "reductions", at);
        buckets_.bind({values, gradients, reductions, wire}, at);
      }
    }
    if (buckets_.divides_gradients()) {
      staging_.emplace(run.step_memory("gradient buckets"));
      buckets_.use(*staging_);
    }
    if (!frozen_.members().empty())
      frozen_.bind(lease_of_buckets<value_type>(frozen_, &bucket_places::value_elements, "frozen parameters", at));
    run.keep(frozen_.kept());
    if (buckets_.divides_values() || frozen_.places().divided()) {
      whole_.emplace(run.step_memory("gathered parameters"));
      gathers_number_ = run.add_gathers();
      gathers_.emplace(*whole_, options.reshard, run.planned_gathers(gathers_number_));
    }
    for (std::size_t p = 0; p < buckets_.parameters(); ++p) add_filler(buckets_.parameter(p));
    for (const auto& one : frozen_.members()) add_filler(*one.parameter);
    fill(options.seed, at);
  }

  template <class Model>
  [[nodiscard]] static parameters listed(Model& model, const Mesh& mesh, std::size_t whole_below, where at) {
    parameters found;
    const parameter_layers layers(model);
    model.for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      using element = typename Parameter::value_type;
      constexpr bool fits = std::is_same_v<element, value_type>;
      static_assert(fits,
                    "belay: the store's parameters are of another type than its precision: add belay::precision<T>{} "
                    "to the store's arguments");
      constexpr bool cut = is_shard_over<typename Parameter::placement_type, axis::expert>;
      const bool is_small = parameter.local_size() * sizeof(element) < whole_below;
      const std::size_t family = (cut ? of_experts : dense) + (is_small ? undivided : dense);
      if constexpr (!fits) {
        return;
      } else if constexpr (!has_gradient<typename Parameter::learning_type>) {
        found.frozen.push_back({&parameter, family, layers.of(parameter)});
      } else {
        const auto ranks = static_cast<std::size_t>(cut ? mesh.shape().expert : 1);
        std::vector<std::size_t> parts;
        for (std::size_t part = 0; part < ranks; ++part) parts.push_back(size_of_part(parameter, ranks, part));
        const auto mine = static_cast<std::size_t>(cut ? mesh.layout_coordinate().expert : 0);
        std::size_t first = placed_by_layout;
        if constexpr (lends_memory<Model>) first = model.first_of(found.members.size());
        found.members.emplace_back(parameter, family, first, layers.of(parameter));
        found.places.push_back({found.norm.add(parts, at), mine});
      }
    });
    if constexpr (lends_memory<Model>) {
      found.values = model.borrowed_values();
      found.gradients = model.borrowed_gradients();
    }
    found.norm.widen(mesh.pipeline(), at);  // the unit of the whole model, whatever part of it is here
    return found;
  }
  [[nodiscard]] static std::size_t size_of_part(const parameter_base<value_type>& parameter, std::size_t parts,
                                                std::size_t part) {
    if (parts == 1) return parameter.global_size();
    const std::size_t extent = parameter.shape()[parameter.cut_dimension()];
    if (extent == 0) return 0;
    return parameter.global_size() / extent * even_part(extent, parts, part).count;
  }

  template <class Parameter>
  void add_filler(Parameter& parameter) {
    if constexpr (!moves_nothing<group_type>) {
      if (parameter.spec().first_values.how() == initial::kind::filled) return;
      fillers_.push_back([&parameter](std::uint64_t seed, where at) { parameter.initialise(seed, at); });
    }
  }

  template <class Divisor>
  [[nodiscard]] reduced_gradients<value_type> reduce(const Mesh& mesh, const Divisor& divisor, where at) {
    if constexpr (std::same_as<Divisor, local_targets>)
      return buckets_.finish(divisor, mesh.replicas(), at);
    else
      return buckets_.finish(target_tokens{divisor.count(), at}, at);
  }

  Run* run_;
  const Mesh* mesh_;
  std::optional<lease_source_of<arena<typename Run::memory_type>>> staging_, whole_;
  buckets_type buckets_;
  frozen_buckets<value_type, group_type> frozen_;
  std::optional<parameter_gathers<value_type, group_type>> gathers_;  // where parameters are divided
  std::size_t gathers_number_ = 0;
  std::vector<norm_place> norm_places_;
  gradient_norm<value_type> norm_;
  std::vector<std::function<void(std::uint64_t, where)>> fillers_;
  std::uint64_t unapplied_ = 0;  // the number of the step whose part was dropped, or 0
  std::uint64_t update_ = 0;
  bool stepping_ = false;
  bool compared_ = false, compared_plan_ = false;
};

template <class Run, class Mesh, class Model, int Stage>
parameter_store(Run&, const Mesh&, Model&, zero<Stage>) -> parameter_store<Run, Mesh>;
template <class Run, class Mesh, class Model, int Stage>
parameter_store(Run&, const Mesh&, Model&, zero<Stage>, store_options) -> parameter_store<Run, Mesh>;
template <class Run, class Mesh, class Model, int Stage, class... Types>
parameter_store(Run&, const Mesh&, Model&, zero<Stage>, precision<Types...>)
    -> parameter_store<Run, Mesh, precision<Types...>>;
template <class Run, class Mesh, class Model, int Stage, class... Types>
parameter_store(Run&, const Mesh&, Model&, zero<Stage>, precision<Types...>, store_options)
    -> parameter_store<Run, Mesh, precision<Types...>>;

}  // namespace belay::inline BELAY_ABI
