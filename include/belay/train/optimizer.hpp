// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// AdamW over what this rank owns: a part of every bucket where the optimizer state is sharded, else all of it. It
// takes a committed step, and gradients that were reduced and divided. A float parameter is its own master copy; of a
// bf16 parameter the state has a master copy in float, which is updated and rounded.
// Updates go chunk by chunk, so that sharding changes no bit. The values of a bucket are gathered while the next
// bucket is updated.
//
//   belay::adamw optimizer{store, {.beta2 = 0.95, .decay = 0.1}};
//   if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3, .clip = 1.0});
//
// Without a store it is made over gradient buckets:
//
//   std::vector<float> state(belay::adamw<float, group>::state_elements(buckets));
//   belay::adamw<float, group> optimizer({.learning_rate = 3e-4}, buckets, state);
//   if (auto* done = committed(outcome)) optimizer.apply(*done, std::move(reduced), belay::clip_factor::none());
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/step/commit.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer/offloaded_state.hpp"
#include "belay/train/optimizer/update.hpp"  // IWYU pragma: export
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// A store's part of a committed step.
template <class Part>
concept committed_store_part = requires(Part& part) {
  typename Part::store_type;
  { part.squares() } -> std::same_as<double>;
};

/// The argument of `apply`: the token of a committed step with gradients, or a store's part of it.
template <class Token>
inline constexpr bool has_committed_gradients = committed_store_part<Token>;
template <class... Participants>
inline constexpr bool has_committed_gradients<committed_gradients<Participants...>> = true;

/// `Kit` computes: the engine's of a store's run, in the order of its stream, or one of its own. `Files` makes the file
/// of state in tier file.
template <class T, class Group, class Kit = host_kit<>, tier_file_calls Files = system_tier_file_calls>
class adamw {
 public:
  using state_type = compute_type_t<T>;
  using visit_state = function_ref<void(const char*, const owned_range<T>&, std::span<state_type>)>;
  using visit_place = function_ref<void(const char*, const owned_range<T>&, std::span<const stored_bytes>)>;

  /// The optimizer of all parameters of `store`, which outlives it; its state is the run's memory, or a file, in the
  /// tier that `memory` names. Throws tier_file_error where the file cannot be made, usage_error for chunks that are
  /// not whole ones of the update (`parameter_chunk`).
  template <class Store>
    requires std::same_as<typename Store::buckets_type, gradient_buckets<T, Group>>
  explicit adamw(Store& store, adamw_settings settings = {}, where at = where::current())
      : adamw(store, settings, optimizer_memory{}, at) {}
  template <class Store>
    requires std::same_as<typename Store::buckets_type, gradient_buckets<T, Group>>
  adamw(Store& store, adamw_settings settings, const optimizer_memory& memory, where at = where::current());

  adamw(adamw&&) noexcept;
  adamw& operator=(adamw&&) noexcept;
  ~adamw();

  /// Updates the owned values with the gradients of a committed step, and gathers them on the ranks that replicate
  /// them, in the order of the engine's stream: the host does not wait. Consumes the token. Collective over the
  /// replica groups of the store's parameters.
  template <class... Participants>
  void apply(committed_gradients<Participants...>&& token, const update& with, where at = where::current()) {
    apply(std::move(token).only_part(), with, at);
  }
  /// Updates the owned values of one of several stores of a step, and gathers them: `apply(ok->part(store), {...})`.
  /// The host does not wait. Consumes the part. Collective over the replica groups of that store's parameters.
  template <class Part>
    requires committed_store_part<std::remove_cvref_t<Part>>
  void apply(Part&& part, const update& with, where at = where::current()) {
    static_assert(std::is_same_v<Part, std::remove_cvref_t<Part>>,
                  "belay: apply consumes the token: apply(std::move(*ok), {...})");
    if (!part.are_of(*buckets_)) refuse_part(at);
    const step_summary summary = part.summary();
    apply_part(summary, with, [&] { return std::move(part).take(); }, at);
  }
  template <class... Participants>
  void apply(const committed_gradients<Participants...>&, const update&, where = where::current()) {
    static_assert(sizeof...(Participants) == 0, "belay: apply consumes the token: apply(std::move(*ok), {...})");
  }

  /// `state` has exactly `state_elements(buckets)` elements, and is zeroed. It and the bound `buckets` outlive this.
  adamw(adamw_settings settings, gradient_buckets<T, Group>& buckets, std::span<state_type> state,
        where at = where::current())
      : adamw(settings, buckets, leased_state{expect_size(state, buckets, at), tier::device}) {}

  /// Elements of state for what this rank owns of the bound buckets: `adamw_state_parts` each.
  [[nodiscard]] static std::size_t state_elements(const gradient_buckets<T, Group>& buckets) noexcept;

  /// Updates the owned values and gathers them on the ranks that replicate them: collective over the buckets' replica
  /// groups. The gradients are scaled by `clip` and consumed. Each committed step is applied once, in order, with the
  /// gradients of the buckets' last reduction; else a usage_error, and nothing was changed.
  void apply(const committed_step& token, reduced_gradients<T>&& gradients, clip_factor clip,
             where at = where::current()) {
    update_owned(token.number(), std::move(gradients), clip, at);
  }

  /// Any other call does not compile, with a sentence about what is missing. It is none of those above however their
  /// arguments are named: it would take an `update&` more exactly than they do.
  template <class Token, class Gradients, class... Rest>
    requires(!(committed_token<Token> && gradients_to_apply<Gradients, T>) &&
             !(has_committed_gradients<std::remove_cvref_t<Token>> && std::convertible_to<Gradients, const update&>))
  void apply(Token&&, Gradients&&, Rest&&...) {
    static_assert(committed_token<Token>,
                  "the optimizer applies committed steps only: apply(*committed(outcome), gradients, clip)");
    static_assert(!committed_token<Token> || gradients_to_apply<Gradients, T>,
                  "the optimizer takes what finish(target_tokens) returned, moved in: std::move(gradients)");
  }

  /// Of this rank.
  [[nodiscard]] std::size_t state_bytes() const noexcept { return state_elements(*buckets_) * sizeof(state_type); }
  /// Where that is.
  [[nodiscard]] tier state_tier() const noexcept { return tier_; }
  /// Steps applied so far.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  /// Goes on after so many, with the state of that step: the correction of the moments depends on them.
  void continue_after(std::uint64_t steps) noexcept { steps_ = steps; }

  /// Calls `visit(part, range, state)` for each part of the state, "first_moment", "second_moment" and, where T is
  /// narrower, "master", of each range that this rank owns: `state` has an element for each of the range. Of state in a
  /// file or on a device a range comes in parts, and goes back as `visit` leaves it. State that a phase has moved
  /// away is back meanwhile. Between steps. Throws tier_file_error where a file cannot be read or written.
  void each_state(visit_state visit, where at = where::current()) const;
  /// Calls `visit(part, range, state)` alike, in any order, for what is written as a whole: what was there is not read.
  /// Between steps. Throws tier_file_error.
  void fill_state(visit_state visit, where at = where::current());
  /// Calls `visit(part, range, places)` once for each part of each range, with a `std::span<const stored_bytes>` where
  /// its state lies. Nothing is read.
  void each_state_place(visit_place visit) const;
  /// `visit(name, value)` for what the optimizer was made with, and the last learning rate.
  template <class Visit>
  void each_setting(Visit&& visit) const {
    visit("learning_rate", settings_.learning_rate);
    visit("beta1", settings_.beta1);
    visit("beta2", settings_.beta2);
    visit("epsilon", settings_.epsilon);
    visit("decay", settings_.decay);
  }
  [[nodiscard]] const adamw_settings& settings() const noexcept { return settings_; }
  void set_learning_rate(double rate) noexcept { settings_.learning_rate = rate; }

 private:
  using offloaded_type = offloaded_state<T, Files, adamw_state_parts<T>>;
  // On a device they are in its memory.
  using scalars_type = std::conditional_t<works_on_device<Group>, kernel::adamw_scalars_in<state_type>,
                                          kernel::adamw_scalars<state_type>>;
  using offloaded_scalars = adamw_step<state_type, scalars_type>;
  // The host's loop has a chunk at a time, which its cache keeps. A launch costs a device more than a chunk does: it
  // has a range at once.
  static constexpr std::size_t at_once = works_on_device<Group> ? static_cast<std::size_t>(-1) : parameter_chunk;
  struct leased_state {
    std::span<state_type> memory;
    tier where_it_is;
  };

  adamw(const adamw_settings& settings, gradient_buckets<T, Group>& buckets, const leased_state& state);
  [[nodiscard]] static std::span<state_type> expect_size(std::span<state_type> state,
                                                         const gradient_buckets<T, Group>& buckets, where at);

  [[nodiscard]] bool shards_in_file() const noexcept;
  // State in a file has none of the run's memory.
  template <class Store>
  [[nodiscard]] static leased_state lease_state(Store& store, const optimizer_memory& memory, where at);
  template <class Store>
  void offload(Store& store, const optimizer_memory& memory, where at);

  // State on the device may be away.
  [[nodiscard]] residency_hold hold(where at) const {
    return tier_ == tier::device ? residency_hold(buckets_->updates(), at) : residency_hold();
  }
  // Of memory that the host does not address it gets one piece after the other.
  void visit_pieces(visit_state visit, where at) const;
  void visit_parts(visit_state visit, where at) const;

  [[noreturn]] static void refuse_part(where at);
  // `take` is called when nothing else can be wrong with the call.
  void apply_part(const step_summary& summary, const update& with, function_ref<reduced_gradients<T>()> take, where at);
  [[nodiscard]] static std::uint64_t bits_of(double value) noexcept { return std::bit_cast<std::uint64_t>(value); }

  void update_owned(std::uint64_t number, reduced_gradients<T>&& gradients, clip_factor clip, where at);

  adamw_settings settings_;
  gradient_buckets<T, Group>* buckets_;
  std::span<state_type> state_;
  tier tier_;
  std::unique_ptr<Kit> own_kit_;  // where there is no engine
  Kit* kit_ = nullptr;
  const host_access* access_ = nullptr;  // to state on the device
  std::uint64_t steps_ = 0;
  std::uint64_t last_token_ = 0;
  update_numbers<state_type> numbers_;
  const range_table* table_ = nullptr;  // of a store on a device
  std::shared_ptr<offloaded_type> offloaded_;
  std::function<void(adamw&, const offloaded_scalars&, where)> update_offloaded_;
};

template <class Store>
adamw(Store&) -> adamw<typename Store::value_type, typename Store::group_type, typename Store::kit_type>;
template <class Store>
adamw(Store&, adamw_settings)
    -> adamw<typename Store::value_type, typename Store::group_type, typename Store::kit_type>;
template <class Store>
adamw(Store&, adamw_settings, optimizer_memory)
    -> adamw<typename Store::value_type, typename Store::group_type, typename Store::kit_type>;
template <class T, class Group>
adamw(adamw_settings, gradient_buckets<T, Group>&, std::span<compute_type_t<T>>) -> adamw<T, Group>;

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::each_state(visit_state visit, where at) const {
  residency_hold here = hold(at);
  visit_pieces(visit, at);
  here.end(at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::fill_state(visit_state visit, where at) {
  if (!offloaded_ || !offloaded_->in_file()) return each_state(visit, at);
  residency_hold here = hold(at);
  offloaded_->fill_state(visit, at);
  here.end(at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::each_state_place(visit_place visit) const {
  if (offloaded_ && offloaded_->in_file()) return offloaded_->each_place(visit);
  const auto visit_part = [&](const char* part, const owned_range<T>& range, std::span<state_type> state) {
    const stored_bytes place(std::as_bytes(state), access_);
    visit(part, range, std::span<const stored_bytes>(&place, 1));
  };
  visit_parts(visit_part, where::current());
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::visit_pieces(visit_state visit, where at) const {
  if (access_ == nullptr) return visit_parts(visit, at);
  const auto visit_part = [&](const char* part, const owned_range<T>& range, std::span<state_type> state) {
    access_->change(
        state,
        [&](std::size_t first, std::span<state_type> piece) {
          owned_range<T> some = range;
          some.offset += first;
          some.count = piece.size();
          visit(part, some, piece);
        },
        at);
  };
  visit_parts(visit_part, at);
}

template <class T, class Group, class Kit, tier_file_calls Files>
void adamw<T, Group, Kit, Files>::visit_parts(visit_state visit, where at) const {
  if (offloaded_) return offloaded_->each_state(visit, at);
  const std::size_t part = state_.size() / adamw_state_parts<T>;
  std::size_t done = 0;
  for (const owned_range<T>& range : buckets_->owned()) {
    visit("first_moment", range, state_.subspan(done, range.count));
    visit("second_moment", range, state_.subspan(part + done, range.count));
    if constexpr (rounds_gradients<T>) visit("master", range, state_.subspan(2 * part + done, range.count));
    done += range.count;
  }
}

}  // namespace belay::inline BELAY_ABI

#include "belay/train/optimizer.ipp"  // IWYU pragma: export
