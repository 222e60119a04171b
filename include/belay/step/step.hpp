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

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/device/kit.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/participant.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/step_core.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class... Saved>
class tape;

/// A tape after a backward, and the gradient for the next one.
template <class Tape, class Gradient>
struct unwound {
  /// The tape without its last forward, and the gradient of that one's input.
  Tape rest;
  Gradient gradient;

  /// The backward of the forward below, with this gradient.
  [[nodiscard]] auto backward(where at = where::current()) && { return std::move(rest).backward(gradient, at); }
};

/// A tape without forwards.
/// The typed tape: what is owed is part of the tape's type, the last forward on top. A body that must return an empty
/// tape cannot forget a backward, with any compiler.
template <class Engine>
class [[nodiscard]] tape<Engine> {
 public:
  /// Of one micro-batch.
  explicit tape(Engine& engine, std::size_t micro_batch = 0) noexcept : engine_(&engine), micro_batch_(micro_batch) {}

  /// The engine, and the micro-batch.
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return micro_batch_; }

  /// Runs the layer and puts its handle on the tape, which is used up.
  template <class Layer, class Input>
  [[nodiscard]] auto forward(Layer& layer, const Input& input, where at = where::current()) && {
    if constexpr (runs_backward<Layer, Engine, Input>()) {
      using next = saved<Engine, Layer, Input>;
      return tape<Engine, next>{
          std::move(*this), layer, input, {layer_name(layer), layer_index(layer), micro_batch_, at}};
    }
  }

 private:
  Engine* engine_;
  std::size_t micro_batch_;
};

/// A tape with forwards, of which the first is the last that ran.
template <class Engine, class First, class... Rest>
class [[nodiscard]] tape<Engine, First, Rest...> {
 public:
  using shorter = tape<Engine, Rest...>;

  /// Runs the forward and opens its obligation on top of `rest`.
  template <class Layer, class Input>
  tape(shorter rest, Layer& layer, const Input& input, const invocation& call)
      : rest_(std::move(rest)), last_(rest_.engine(), layer, input, call) {}

  /// The engine, and the micro-batch.
  [[nodiscard]] Engine& engine() const noexcept { return rest_.engine(); }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return rest_.micro_batch(); }
  /// The output of the last forward.
  [[nodiscard]] auto out() const { return last_.out(); }

  /// Runs the layer and puts its handle on the tape, which is used up.
  template <class Layer, class Input>
  [[nodiscard]] auto forward(Layer& layer, const Input& input, where at = where::current()) && {
    if constexpr (runs_backward<Layer, Engine, Input>()) {
      using next = saved<Engine, Layer, Input>;
      const invocation call{layer_name(layer), layer_index(layer), micro_batch(), at};
      return tape<Engine, next, First, Rest...>{std::move(*this), layer, input, call};
    }
  }

  /// The backward of the last forward. Returns the shorter tape, with the input's gradient where there is one.
  template <class Dout>
  [[nodiscard]] auto backward(const Dout& dout, where at = where::current()) && {
    if constexpr (std::is_void_v<decltype(std::move(last_).backward(dout, at))>) {
      std::move(last_).backward(dout, at);
      return std::move(rest_);
    } else {
      auto gradient = std::move(last_).backward(dout, at);
      return unwound<shorter, decltype(gradient)>{std::move(rest_), std::move(gradient)};
    }
  }

 private:
  shorter rest_;
  First last_;
};

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

/// A mesh over which a step can be committed: the room that knows ranks votes over it. Where participants differ, or
/// what libraries have chosen, `expect_agreement(mesh, participants, at, chosen, own)` throws usage_error on all
/// ranks, and returns how all end the step.
/// `vote_over(mesh, ballot, divisor, at)` returns the sum of the ballots, and throws usage_error on all ranks where
/// their divisors differ.
template <class Mesh>
concept votes = requires(const Mesh& mesh, const ballot& own, std::uint64_t word, where at, kit_choices* chosen) {
  { expect_agreement(mesh, word, at, chosen, order_of_step::executed) } -> std::same_as<order_of_step>;
  { vote_over(mesh, own, word, at) } -> std::same_as<ballot>;
};

/// The ranks of a mesh, to be asked in a commit.
template <votes Mesh>
class ranks_of_mesh final : public step_ranks {
 public:
  /// The mesh outlives it.
  explicit ranks_of_mesh(const Mesh& mesh) noexcept : mesh_(&mesh) {}
  [[nodiscard]] order_of_step expect_same(std::uint64_t participants, kit_choices* chosen, order_of_step own,
                                          where at) const override {
    return expect_agreement(*mesh_, participants, at, chosen, own);
  }
  [[nodiscard]] ballot vote(const ballot& own, std::uint64_t divisor, where at) const override {
    return vote_over(*mesh_, own, divisor, at);
  }

 private:
  const Mesh* mesh_;
};

template <class Engine, class... Participants>
class [[nodiscard]] BELAY_OBLIGATION step {
  static_assert((is_step_participant<Participants> && ...),
                "belay: a step is made of an engine and of what takes part in it: parameter_store, expert_exchange, or "
                "a class that derives from belay::participant");

 public:
  using engine_type = Engine;
  using token_type = committed_gradients<Participants...>;
  using outcome_type = basic_step_outcome<token_type>;

  /// Begins a step of one micro-batch, and all `participants`, which outlive it. Throws usage_error while another step
  /// of the engine is open.
  BELAY_OPENS explicit step(engine_here<Engine> engine, Participants&... participants)
      : engine_(engine.engine),
        participants_(participants...),
        all_{&participants...},
        core_(*engine.engine, engine.at, std::span(all_.data(), sizeof...(Participants))) {}
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// A step is an obligation itself: it is committed, or cut off. One that is neither is named, by Clang where it sees
  /// it; its memory is released, and the handles that were lost in it are printed. One that an exception ends is cut
  /// off: what it left open is the exception's doing.
  BELAY_IF_DISCHARGED ~step() {
    if (!core_.ended()) [[unlikely]]
      core_.abandon();
  }

  /// The step has `count` (0 or more) micro-batches on this rank. Before its first forward.
  void micro_batches(std::size_t count, where at = where::current()) const { core_.micro_batches(count, at); }

  /// The engine; forwards without a micro-batch are of number 0, others of `micro_batch(i)`.
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] static constexpr std::size_t micro_batch() noexcept { return 0; }
  [[nodiscard]] micro_batch_scope<Engine> micro_batch(std::size_t index) const noexcept { return {*engine_, index}; }

  /// Findings of this rank for the vote: overflow and non-finite gradients.
  void observe(const ballot& findings) noexcept { core_.add(findings); }

  /// Ends a step that a failure elsewhere, such as a peer's, has interrupted. Its memory is released. Obligations that
  /// can no longer be discharged are not reported. Nothing is communicated.
  BELAY_ENDS void cut_off() noexcept { core_.cut_off(); }

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
    requires(std::invocable<Vote, ballot> && sizeof...(Participants) == 0)
  BELAY_DISCHARGES [[nodiscard]] step_outcome commit(Vote&& vote, where at = where::current()) && {
    ended_step done = core_.commit([&](const ballot& own) { return vote(own); }, at);
    if (done.how == end_of_step::committed) return committed_step{done.summary.number};
    if (done.how == end_of_step::replay) return replay_step{done.needed_rows};
    return std::move(done.why);
  }
  BELAY_DISCHARGES [[nodiscard]] step_outcome commit(where at = where::current()) &&
      requires(sizeof...(Participants) == 0) {
        return std::move(*this).commit([](const ballot& own) { return own; }, at);
      }

      /// Ends the step: finishes every participant (gradients are reduced, and divided once by `divisor`), and votes.
      /// `divisor` is `samples{n}` or `target_tokens{n}` of the whole batch, equal on all ranks, or `local_targets{n}`
      /// of this rank, which are summed. Collective over the mesh. Where obligations are open, a checked build throws
      /// `open_obligations`; a release build refuses. Throws usage_error, on all ranks, where they disagree on the
      /// divisor, the participants or the optimizer's arguments; where a parameter lacks a contribution.
      template <votes Mesh, class Divisor>
        requires(sizeof...(Participants) > 0)
      BELAY_DISCHARGES [[nodiscard]] outcome_type
      commit(const Mesh& mesh, const Divisor& divisor, where at = where::current()) && {
    static_assert(is_step_divisor<Divisor>,
                  "belay: a step is divided by belay::samples{n} or belay::target_tokens{n} of the global batch, or by "
                  "belay::local_targets{n} of this rank, which the commit sums");
    if constexpr (is_step_divisor<Divisor>) {
      ended_step done = core_.commit(ranks_of_mesh<Mesh>(mesh), divisor.value(), at);
      if (done.how == end_of_step::replay) return replay_step{done.needed_rows};
      if (done.how == end_of_step::refused) return {std::move(done.why), *done.unread};
      const auto take = [](auto&... participant) {
        return std::tuple<committed_part<Participants>...>{participant.take_part()...};
      };
      return token_type{done.summary, std::apply(take, participants_)};
    } else {
      std::terminate();
    }
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
    requires(sizeof...(Participants) > 0 && sizeof...(Arguments) < 2)
  BELAY_DISCHARGES outcome_type commit(Arguments&&...) && {
    static_assert(sizeof...(Arguments) == 2,
                  "belay: a step with participants is committed over the mesh, with the divisor of its gradients: "
                  "commit(mesh, belay::samples{n}), target_tokens{n}, or local_targets{n} of this rank");
  }

 private:
  Engine* engine_;
  std::tuple<Participants&...> participants_;
  std::array<participant*, sizeof...(Participants)> all_;
  step_core<Engine> core_;
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
