// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The backward that a call of a function owes, for trainers with one flat buffer of activations and functions for
// layers. It holds no memory: the call's forward opens it, and its backward discharges it, which contributes the
// parameters that the backward has added to. A forgotten one is named as a saved activation is, by Clang where it sees
// it and by the commit.
//
//   auto owed = belay::owe(scope, {"attention", layer}, {qkv, projection});  // beside the forward
//   attention_backward(...);                                                 // adds to both gradients
//   std::move(owed).discharge();
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/obligation.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/step/contribution.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// The function whose backward is owed, and its place in the model. `name` outlives the step.
struct owed_layer {
  /// The layer that owes, by name and number.
  owed_layer(const char* called, std::size_t place = 0) noexcept : name(called), index(place) {}
  const char* name;
  std::size_t index;
};

/// A parameter to which the owed backward adds. Throws usage_error for one without a gradient's memory.
class owed_parameter {
 public:
  /// Where the backward will contribute. Throws usage_error where the parameter has no memory.
  template <class Parameter>
  owed_parameter(Parameter& parameter, where at = where::current()) {
    static_assert(contributes<Parameter>,
                  "belay: a backward is owed of trainable parameters: a frozen one has no gradient, and is not named");
    if constexpr (contributes<Parameter>) {
      target_ = parameter.contribution();
      if (target_ == nullptr)
        throw usage_error("a backward is owed of parameter " + printable(parameter.name()) +
                              ", which is in no parameter_store and no gradient_buckets",
                          at);
    }
  }
  [[nodiscard]] contribution_target& target() const noexcept { return *target_; }

 private:
  contribution_target* target_ = nullptr;
};

class [[nodiscard("belay: an owed backward is discharged")]] BELAY_OBLIGATION owed final {
 public:
  /// Parameters of one owed backward.
  static constexpr std::size_t max_parameters = 16;

  /// Opens the obligation. Use `belay::owe`.
  BELAY_OPENS owed(ledger & obligations, const invocation& call, std::size_t bytes,
                   std::span<const owed_parameter> parameters)
      : obligations_(&obligations), call_(call), count_(parameters.size()) {
    for (std::size_t i = 0; i < count_; ++i) {
      targets_[i] = &parameters[i].target();
      targets_[i]->begin_adding();
    }
    obligation_ = call.open(obligations, obligation_kind::owed_backward, bytes, {}, call.at);
  }

  owed& operator=(owed&&) = delete;  // it would lose the obligation of the left side
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;

  /// An obligation that was not discharged stays in the ledger.
  BELAY_IF_DISCHARGED ~owed() {}  // not defaulted: the analysis looks at calls of a destructor

  /// The backward has run: each of the parameters has its part of this micro-batch, and a bucket that is complete is
  /// reduced from here on. A second call is a usage_error in checked builds; in release builds it contributes nothing,
  /// and the step refuses to commit. A parameter that has contributed this micro-batch before is a usage_error, or the
  /// same refusal.
  BELAY_DISCHARGES void discharge(where at = where::current())&& {
    if (owes()) {
      contribution_list contributions;
      for (std::size_t i = 0; i < count_; ++i) contributions.add(*targets_[i]);
      contributions.contribute(call_.micro_batch, {}, at);  // the host's function has run
    }
    settle(at);
  }

  /// Ends the obligation without a backward; `why` is for the reader of the code. The parameters contribute nothing.
  BELAY_DISCHARGES void discard([[maybe_unused]] const char* why, where at = where::current())&& { settle(at); }

  /// Returns a named handle from a function: `return std::move(owed).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS owed hand_over()&& { return owed{std::move(*this)}; }

  /// What it is owed for.
  [[nodiscard]] const invocation& call() const noexcept { return call_; }

 private:
  template <class>
  friend class handle_store;

  // Private, so that a named handle goes nowhere but through `hand_over`.
  BELAY_OPENS owed(owed && other) noexcept
      : obligations_(other.obligations_),
        call_(other.call_),
        obligation_(std::exchange(other.obligation_, {})),
        targets_(other.targets_),
        count_(other.count_) {}

  [[nodiscard]] bool owes() const noexcept { return obligations_->is_open(obligation_); }
  void settle(where at) { obligations_->close(std::exchange(obligation_, {}), at); }

  ledger* obligations_;
  invocation call_;
  obligation_id obligation_;
  std::array<contribution_target*, max_parameters> targets_;
  std::size_t count_;
};

/// A call of a layer's function owes its backward, which adds to `parameters`: their gradients are zeroed where nothing
/// has written them in the step. `scope` is a step or one of its
/// micro-batches; `bytes`, what the call keeps for its backward, is for the message. The parameters' store outlives the
/// step.
template <step_scope Scope, std::size_t Count>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::size_t bytes,
                                                                            const owed_parameter (&parameters)[Count],
                                                                            where at = where::current()) {
  static_assert(Count <= owed::max_parameters,
                "belay: one owed backward names 16 parameters at most: owe one for each function of the layer");
  if constexpr (Count <= owed::max_parameters)
    return {scope.engine().obligations(), {layer.name, layer.index, scope.micro_batch(), at}, bytes, parameters};
}
template <step_scope Scope, std::size_t Count>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            const owed_parameter (&parameters)[Count],
                                                                            where at = where::current()) {
  return owe(scope, layer, 0, parameters, at);
}
/// The same of a function without parameters.
template <step_scope Scope>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::size_t bytes = 0,
                                                                            where at = where::current()) {
  return {scope.engine().obligations(), {layer.name, layer.index, scope.micro_batch(), at}, bytes, {}};
}

}  // namespace belay::inline BELAY_ABI
