// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What takes part in a step: a store of parameters, an expert exchange, a class of one's own. The step begins it,
// finishes it in its commit, and asks for its findings, so that none of these can be forgotten. All ranks name the same
// participants in the same order; the vote compares it.
//
//   class counted_dropout final : public belay::participant {   // one of a program's own, without gradients
//    public:
//     void begin(const belay::step_start&, belay::where) override { dropped = 0; }
//     std::uint64_t fingerprint() const override { return 17; }
//     std::size_t dropped = 0;
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/step/commit.hpp"

namespace belay::inline BELAY_ABI {

/// The start of a step, as its participants are told of it.
struct step_start {
  /// Micro-batches of the step on this rank.
  std::size_t micro_batches = 1;
  std::uint64_t participants = 0;  // a hash of all participants of the step and their order
};

/// Whether a rank ends a step in its commit as all do, or gives it up.
enum class order_of_step : std::uint8_t { executed, abandoned };

/// By what gradients are divided, once: samples or target tokens of the whole batch, equal on all ranks, or what this
/// rank counted of it.
struct divisor_value {
  /// Of which batch the count is: of the whole one, or of this rank's part.
  enum class counted : std::uint8_t { on_all_ranks, on_this_rank };
  std::size_t count = 0;                        // samples or target tokens
  counted where_it_is = counted::on_all_ranks;  // and of what batch
};

/// A divisor of gradients.
template <class D>
concept step_divisor = requires(const D& divisor) {
  { divisor.value() } -> std::same_as<divisor_value>;
};
/// Whether a step can be divided by it, as a value, for a message without the list of what is missing.
template <class D>
inline constexpr bool is_step_divisor = step_divisor<D>;

/// The base of all that takes part in steps. A step calls it, and it outlives the step; it stays where it is meanwhile.
class participant {
 public:
  using committed_part = no_committed_part;

  participant() = default;
  participant(const participant&) = default;
  participant& operator=(const participant&) = default;
  virtual ~participant() = default;

  /// A step begins; called again, before the first forward, where the step says another number of micro-batches.
  virtual void begin(const step_start& start, where at) = 0;
  /// A word that is equal on all ranks, hashed with its place in the order of participants; the vote compares it.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

  /// In a commit, on all ranks: may be collective. What is reduced is kept until it is taken or discarded.
  virtual void finish(const divisor_value& /*divisor*/, where /*at*/) {}
  /// Instead of `finish`, in a commit that all ranks refuse before gradients are complete, since one has lost handles:
  /// may be collective.
  virtual void abandon(where /*at*/) { withdraw(); }
  /// The step ends without commit. Nothing waits for peers.
  virtual void withdraw() noexcept {}
  /// After all are finished, for the vote.
  [[nodiscard]] virtual ballot findings() { return {}; }

  /// Room for so many rows, before `begin`, in a step that is replayed.
  virtual void make_room(std::size_t /*rows*/, where /*at*/) {}
  /// The vote of all ranks.
  virtual void learn(const ballot& /*all*/) {}
  /// First in a commit, before that waits for the device: throws usage_error on all ranks where they have not queued
  /// the same.
  virtual void compare(order_of_step /*own*/, where /*at*/) {}

  /// The gradients that were finished: the sum of squares over all ranks, and the number by which they are divided.
  struct reduced_sums {
    double squares = 0;         // over all ranks and parameters
    std::uint64_t divisor = 0;  // 0 where the participant divides nothing
    bool reduces = false;       // whether the participant has gradients at all
  };
  [[nodiscard]] virtual reduced_sums reduced() const { return {}; }
  /// Where gradients that were finished are not finite, to be appended to a line; empty where they are.
  [[nodiscard]] virtual std::string not_finite() const { return {}; }
  /// Calls `see(norm)` for each that is not finite.
  virtual void each_not_finite(function_ref<void(double)> /*see*/) const {}
  /// Drops gradients that were finished: they will not be applied.
  virtual void discard_part() noexcept {}
  /// Gives what was finished to the token of a committed step.
  [[nodiscard]] no_committed_part take_part() noexcept { return {}; }
};

/// The ranks of a step, as its commit asks them. A step itself knows none.
class step_ranks {
 public:
  /// Throws usage_error on all ranks where their participants differ, or what their libraries have `chosen` for the
  /// same problem; null: of a rank whose kit has none that choose. Returns how all end the step: abandoned, where a
  /// rank's `own` order says so, before any waits for another in what only the rest would take part in.
  [[nodiscard]] virtual order_of_step expect_same(std::uint64_t participants, kit_choices* chosen, order_of_step own,
                                                  where at) const = 0;
  /// The sum of the ballots. Throws usage_error on all ranks where their divisors differ.
  [[nodiscard]] virtual ballot vote(const ballot& own, std::uint64_t divisor, where at) const = 0;

 protected:
  ~step_ranks() = default;
};

/// A class that takes part in steps: it derives from `participant`.
template <class P>
concept step_participant = std::derived_from<P, participant> && requires(P& one) {
  { one.take_part() } -> std::same_as<typename P::committed_part>;
};

/// Whether a class is a participant of a step, as a value, for a message without the list of what is missing.
template <class P>
inline constexpr bool is_step_participant = step_participant<P>;

/// An engine with the place where it was named, which stands for the step's.
template <class Engine>
struct engine_here {
  /// An engine with the site that named it.
  engine_here(Engine& named, where site = where::current()) noexcept : engine(&named), at(site) {}
  Engine* engine;
  where at;
};

}  // namespace belay::inline BELAY_ABI
