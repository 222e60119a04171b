// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What takes part in a step: a store of parameters, an expert exchange, a class of one's own. The step begins it,
// finishes it in its commit, and asks for its findings, so that none of these can be forgotten. All ranks name the same
// participants in the same order; the vote compares it.
//
//   struct counted_dropout {                        // a participant of one's own, without gradients
//     using committed_part = belay::no_committed_part;
//     void begin(const belay::step_start&, belay::where) { dropped = 0; }
//     template <class Mesh, class Divisor>
//     belay::no_committed_part finish(const Mesh&, Divisor, belay::where) { return {}; }
//     template <class Mesh>
//     void abandon(const Mesh&, belay::where) {}
//     void withdraw() noexcept {}
//     belay::ballot findings() { return {}; }
//     std::uint64_t fingerprint() const { return 17; }
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
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

/// `begin(start)`: a step begins; called again, before the first forward, where the step says another number of
/// micro-batches. `findings()`: after the last backward, for the vote. `withdraw()`: the step ends without commit, and
/// nothing waits for peers. `fingerprint()`: equal on all ranks. `finish(mesh, divisor, at)` and `abandon(mesh, at)`,
/// which are templates, end a step in its commit: the first gives the participant's part of the token, the second joins
/// the collectives that peers wait in. A participant whose room can overflow has `make_room(rows, at)`, which is called
/// before `begin` once a step was replayed. One that wants to know the vote has `learn(ballot)`, which gets that of all
/// ranks. One whose ranks have queued work that waits for each other's has `compare(order_of_step, at)`, which a commit
/// calls before it waits for that: it throws on all ranks where this was not the same work.
template <class P>
concept step_participant = requires(P& participant, const P& same, const step_start& start, where at) {
  typename P::committed_part;
  participant.begin(start, at);
  participant.withdraw();
  { participant.findings() } -> std::convertible_to<ballot>;
  { same.fingerprint() } -> std::convertible_to<std::uint64_t>;
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
