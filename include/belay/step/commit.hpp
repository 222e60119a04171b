// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a step ends. All ranks reduce their findings to one small ballot, and every rank draws the same conclusion from
// it: the step is committed, must be replayed with more room, or is refused. An optimizer takes only the token of a
// committed step, and only `step::commit` makes one. Where the step had participants, their reduced gradients are in
// the token.
//
//   auto outcome = std::move(step).commit(mesh, belay::samples{64});
//   if (const auto* again = replay(outcome)) grow(again->needed_rows);
//   if (const auto* why = refused(outcome)) std::puts(text(*why).c_str());
//   if (auto* done = committed(outcome)) optimizer.apply(std::move(*done), {.learning_rate = 1e-3});
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// One rank's findings. Over ranks they are summed, except `needed_rows`, of which the maximum counts.
struct ballot {
  /// Handles that still owe, handles that were used wrongly, and what losses add up to.
  std::uint64_t open_obligations = 0;
  std::uint64_t misused_handles = 0;
  std::uint64_t non_finite = 0;   // gradients that are not finite
  std::uint64_t needed_rows = 0;  // rows that a rank was to receive in one dispatch; 0 without overflow
  double loss = 0;
  // Of a run's checkpoints (train/checkpoint.hpp): nothing is refused for them.
  std::uint64_t unwritten = 0;   // ranks whose files are not on their medium yet
  std::uint64_t unwritable = 0;  // ranks whose files could not be written
  /// Ranks that were asked to end.
  std::uint64_t asked_to_stop = 0;
};

/// The divisor of a rank that has none: it agrees with every other.
inline constexpr std::uint64_t no_divisor = ~std::uint64_t{0};

/// How a step ended.
enum class end_of_step : std::uint8_t { cut_off, committed, replay, refused };

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
  template <class Engine, class... Participants>
  friend class step;
  template <class Token>
  friend class basic_step_outcome;
  explicit committed_step(std::uint64_t number) noexcept : number_(number) {}
  std::uint64_t number_;
};

/// A dispatch overflowed: run the step again, from the same inputs, with room for `needed_rows`.
struct replay_step {
  /// Rows a dispatch that the next try has room for.
  std::uint64_t needed_rows = 0;
};

/// The step must not be applied; `findings` are those of all ranks, `list` names this rank's open obligations.
struct refused_step {
  /// Findings of all ranks; open obligations of this one, one a line.
  ballot findings;
  std::string list;
};

/// The results of a step, the same on all ranks.
struct step_summary {
  std::uint64_t number = 0;   // of the engine's steps, from 1
  double loss = 0;            // summed over all ranks
  double norm = 0;            // of all gradients, after the division
  std::uint64_t divisor = 0;  // samples or target tokens of the global batch

  /// The loss of one sample or token.
  [[nodiscard]] double mean_loss() const noexcept { return divisor == 0 ? 0.0 : loss / static_cast<double>(divisor); }
};

/// The part that `Participant` gives to a committed step: its reduced gradients.
template <class Participant>
using committed_part = typename Participant::committed_part;

/// Proof that a step was committed on all ranks, with the reduced gradients of its participants. An optimizer consumes
/// it. A part that is neither applied nor discarded is named when its participant begins the next step.
template <class... Participants>
class committed_gradients {
 public:
  committed_gradients(committed_gradients&&) noexcept = default;
  committed_gradients& operator=(committed_gradients&&) = delete;

  /// The number of the step, and what it reduced.
  [[nodiscard]] std::uint64_t number() const noexcept { return summary_.number; }
  [[nodiscard]] const step_summary& summary() const noexcept { return summary_; }
  /// The norm of all gradients of the step, every parameter counted once.
  [[nodiscard]] double norm() const noexcept { return summary_.norm; }

  /// The part of one participant, to be moved to its optimizer: `optimizer.apply(ok->part(store), {...})`. Throws
  /// usage_error for one that was not in the step.
  template <class Participant>
  [[nodiscard]] committed_part<Participant>&& part(const Participant& of, where at = where::current()) && {
    return std::move(find(of, at));
  }
  template <class Participant>
  [[nodiscard]] committed_part<Participant>&& part(const Participant& of, where at = where::current()) & {
    return std::move(find(of, at));
  }

  /// The only part that has gradients.
  [[nodiscard]] auto&& only_part() && {
    constexpr std::size_t place = only_place();
    return std::move(std::get<place>(parts_));
  }
  /// The ranges of reduced gradients that this rank owns, to look at. An optimizer of one's own changes the values in
  /// `store.update(std::move(*ok), f)`, which gathers them on the ranks that replicate them.
  [[nodiscard]] auto gradients() const noexcept {
    constexpr std::size_t place = only_place();
    return std::get<place>(parts_).owned();
  }

  /// The gradients will not be applied.
  void discard() && noexcept {
    std::apply([](auto&... part) { (part.discard(), ...); }, parts_);
  }

 private:
  template <class Engine, class... Others>
  friend class step;
  template <class Token>
  friend class basic_step_outcome;

  committed_gradients(const step_summary& summary, std::tuple<committed_part<Participants>...>&& parts) noexcept
      : summary_(summary), parts_(std::move(parts)) {
    std::apply([&](auto&... part) { (part.note(summary_), ...); }, parts_);
  }

  [[nodiscard]] static consteval std::size_t count_of_stores() {
    return (std::size_t{0} + ... + (committed_part<Participants>::reduces ? 1U : 0U));
  }
  [[nodiscard]] static consteval std::size_t only_place() {
    static_assert(count_of_stores() == 1,
                  "belay: the step has no store, or several: take the part of each, as in apply(ok->part(store), ...)");
    constexpr std::array<bool, sizeof...(Participants)> reduces{committed_part<Participants>::reduces...};
    std::size_t place = 0;
    while (!reduces[place]) ++place;
    return place;
  }

  template <class Participant>
  [[nodiscard]] committed_part<Participant>& find(const Participant& of, where at) {
    committed_part<Participant>* found = nullptr;
    std::apply(
        [&](auto&... part) {
          const auto look = [&](auto& one) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(one)>, committed_part<Participant>>)
              if (one.is_of(of)) found = &one;
          };
          (look(part), ...);
        },
        parts_);
    if (found == nullptr)
      throw usage_error(
          "the part of a store that was not among the participants of step " + std::to_string(summary_.number), at);
    return *found;
  }

  step_summary summary_;
  std::tuple<committed_part<Participants>...> parts_;
};

/// The part of a participant that has no gradients.
struct no_committed_part {
  /// Of a participant that reduces nothing.
  static constexpr bool reduces = false;
  void note(const step_summary&) noexcept {}
  void discard() noexcept {}
  template <class Participant>
  [[nodiscard]] bool is_of(const Participant&) const noexcept {
    return false;
  }
};

/// One of the three; `committed`, `replay` and `refused` return a pointer to it or null. Move-only, like the token.
template <class Token>
class basic_step_outcome {
 public:
  /// How the step ended.
  basic_step_outcome(Token done) noexcept : end_(end::committed), committed_(std::move(done)) {}
  basic_step_outcome(replay_step again) noexcept : end_(end::replay), replay_(again) {}
  basic_step_outcome(refused_step why) noexcept : end_(end::refused), refused_(std::move(why)) {}
  /// The step was refused; `unread`, which outlives the outcome, is true until `refused` returns why.
  basic_step_outcome(refused_step why, bool& unread) noexcept : basic_step_outcome(std::move(why)) {
    unread_ = &unread;
    unread = true;
  }

  template <class T>
  friend T* committed(basic_step_outcome<T>& outcome) noexcept;
  template <class T>
  friend const replay_step* replay(const basic_step_outcome<T>& outcome) noexcept;
  template <class T>
  friend const refused_step* refused(const basic_step_outcome<T>& outcome) noexcept;

 private:
  enum class end : std::uint8_t { committed, replay, refused };
  end end_;
  std::optional<Token> committed_;
  replay_step replay_;
  refused_step refused_;
  bool* unread_ = nullptr;
};

/// The outcome of a step without participants.
using step_outcome = basic_step_outcome<committed_step>;

/// The token of a committed step, or null.
template <class Token>
[[nodiscard]] Token* committed(basic_step_outcome<Token>& outcome) noexcept {
  using end = typename basic_step_outcome<Token>::end;
  return outcome.end_ == end::committed ? &*outcome.committed_ : nullptr;
}
/// The rows to make room for in a replay, or null where the step ended otherwise.
template <class Token>
[[nodiscard]] const replay_step* replay(const basic_step_outcome<Token>& outcome) noexcept {
  using end = typename basic_step_outcome<Token>::end;
  return outcome.end_ == end::replay ? &outcome.replay_ : nullptr;
}
/// Why the step was refused, or null. A loop over `run.steps` throws a refusal that nobody asked for.
template <class Token>
[[nodiscard]] const refused_step* refused(const basic_step_outcome<Token>& outcome) noexcept {
  using end = typename basic_step_outcome<Token>::end;
  if (outcome.end_ != end::refused) return nullptr;
  if (outcome.unread_ != nullptr) *outcome.unread_ = false;
  return &outcome.refused_;
}

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
