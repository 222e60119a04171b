// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a step ends. All ranks reduce their findings to one small ballot, and every rank draws the same conclusion from
// it: the step is committed, must be replayed with more room, or is refused. An optimizer takes only the token of a
// committed step, and only `step::commit` makes one.
//
//   auto outcome = std::move(step).commit(belay::world_vote{mesh.control()});
//   if (const auto* again = replay(outcome)) grow(again->needed_rows);
//   if (const auto* why = refused(outcome)) std::puts(text(*why).c_str());
//   if (auto* done = committed(outcome)) optimizer.apply(*done, std::move(gradients), clip);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// One rank's findings. Over ranks they are summed, except `needed_rows`, of which the maximum counts.
struct ballot {
  std::uint64_t open_obligations = 0;
  std::uint64_t misused_handles = 0;
  std::uint64_t non_finite = 0;   // gradients that are not finite
  std::uint64_t needed_rows = 0;  // rows that a rank was to receive in one dispatch; 0 without overflow
};

/// Proof that a step was committed on all ranks. Move-only, made by `step::commit` alone.
class committed_step {
 public:
  committed_step(committed_step&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  committed_step& operator=(committed_step&& other) noexcept {
    number_ = std::exchange(other.number_, 0);
    return *this;
  }
  ~committed_step() = default;

  /// The engine's step number, from 1.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  template <class Engine>
  friend class step;
  friend class step_outcome;
  explicit committed_step(std::uint64_t number) noexcept : number_(number) {}
  std::uint64_t number_;
};

/// A dispatch overflowed: run the step again, from the same inputs, with room for `needed_rows`.
struct replay_step {
  std::uint64_t needed_rows = 0;
};

/// The step must not be applied; `findings` are those of all ranks, `list` names this rank's open obligations.
struct refused_step {
  ballot findings;
  std::string list;
};

/// One of the three; `committed`, `replay` and `refused` return a pointer to it or null. Move-only, like the token.
class step_outcome {
 public:
  step_outcome(committed_step done) noexcept : end_(end::committed), committed_(std::move(done)) {}
  step_outcome(replay_step again) noexcept : end_(end::replay), replay_(again) {}
  step_outcome(refused_step why) noexcept : end_(end::refused), refused_(std::move(why)) {}

  /// The token of a committed step, or null.
  [[nodiscard]] friend committed_step* committed(step_outcome& outcome) noexcept {
    return outcome.end_ == end::committed ? &outcome.committed_ : nullptr;
  }
  [[nodiscard]] friend const replay_step* replay(const step_outcome& outcome) noexcept {
    return outcome.end_ == end::replay ? &outcome.replay_ : nullptr;
  }
  [[nodiscard]] friend const refused_step* refused(const step_outcome& outcome) noexcept {
    return outcome.end_ == end::refused ? &outcome.refused_ : nullptr;
  }

 private:
  enum class end : std::uint8_t { committed, replay, refused };
  end end_;
  committed_step committed_{0};
  replay_step replay_;
  refused_step refused_;
};

[[nodiscard]] committed_step* committed(step_outcome& outcome) noexcept;
[[nodiscard]] const replay_step* replay(const step_outcome& outcome) noexcept;
[[nodiscard]] const refused_step* refused(const step_outcome& outcome) noexcept;

/// Why a step was refused, in one line.
[[nodiscard]] inline std::string text(const refused_step& outcome) {
  std::string out = "step refused:";
  const auto say = [&](std::uint64_t count, const char* one, const char* several) {
    if (count == 0) return;
    out += out.back() == ':' ? " " : ", ";
    out += std::to_string(count) + (count == 1 ? one : several);
  };
  say(outcome.findings.open_obligations, " open obligation", " open obligations");
  say(outcome.findings.misused_handles, " handle used twice", " handles used twice");
  if (outcome.findings.non_finite > 0) out += std::string(out.back() == ':' ? " " : ", ") + "gradients are not finite";
  return outcome.list.empty() ? out : out + "\n" + outcome.list;
}

}  // namespace belay::inline BELAY_ABI
