// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A pass of forwards without backwards: evaluation, sampling. Layers run by `observe`; a `forward` does not compile.
// `belay::evaluate` (train/evaluate.hpp) adds up the losses of all ranks, and repeats a pass that overflowed.
//
//   belay::forward_only pass{run.engine(), experts};
//   auto x = belay::observe(pass, net.first, batch);
//   auto y = belay::observe(pass, net.second, x.out());
//   belay::squared_error(pass, y.out(), targets);         // adds to the loss of the pass
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <tuple>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/step/participant.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// It owes nothing: its end frees its memory. The engine keeps what it has found, for `evaluate`; an overflow that
/// nobody repeats is a usage_error of the engine's next step. Observed results do not outlive it.
template <class Engine, class... Participants>
class forward_only {
  static_assert((is_step_participant<Participants> && ...),
                "belay: a pass is made of an engine and of what takes part in it: expert_exchange, or a class that "
                "derives from belay::participant");

 public:
  using engine_type = Engine;

  /// Begins a pass, and all `participants`, which outlive it. Throws usage_error while a step or another pass of the
  /// engine is open.
  explicit forward_only(engine_here<Engine> engine, Participants&... participants)
      : engine_(engine.engine), at_(engine.at), participants_(participants...), unwinding_(std::uncaught_exceptions()) {
    engine_->begin_pass(at_);
    try {
      each([&](auto& participant) {
        if (engine_->room() != 0) participant.make_room(static_cast<std::size_t>(engine_->room()), at_);
        participant.begin(step_start{}, at_);
      });
    } catch (...) {
      withdraw();
      throw;
    }
  }
  forward_only(const forward_only&) = delete;
  forward_only& operator=(const forward_only&) = delete;

  /// Nothing is communicated. What layers have left open is printed, unless an exception is on its way.
  ~forward_only() {
    if (std::uncaught_exceptions() == unwinding_) note();
    withdraw();
  }

  /// The engine; a pass is one micro-batch.
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] static constexpr std::size_t micro_batch() noexcept { return 0; }

  /// Adds the losses of `count` targets or samples, summed, in the order of the compute stream.
  void add_loss(double losses, std::size_t count) const { engine_->add_loss(losses, count); }

 private:
  template <class Action>
  void each(Action&& action) const {
    std::apply([&](auto&... participant) { (action(participant), ...); }, participants_);
  }

  void note() noexcept {
    pass_findings found;
    if (const kernel::findings_record* const seen = engine_->try_findings(at_))
      found = {0, seen->needed_rows, seen->loss_count, seen->loss, seen->wrong, seen->first_wrong};
    try {
      each([&](auto& participant) {
        const ballot own = participant.findings();
        if (own.needed_rows > found.needed_rows) found.needed_rows = own.needed_rows;
      });
      const ledger& obligations = engine_->obligations();
      found.open_obligations = obligations.open_count() + obligations.misuse_count();
      if (found.open_obligations > 0)
        std::fprintf(stderr, "%s: belay: a forward-only pass ended with open obligations\n%s", at_.text().c_str(),
                     obligations.text().c_str());
    } catch (...) {  // no memory for the list; the pass's memory is reclaimed nevertheless
    }
    engine_->note_pass(found);
  }
  void withdraw() noexcept {
    each([](auto& participant) { participant.withdraw(); });
    engine_->end_step();
  }

  Engine* engine_;
  where at_;
  std::tuple<Participants&...> participants_;
  int unwinding_;
};

template <class Engine, class... Participants>
forward_only(Engine&, Participants&...) -> forward_only<Engine, Participants...>;

/// Does not compile, with a sentence.
template <class Engine, class... Participants, class Layer, class Input>
auto forward(const forward_only<Engine, Participants...>&, Layer&, const Input&, where = where::current()) {
  static_assert(always_false<Input>,
                "belay: a forward-only pass runs no backward: write belay::observe(pass, layer, input), or make a "
                "belay::step");
}

}  // namespace belay::inline BELAY_ABI
