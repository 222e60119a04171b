// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A step owns all that is opened in it: activations, obligations, scratch memory. It ends in exactly one of three
// ways: committed, to be replayed, or refused. Its memory is free again afterwards in all of them.
//
//   belay::step step{engine};
//   auto hidden = belay::forward(step, first, x);
//   auto out = belay::forward(step, second, hidden.out());
//   auto grad = std::move(out).backward(dout);  // the last forward first
//   grad = std::move(hidden).backward(grad);
//   auto outcome = std::move(step).commit();
//   if (belay::committed_step* done = committed(outcome)) optimizer.apply(*done, ...);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/tape.hpp"

namespace belay::inline BELAY_ABI {

/// One micro-batch of a step: the scope of a `forward` where a step has several.
template <class Engine>
class micro_batch_scope {
 public:
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

template <class Engine>
class [[nodiscard]] step {
 public:
  using engine_type = Engine;

  /// Begins a step; throws usage_error while another step of the engine is open.
  explicit step(Engine& engine, where at = where::current()) : engine_(&engine), at_(at) { engine.begin_step(at); }
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// A step that was not committed releases its memory, and prints which handles were lost.
  ~step() {
    if (ended_) return;
    if (engine_->obligations().open_count() > 0) report_abandoned();
    engine_->end_step();
  }

  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] static constexpr std::size_t micro_batch() noexcept { return 0; }
  [[nodiscard]] micro_batch_scope<Engine> micro_batch(std::size_t index) const noexcept { return {*engine_, index}; }

  /// Findings of this rank for the vote: overflow and non-finite gradients.
  void observe(const ballot& findings) noexcept {
    findings_.non_finite += findings.non_finite;
    if (findings.needed_rows > findings_.needed_rows) findings_.needed_rows = findings.needed_rows;
  }

  /// Ends a step that a failure elsewhere, such as a peer's, has interrupted. Its memory is released. Obligations that
  /// can no longer be discharged are not reported.
  void cut_off() noexcept {
    if (std::exchange(ended_, true)) return;
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

  /// Ends the step. `vote(ballot) -> ballot` reduces the findings of all ranks; a single rank needs none. Where
  /// obligations are open, a checked build throws `open_obligations`, which names them; a release build reclaims the
  /// memory and refuses.
  template <class Vote>
  requires std::invocable<Vote, ballot>
  [[nodiscard]] step_outcome commit(Vote&& vote, where at = where::current()) && {
    ledger& obligations = engine_->obligations();
    findings_.open_obligations = obligations.open_count();
    findings_.misused_handles = obligations.misuse_count();
    std::string list;
    if (findings_.open_obligations > 0) list = obligations.text();
    const std::uint64_t number = engine_->step_number();
    ended_ = true;
    engine_->end_step();
    if constexpr (checked(check_level::local)) {
      if (findings_.open_obligations > 0)
        throw open_obligations(list, static_cast<std::size_t>(findings_.open_obligations), at);
    }
    const ballot all = std::forward<Vote>(vote)(findings_);
    if (all.open_obligations + all.misused_handles > 0) return refused_step{all, std::move(list)};
    if (all.needed_rows > 0) return replay_step{all.needed_rows};
    if (all.non_finite > 0) return refused_step{all, {}};
    return committed_step{number};
  }
  [[nodiscard]] step_outcome commit(where at = where::current()) && {
    return std::move(*this).commit([](const ballot& own) { return own; }, at);
  }

 private:
  void report_abandoned() const noexcept {
    try {
      const std::string list = engine_->obligations().text();
      std::fprintf(stderr, "%s: belay: a step ended without commit, with open obligations%s\n%s", at_.text().c_str(),
                   std::uncaught_exceptions() > 0 ? " (an exception is on its way)" : "", list.c_str());
    } catch (...) {  // no memory for the list; the step's memory is reclaimed nevertheless
    }
  }

  Engine* engine_;
  where at_;
  ballot findings_;
  bool ended_ = false;
};

template <class Engine>
step(Engine&, where) -> step<Engine>;
template <class Engine>
step(Engine&) -> step<Engine>;

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
