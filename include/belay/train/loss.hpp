// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Losses: the sum over a micro-batch, which becomes a finding of its step, and its gradient. The commit sums the losses
// of all ranks and divides the gradients, once, by samples or target tokens. Outputs of a narrower format, such as
// bf16, are computed with as numbers, and their gradient is rounded once.
//
//   auto y = belay::forward(step, net.last, h.out());
//   auto [loss, grad] = belay::squared_error(step, y.out(), targets);
//   grad = std::move(y).backward(grad);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/losses.hpp"
#include "belay/kernel/math.hpp"
#include "belay/step/forward_only.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// A loss that its step has noted. It has no number: the mean over all ranks is in the committed step, and in a
/// rehearsal there is none. `run.report` gives it.
struct noted_loss {};

/// A loss and the gradient of its sum with respect to what the network put out.
template <class Engine, class T, std::size_t Rank>
struct loss_and_gradient {
  /// The loss, noted, and its gradient by the output, which the caller owns.
  noted_loss loss;
  belay::gradient<Engine, T, Rank> gradient;
};

/// Throws usage_error unless both have one shape.
template <class T, std::size_t Rank>
void expect_same_shape(view<const T, Rank> output, view<const compute_type_t<T>, Rank> target, where at) {
  if (output.shape() == target.shape()) return;
  throw usage_error(
      "squared_error: the output is " + shape_text(output.shape()) + ", the targets are " + shape_text(target.shape()),
      at);
}
/// The number of rows of logits, each of which has a target.
template <class T, std::size_t Rank>
[[nodiscard]] std::size_t expect_target_rows(view<const T, Rank> logits, view<const std::int32_t, Rank - 1> targets,
                                             where at) {
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < Rank; ++axis) rows *= logits.extent(axis);
  if (targets.size() == rows) return rows;
  throw usage_error(
      "cross_entropy: " + std::to_string(rows) + " rows of logits and " + std::to_string(targets.size()) + " targets",
      at);
}
/// Where the kernel of a loss, called `loss`, writes it, and which targets are none. `loss` outlives the step.
template <class Scope>
[[nodiscard]] kernel::findings_note found_by(const Scope& scope, const char* loss, where at) noexcept {
  return {scope.engine().found(),
          {loss, at.file, at.line, kernel::finding_site::no_layer, static_cast<std::uint32_t>(scope.micro_batch())}};
}
/// Queues a loss: on the kit where it has a way of its own, such as many threads, else as work of the stream.
template <class Engine, class Loss>
void queue_loss(Engine& engine, const Loss& loss) {
  if constexpr (requires { engine.kit().loss(loss); })
    engine.kit().loss(loss);
  else
    engine.compute().run(loss);
}

/// The sum of (output - target)^2 over all elements, and 2 (output - target). Both of one shape; targets are numbers of
/// the type that is computed with. The step notes the sum; divided by `samples{n}` it is the mean of a sample's summed
/// errors.
template <step_scope Scope, kernel::stored_real T, std::size_t Rank>
[[nodiscard]] auto squared_error(const Scope& scope, view<const T, Rank> output,
                                 std::type_identity_t<view<const compute_type_t<T>, Rank>> target,
                                 where at = where::current()) {
  using engine_type = std::remove_reference_t<decltype(scope.engine())>;
  expect_same_shape<T>(output, target, at);
  loss_and_gradient<engine_type, T, Rank> out{{}, {scope.engine(), output.shape(), at}};
  const kernel::findings_note found = found_by(scope, "squared_error", at);
  queue_loss(scope.engine(), kernel::noted_squared_error<T>{output.data(), target.data(), out.gradient.values().data(),
                                                            output.size(), 0, found});
  return out;
}

/// The sum of the cross-entropies of rows of logits (the last axis), and its gradient softmax - one-hot. `targets` has
/// an entry a row; `kernel::ignored_target` does not count. The step notes the sum; divided by `target_tokens{n}` it is
/// nats a token. The gradient is scaled by `scale`.
template <step_scope Scope, kernel::stored_real T, std::size_t Rank>
requires(Rank > 1) [[nodiscard]] auto cross_entropy(const Scope& scope, view<const T, Rank> logits,
                                                    view<const std::int32_t, Rank - 1> targets, double scale = 1,
                                                    where at = where::current()) {
  using engine_type = std::remove_reference_t<decltype(scope.engine())>;
  const std::size_t rows = expect_target_rows(logits, targets, at);
  loss_and_gradient<engine_type, T, Rank> out{{}, {scope.engine(), logits.shape(), at}};
  const kernel::findings_note found = found_by(scope, "cross_entropy", at);
  queue_loss(scope.engine(),
             kernel::noted_cross_entropy<T>{{logits.data(), targets.data(), nullptr, out.gradient.values().data(),
                                             logits.extent(Rank - 1), scale, found},
                                            rows});
  return out;
}

/// Adds the sum of (output - target)^2 over all elements to the loss of a forward-only pass, over the samples of the
/// first axis, without a gradient. Output and target have one shape; targets are numbers of the type that is computed
/// with.
template <class Engine, class... Participants, kernel::stored_real T, std::size_t Rank>
void squared_error(const forward_only<Engine, Participants...>& pass, view<const T, Rank> output,
                   std::type_identity_t<view<const compute_type_t<T>, Rank>> target, where at = where::current()) {
  expect_same_shape<T>(output, target, at);
  const kernel::findings_note found = found_by(pass, "squared_error", at);
  queue_loss(pass.engine(), kernel::noted_squared_error<T>{output.data(), target.data(), nullptr, output.size(),
                                                           output.extent(0), found});
}

/// Adds the sum of the cross-entropies of rows of logits (the last axis) to the loss of a forward-only pass, over the
/// targets that count, without a gradient. `targets` has an entry a row; `kernel::ignored_target` does not count.
template <class Engine, class... Participants, kernel::stored_real T, std::size_t Rank>
requires(Rank > 1) void cross_entropy(const forward_only<Engine, Participants...>& pass, view<const T, Rank> logits,
                                      view<const std::int32_t, Rank - 1> targets, where at = where::current()) {
  const std::size_t rows = expect_target_rows(logits, targets, at);
  const kernel::findings_note found = found_by(pass, "cross_entropy", at);
  queue_loss(pass.engine(),
             kernel::noted_cross_entropy<T>{
                 {logits.data(), targets.data(), nullptr, nullptr, logits.extent(Rank - 1), 0, found}, rows});
}

}  // namespace belay::inline BELAY_ABI
