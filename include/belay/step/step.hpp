// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A step owns all that is opened in it: activations, obligations, scratch memory. It ends in exactly one of three
// ways: committed, to be replayed, or refused. Its memory is free again afterwards in all of them.
//
//   belay::step step{engine, store};            // everything that takes part is named here
//   auto hidden = belay::forward(step, first, x);
//   auto out = belay::forward(step, second, hidden.out());
//   auto grad = std::move(out).backward(dout);  // the last forward first
//   grad = std::move(hidden).backward(grad);
//   auto outcome = std::move(step).commit(mesh, belay::samples{n});
//   if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/hash.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/participant.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/tape.hpp"

namespace belay::inline BELAY_ABI {

/// One micro-batch of a step: the scope of a `forward` where a step has several.
template <class Engine>
class micro_batch_scope {
 public:
  /// One micro-batch of a step: where forwards of it go, and its number.
  micro_batch_scope(Engine& engine, std::size_t index) noexcept : engine_(&engine), index_(index) {}
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return index_; }

 private:
  Engine* engine_;
  std::size_t index_;
};

/// Where a forward can be run: a step, which is its micro-batch 0, or one of its micro-batches.
template <class S>
concept step_scope = requires(const S& scope) {
  scope.engine().obligations();
  { scope.micro_batch() } -> std::convertible_to<std::size_t>;
};

/// A mesh over which a step can be committed: the room that knows ranks votes over it. Where participants differ,
/// `expect_agreement(mesh, participants, at)` throws usage_error on all ranks. `vote_over(mesh, ballot, divisor, at)`
/// returns the sum of the ballots, and throws usage_error on all ranks where their divisors differ.
template <class Mesh>
concept votes = requires(const Mesh& mesh, const ballot& own, std::uint64_t word, where at) {
  expect_agreement(mesh, word, at);
  { vote_over(mesh, own, word, at) } -> std::same_as<ballot>;
};

template <class Engine, class... Participants>
class [[nodiscard]] BELAY_OBLIGATION step {
  static_assert((is_step_participant<Participants> && ...),
                "belay: a step is made of an engine and of what takes part in it: parameter_store, expert_exchange, or "
                "a class with begin, finish, abandon, withdraw, findings and fingerprint");

 public:
  using engine_type = Engine;
  using token_type = committed_gradients<Participants...>;
  using outcome_type = basic_step_outcome<token_type>;

  /// Begins a step of one micro-batch, and all `participants`, which outlive it. Throws usage_error while another step
  /// of the engine is open.
  BELAY_OPENS explicit step(engine_here<Engine> engine, Participants&... participants)
      : engine_(engine.engine), at_(engine.at), participants_(participants...) {
    engine_->begin_step(at_);
    try {
      const step_start start{1, order()};
      each([&](auto& participant) {
        if constexpr (requires { participant.make_room(std::size_t{}, at_); })
          if (engine_->room() != 0) participant.make_room(static_cast<std::size_t>(engine_->room()), at_);
        participant.begin(start, at_);
      });
    } catch (...) {
      cut_off();
      throw;
    }
  }
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// A step is an obligation itself: it is committed, or cut off. One that is neither is named, by Clang where it sees
  /// it; its memory is released, and the handles that were lost in it are printed. One that an exception ends is cut
  /// off: what it left open is the exception's doing.
  BELAY_IF_DISCHARGED ~step() {
    if (ended_) return;
    if (std::uncaught_exceptions() == 0) report_abandoned();
    cut_off();
  }

  /// The step has `count` (0 or more) micro-batches on this rank. Before its first forward.
  void micro_batches(std::size_t count, where at = where::current()) const {
    const step_start start{count, order()};
    each([&](auto& participant) { participant.begin(start, at); });
  }

  /// The engine; forwards without a micro-batch are of number 0, others of `micro_batch(i)`.
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] static constexpr std::size_t micro_batch() noexcept { return 0; }
  [[nodiscard]] micro_batch_scope<Engine> micro_batch(std::size_t index) const noexcept { return {*engine_, index}; }

  /// Findings of this rank for the vote: overflow and non-finite gradients.
  void observe(const ballot& findings) noexcept { add(findings); }

  /// Ends a step that a failure elsewhere, such as a peer's, has interrupted. Its memory is released. Obligations that
  /// can no longer be discharged are not reported. Nothing is communicated.
  BELAY_ENDS void cut_off() noexcept {
    if (std::exchange(ended_, true)) return;
    engine_->cancel_queued();  // it may be in what the participants withdraw
    each([](auto& participant) { participant.withdraw(); });
    engine_->end_step();
  }

  /// Calls `body(tape)`, which must return an empty tape: a forward without its backward does not compile.
  template <class Body>
  void run(Body&& body) {
    using settled = std::invoke_result_t<Body, tape<Engine>>;
    static_assert(std::same_as<settled, tape<Engine>>,
                  "belay: the body of step.run must return an empty tape: a forward on the tape has no backward");
    static_cast<void>(std::forward<Body>(body)(tape<Engine>{*engine_}));
  }

  /// Ends a step without participants. `vote(ballot) -> ballot` reduces the findings of all ranks; a single rank needs
  /// none. Where obligations are open, a checked build throws `open_obligations`, which names them; a release build
  /// reclaims the memory and refuses.
  template <class Vote>
  requires(std::invocable<Vote, ballot> && sizeof...(Participants) == 0) BELAY_DISCHARGES [[nodiscard]] step_outcome
      commit(Vote&& vote, where at = where::current()) && {
    read_findings(at);
    std::string list = close_obligations();
    const std::uint64_t number = engine_->step_number();
    engine_->finish_copies(at);
    ended_ = true;
    engine_->end_step();
    expect_no_obligations(list, at);
    const ballot all = std::forward<Vote>(vote)(findings_);
    if (all.open_obligations + all.misused_handles > 0) return refused_step{all, std::move(list)};
    if (all.needed_rows > 0) return replay_step{all.needed_rows};
    if (all.non_finite > 0) return refused_step{all, {}};
    return committed_step{number};
  }
  BELAY_DISCHARGES [[nodiscard]] step_outcome commit(where at = where::current()) &&
      requires(sizeof...(Participants) == 0) {
    return std::move(*this).commit([](const ballot& own) { return own; }, at);
  }

  /// Ends the step: finishes every participant (gradients are reduced, and divided once by `divisor`), and votes.
  /// `divisor` is `samples{n}` or `target_tokens{n}` of the whole batch, equal on all ranks, or `local_targets{n}` of
  /// this rank, which are summed. Collective over the mesh. Where obligations are open, a checked build throws
  /// `open_obligations`; a release build refuses. Throws usage_error, on all ranks, where they disagree on the divisor,
  /// the participants or the optimizer's arguments; where a parameter lacks a contribution.
  template <votes Mesh, class Divisor>
  requires(sizeof...(Participants) > 0) BELAY_DISCHARGES [[nodiscard]] outcome_type
      commit(const Mesh& mesh, const Divisor& divisor, where at = where::current()) && {
    compare(at);  // a device whose ranks have not queued the same would not come to its end
    read_findings(at);
    std::string list = close_obligations();
    if (findings_.open_obligations > 0) expect_no_obligations(list, at);
    expect_agreement(mesh, order(), at);  // before ranks wait for each other in what only some of them take part in
    if (findings_.open_obligations + findings_.misused_handles > 0) {
      each([&](auto& participant) { participant.abandon(mesh, at); });
      const ballot all = vote(mesh, no_divisor, at);
      end(end_of_step::refused, at);
      return refuse(all, std::move(list));
    }
    // In the order in which they were named: each may be collective.
    auto parts = std::apply(
        [&](auto&... participant) {
          return std::tuple<committed_part<Participants>...>{participant.finish(mesh, divisor, at)...};
        },
        participants_);
    step_summary summary;
    summary.number = engine_->step_number();
    double squares = 0;
    std::apply(
        [&](const auto&... part) {
          const auto look = [&](const auto& one) {
            if constexpr (requires { one.squares(); }) {
              squares += one.squares();
              summary.divisor = one.divisor();
            }
          };
          (look(part), ...);
        },
        parts);
    summary.norm = __builtin_sqrt(squares);
    each([&](auto& participant) { add(participant.findings()); });
    if (!engine_->rehearsing() && !is_finite(squares)) ++findings_.non_finite;
    const ballot all = vote(mesh, summary.divisor, at);
    summary.loss = all.loss;
    if (all.open_obligations + all.misused_handles > 0 || (all.needed_rows == 0 && all.non_finite > 0)) {
      list = all.non_finite > 0 ? not_finite(summary, parts) : std::string();
      discard(parts);
      end(end_of_step::refused, at);
      return refuse(all, std::move(list));
    }
    if (all.needed_rows > 0) {
      discard(parts);
      end(end_of_step::replay, at);
      engine_->note_rows(all.needed_rows);
      return replay_step{all.needed_rows};
    }
    end(end_of_step::committed, at);
    return token_type{summary, std::move(parts)};
  }
  /// Any other call does not compile, with a sentence.
  template <class Mesh, class... Arguments>
  requires(sizeof...(Participants) == 0 && !std::invocable<Mesh, ballot> && !std::same_as<Mesh, where>)
      BELAY_DISCHARGES outcome_type commit(const Mesh&, const Arguments&...) && {
    static_assert(
        sizeof...(Participants) > 0,
        "belay: this step has no participants, so its commit has no gradients to reduce: name the store, and "
        "the expert exchange where there is one, when the step is made: belay::step step{run.engine(), store}");
    std::terminate();
  }
  template <class... Arguments>
  requires(sizeof...(Participants) > 0 && sizeof...(Arguments) < 2) BELAY_DISCHARGES outcome_type
      commit(Arguments&&...) && {
    static_assert(sizeof...(Arguments) == 2,
                  "belay: a step with participants is committed over the mesh, with the divisor of its gradients: "
                  "commit(mesh, belay::samples{n}), target_tokens{n}, or local_targets{n} of this rank");
  }

 private:
  template <class Action>
  void each(Action&& action) const {
    std::apply([&](auto&... participant) { (action(participant), ...); }, participants_);
  }
  template <class Parts>
  static void discard(Parts& parts) noexcept {
    std::apply([](auto&... part) { (part.discard(), ...); }, parts);
  }

  void compare(where at) const {
    const ledger& obligations = engine_->obligations();
    const bool whole = obligations.open_count() + obligations.misuse_count() == 0;
    each([&](auto& participant) {
      if constexpr (requires { participant.compare(order_of_step::executed, at); })
        participant.compare(whole ? order_of_step::executed : order_of_step::abandoned, at);
    });
  }

  template <class Mesh>
  [[nodiscard]] ballot vote(const Mesh& mesh, std::uint64_t divisor, where at) {
    const ballot all = vote_over(mesh, findings_, divisor, at);
    each([&](auto& participant) {
      if constexpr (requires { participant.learn(all); }) participant.learn(all);
    });
    return all;
  }

  void add(const ballot& findings) noexcept {
    findings_.non_finite += findings.non_finite;
    findings_.loss += findings.loss;
    findings_.unwritten += findings.unwritten;
    findings_.unwritable += findings.unwritable;
    findings_.asked_to_stop += findings.asked_to_stop;
    if (findings.needed_rows > findings_.needed_rows) findings_.needed_rows = findings.needed_rows;
  }

  // The one place where the host waits for what the step has queued, and reads it.
  void read_findings(where at) {
    const kernel::findings_record& found = engine_->read_findings(at);
    if (found.wrong > 0) [[unlikely]] {
      const kernel::finding first = found.first_wrong;
      const std::uint64_t wrong = found.wrong;
      cut_off();
      engine_->expect_right(wrong, first);
    }
    add({.needed_rows = found.needed_rows, .loss = found.loss});
    if (found.not_finite > 0) not_finite_loss_ = found.first_not_finite;
  }
  [[nodiscard]] std::string close_obligations() {
    ledger& obligations = engine_->obligations();
    findings_.open_obligations = obligations.open_count();
    findings_.misused_handles = obligations.misuse_count();
    return findings_.open_obligations > 0 ? obligations.text() : std::string();
  }
  void expect_no_obligations(const std::string& list, where at) {
    if constexpr (checked(check_level::local)) {
      if (findings_.open_obligations == 0) return;
      cut_off();
      throw open_obligations(list, static_cast<std::size_t>(findings_.open_obligations), at);
    }
  }

  [[nodiscard]] std::uint64_t order() const {
    fnv1a hash;
    each([&](auto& participant) { hash.add(participant.fingerprint()); });
    return hash.value();
  }

  // Where gradients are not finite, of the parts that can tell.
  template <class Parts>
  [[nodiscard]] std::string not_finite(const step_summary& summary, const Parts& parts) const {
    std::string out = "  step " + std::to_string(summary.number) + " of this engine", given_back;
    const auto name_owner = [&](double found) {
      if (given_back.empty()) given_back = engine_->given_back(found);
    };
    const auto look = [&](const auto& one) {
      if constexpr (requires { one.not_finite(); }) out += one.not_finite();
      if constexpr (requires { one.each_not_finite(name_owner); }) one.each_not_finite(name_owner);
    };
    std::apply([&](const auto&... part) { (look(part), ...); }, parts);
    out += "\n";
    if (not_finite_loss_.kind != kernel::finding_kind::nothing)
      out += "  " + text(not_finite_loss_) + ", at " + site_of(not_finite_loss_).text() + "\n";
    if (not_finite_loss_.kind != kernel::finding_kind::nothing)
      name_owner(__builtin_bit_cast(double, not_finite_loss_.value));
    if (!given_back.empty()) out += "  " + given_back + "\n";
    return out;
  }

  void end(end_of_step how, where at) {
    engine_->finish_copies(at);
    ended_ = true;
    engine_->end_step();
    engine_->note_end(how);
  }
  [[nodiscard]] outcome_type refuse(const ballot& all, std::string list) {
    refused_step why{all, std::move(list)};
    return {why, engine_->note_refusal(text(why), at_)};
  }

  void report_abandoned() const noexcept {
    try {
      const std::string list = engine_->obligations().text();
      const std::string what =
          std::string("a step ended without commit") +
          (list.empty() ? ": commit it, or end it with step.cut_off()" : ", with open obligations");
      std::fprintf(stderr, "%s: belay: %s\n%s", at_.text().c_str(), what.c_str(), list.c_str());
      engine_->note_refusal(what, at_) = true;  // a loop over `run.steps` throws it
    } catch (...) {                             // no memory for the list; the step's memory is reclaimed nevertheless
    }
  }

  Engine* engine_;
  where at_;
  std::tuple<Participants&...> participants_;
  ballot findings_;
  kernel::finding not_finite_loss_;
  bool ended_ = false;
};

template <class Engine, class... Participants>
step(Engine&, Participants&...) -> step<Engine, Participants...>;

/// Runs a layer's forward. The result owes one backward (or `discard`) in the same step. `layer`, and the memory behind
/// `input`, must stay alive and unchanged until then.
template <step_scope Scope, class Layer, class Input>
[[nodiscard("belay: the result of a forward owes a backward")]] BELAY_OPENS auto forward(const Scope& scope,
                                                                                         Layer& layer,
                                                                                         const Input& input,
                                                                                         where at = where::current()) {
  using engine_type = std::remove_reference_t<decltype(scope.engine())>;
  if constexpr (runs_backward<Layer, engine_type, Input>()) {
    return saved<engine_type, Layer, Input>{scope.engine(), layer, input,
                                            invocation{layer_name(layer), layer_index(layer), scope.micro_batch(), at}};
  }
}

/// Runs a layer's forward for its output alone: evaluation. The result owes nothing, and holds its memory until it is
/// destroyed.
template <step_scope Scope, class Layer, class Input>
[[nodiscard]] auto observe(const Scope& scope, Layer& layer, const Input& input, where at = where::current()) {
  using engine_type = std::remove_reference_t<decltype(scope.engine())>;
  if constexpr (runs_forward<Layer, engine_type, Input>()) {
    return observed<engine_type, Layer, Input>{
        scope.engine(), layer, input, invocation{layer_name(layer), layer_index(layer), scope.micro_batch(), at}};
  }
}

}  // namespace belay::inline BELAY_ABI
