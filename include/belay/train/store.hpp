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
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/participant.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/norm_table.hpp"
#include "belay/train/store_gradients.hpp"
#include "belay/train/store_memory.hpp"
#include "belay/train/store_options.hpp"  // IWYU pragma: export
#include "belay/train/store_update.hpp"

namespace belay::inline BELAY_ABI {

/// `Run` has the memory (run.hpp), `Precision` the element types. It stays where it was made:
/// parameters point to it.
template <class Run, class Precision = precision<>>
class parameter_store final : public participant, public store_memory<Run, Precision> {
  using memory = store_memory<Run, Precision>;
  using memory::buckets_, memory::frozen_, memory::gathers_, memory::mesh_, memory::run_;

 public:
  using typename memory::buckets_type, typename memory::gradient_type, typename memory::group_type,
      typename memory::value_type;
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
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at),
                        {stage_in(divided.stage, tier::device, options, at)}, options, at) {}
  template <lists_parameters Model, int Stage>
  parameter_store(Run& run, const mesh& mesh, Model& model, zero<Stage> divided, store_options options,
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at),
                        {stage_in(divided.stage, tier::device, options, at)}, options, at) {}
  /// Gives every parameter of `model` its memory and its first values, except those of `initial::filled()`, with a
  /// stage that is known when the program runs. A model that `lends_memory` keeps its own. `run`, `mesh` and `model`
  /// outlive the store. Throws usage_error where two parameters have one name, on one stage of a pipeline or, if it is
  /// trained, on two, or one is listed twice.
  template <lists_parameters Model>
  parameter_store(Run& run, const mesh& mesh, Model& model, zero_stage divided, store_options options = {},
                  where at = where::current())
      : parameter_store(run, mesh, listed(model, mesh, options.whole_below, at),
                        {stage_in(divided, tier::device, options, at)}, options, at) {}
  /// Of several parts, each with a stage of its own; the model's order is theirs.
  template <lists_parameters... Parts>
    requires(sizeof...(Parts) > 0)
  parameter_store(Run& run, const mesh& mesh, store_options options, held_parameters<Parts>... parts)
      : parameter_store(run, mesh, listed(mesh, options.whole_below, parts...),
                        {stage_in(parts.stage, parts.values, options, parts.at)...}, options, first_site(parts...)) {}
  template <lists_parameters... Parts>
    requires(sizeof...(Parts) > 0)
  parameter_store(Run& run, const mesh& mesh, held_parameters<Parts>... parts)
      : parameter_store(run, mesh, store_options{}, parts...) {}
  parameter_store(const parameter_store&) = delete;
  parameter_store& operator=(const parameter_store&) = delete;
  ~parameter_store() override;

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

 private:
  struct listed_parameters {
    stored_parameters<value_type, gradient_type> stored;
    norm_table norm;
    std::vector<norm_place> places;
  };

  [[nodiscard]] static std::string unapplied_text(std::uint64_t step);
  // Said by the next step or, in a loop over `run.steps`, before the next number, which is also after the last.
  void note_unapplied(std::uint64_t step) noexcept;

  void end_gathers(order_of_step own, where at);
  parameter_store(Run& run, const mesh& mesh, listed_parameters found, std::vector<held_stage> stages,
                  store_options options, where at);
  void write_first_values(std::uint64_t seed, where at);

  template <class Model>
  [[nodiscard]] static listed_parameters listed(Model& model, const mesh& mesh, std::size_t whole_below, where at) {
    listed_parameters found;
    list(found, 0, model, mesh, whole_below, at);
    if constexpr (lends_memory<Model>) {
      found.stored.values = model.borrowed_values();
      found.stored.gradients = model.borrowed_gradients();
    }
    found.norm.widen(mesh.pipeline(), at);  // the unit of the whole model, whatever part of it is here
    return found;
  }
  template <class... Parts>
  [[nodiscard]] static listed_parameters listed(const mesh& mesh, std::size_t whole_below,
                                                const held_parameters<Parts>&... parts) {
    listed_parameters found;
    std::size_t number = 0;
    (list(found, number++, *parts.part, mesh, whole_below, parts.at), ...);
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
                   std::size_t whole_below, where at) {
    const parameter_layers layers(model);
    model.for_each_parameter([&]<class Parameter>(Parameter& parameter) {
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
      const bool is_small = largest * sizeof(element) < whole_below;
      const std::size_t replica_group =
          replica_groups_of_part * number + replica_group_of(cut) + (is_small ? first_small_replica_group : 0);
      if constexpr (!fits || !is_kept) {
        return;
      } else if constexpr (!has_gradient<typename Parameter::learning_type>) {
        found.stored.frozen.push_back({&parameter, replica_group, layers.of(parameter)});
      } else {
        expect_even(parameter, parts.elements[parts.mine], at);
        std::size_t first = placed_by_layout;
        if constexpr (lends_memory<Model>) first = model.first_of(found.stored.members.size());
        found.stored.members.emplace_back(parameter, replica_group, first, layers.of(parameter));
        found.places.push_back({found.norm.add(parts.elements, at), parts.mine, parts.share});
      }
    });
  }
  void expect_names_apart(where at) const;
  void compare_along_tensor(where at);
  static void expect_even(const parameter_base<value_type>& parameter, std::size_t elements, where at);

  std::vector<norm_place> norm_places_;
  gradient_norm<value_type> norm_;
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
