// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The backward that a call of a function owes, for trainers with one flat buffer of activations and functions for
// layers. It holds no memory: the call's forward opens it, and its backward discharges it, which contributes the
// parameters that the backward has added to. A forgotten one is named as a saved activation is, by Clang where it sees
// it and by the commit.
//
//   auto owed = belay::owe(scope, {"attention", layer}, {qkv, projection});  // beside the forward
//   std::move(owed).backward([&] { attention_backward(...); });              // adds to both gradients
//
// Where the two stand in one place, `std::move(owed).discharge()` behind the backward says the same.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/step/contribution.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// The usage_errors of a store of handles, whatever these are.
struct handle_refusals {
  /// A slot that there is not, one that is empty, and one whose handle still owes. `held` is the call of that, or null
  /// where a handle does not say.
  [[noreturn, gnu::cold]] static void no_slot(std::size_t slot_count, std::size_t index, where at);
  [[noreturn, gnu::cold]] static void empty(std::size_t index, where at);
  [[noreturn, gnu::cold]] static void owes(std::size_t index, const invocation* held, where at);
};

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
    requires(!std::is_same_v<std::remove_const_t<Parameter>, owed_parameter>)  // a copy is one
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
  BELAY_OPENS owed(ledger& obligations, owed_bytes& kept, const invocation& call, std::size_t bytes,
                   std::span<const owed_parameter> parameters)
      : obligations_(&obligations), kept_(&kept), call_(call), bytes_(bytes), count_(parameters.size()) {
    if (count_ > max_parameters)
      throw usage_error("one owed backward names " + std::to_string(count_) +
                            " parameters, 16 at most: owe one for each function of the layer",
                        call.at);
    for (std::size_t i = 0; i < count_; ++i) {
      targets_[i] = &parameters[i].target();
      targets_[i]->begin_adding();
      if constexpr (checked(check_level::local)) before_[i] = targets_[i]->content();
    }
    obligation_ = call.open(obligations, obligation_kind::owed_backward, bytes, {}, call.at);
    kept.open(bytes);
  }

  owed& operator=(owed&&) = delete;  // it would lose the obligation of the left side
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;

  /// An obligation that was not discharged stays in the ledger.
  BELAY_IF_DISCHARGED ~owed() {}  // not defaulted: the analysis looks at calls of a destructor

  /// Runs `f()`, the function's backward, which adds to the gradients of the parameters, and discharges: also where it
  /// adds nothing, or zeros. What `f` throws leaves the obligation open. Errors as those of `discharge`; of one that
  /// owes nothing any more `f` does not run.
  template <std::invocable F>
  BELAY_DISCHARGES void backward(F&& f, where at = where::current()) && {
    if (owes()) {
      static_cast<void>(std::forward<F>(f)());
      contribute(at);
    }
    settle(at);
  }

  /// The backward has run: each of the parameters has its part of this micro-batch, and a bucket that is complete is
  /// reduced from here on. A second call is a usage_error in checked builds; in release builds it contributes nothing,
  /// and the step refuses to commit. A parameter that has contributed this micro-batch before is a usage_error, or the
  /// same refusal. Checked builds throw usage_error where no gradient of the parameters, in memory that the host
  /// addresses, has another bit than when the backward was owed: it did not run, or runs later.
  BELAY_DISCHARGES void discharge(where at = where::current()) && {
    if (owes()) {
      if constexpr (checked(check_level::local)) expect_added(at);
      contribute(at);
    }
    settle(at);
  }

  /// Ends the obligation without a backward; `why` is for the reader of the code. The parameters contribute nothing.
  BELAY_DISCHARGES void discard([[maybe_unused]] const char* why, where at = where::current()) && { settle(at); }

  /// Returns a named handle from a function: `return std::move(owed).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS owed hand_over() && { return owed{std::move(*this)}; }

  /// The call that owes this backward: its layer, micro-batch and site.
  [[nodiscard]] const invocation& call() const noexcept { return call_; }

 private:
  template <class>
  friend class handle_store;

  // Private, so that a named handle goes nowhere but through `hand_over`.
  BELAY_OPENS owed(owed&& other) noexcept
      : obligations_(other.obligations_),
        kept_(other.kept_),
        call_(other.call_),
        obligation_(std::exchange(other.obligation_, {})),
        targets_(other.targets_),
        before_(other.before_),
        bytes_(other.bytes_),
        count_(other.count_) {}

  [[nodiscard]] bool owes() const noexcept { return obligations_->is_open(obligation_); }
  void contribute(where at) {
    contribution_list contributions;
    for (std::size_t i = 0; i < count_; ++i) contributions.add(*targets_[i]);
    contributions.contribute(call_.micro_batch, {}, at);  // the host's function has run
  }
  void settle(where at) {
    if (owes()) kept_->close(bytes_);
    obligations_->close(std::exchange(obligation_, {}), at);
  }
  // One parameter that has changed is enough: a gradient may be zero.
  void expect_added(where at) const;
  [[noreturn, gnu::cold]] void refuse_untouched(where at) const;

  using contents = std::array<std::uint64_t, checked(check_level::local) ? max_parameters : 0>;

  ledger* obligations_;
  owed_bytes* kept_;
  invocation call_;
  obligation_id obligation_;
  std::array<contribution_target*, max_parameters> targets_;
  [[no_unique_address]] contents before_{};  // of the gradients when it was owed; 0: not known
  std::size_t bytes_;
  std::size_t count_;
};

/// A call of a layer's function owes its backward, which adds to `parameters`: their gradients are zeroed where nothing
/// has written them in the step. `scope` is a step or one of its micro-batches. `bytes` of the trainer's own memory,
/// which the call keeps for its backward, are told by messages and meters, and are in the plan, row "owed activations".
/// The parameters' store outlives the step.
template <step_scope Scope, std::size_t Count>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::size_t bytes,
                                                                            const owed_parameter (&parameters)[Count],
                                                                            where at = where::current()) {
  static_assert(Count <= owed::max_parameters,
                "belay: one owed backward names 16 parameters at most: owe one for each function of the layer");
  if constexpr (Count <= owed::max_parameters)
    return {scope.engine().obligations(),
            scope.engine().owed(),
            {layer.name, layer.index, scope.micro_batch(), at},
            bytes,
            parameters};
}
template <step_scope Scope, std::size_t Count>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            const owed_parameter (&parameters)[Count],
                                                                            where at = where::current()) {
  return owe(scope, layer, 0, parameters, at);
}
/// Opens the backward that a call owes, with as many parameters as a layer has, such as a
/// `std::vector<belay::owed_parameter>`. Throws usage_error for more than 16.
template <step_scope Scope>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::size_t bytes,
                                                                            std::span<const owed_parameter> parameters,
                                                                            where at = where::current()) {
  return {scope.engine().obligations(),
          scope.engine().owed(),
          {layer.name, layer.index, scope.micro_batch(), at},
          bytes,
          parameters};
}
template <step_scope Scope>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::span<const owed_parameter> parameters,
                                                                            where at = where::current()) {
  return owe(scope, layer, 0, parameters, at);
}
/// A call of a function without parameters owes its backward. `scope` is a step or one of its micro-batches. `bytes` of
/// the trainer's own memory, which the call keeps for its backward, are told by messages and meters, and are in the
/// plan, row "owed activations".
template <step_scope Scope>
[[nodiscard("belay: an owed backward is discharged")]] BELAY_OPENS owed owe(const Scope& scope, owed_layer layer,
                                                                            std::size_t bytes = 0,
                                                                            where at = where::current()) {
  return owe(scope, layer, bytes, std::span<const owed_parameter>(), at);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/step/owed.ipp"  // IWYU pragma: export
#endif
