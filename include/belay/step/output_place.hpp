// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the output of a forward may be: in what its call has kept or remembered, in its input, or in memory that
// outlives the step, such as a parameter, a constant or a buffer of the caller. What has any other place ends before
// whoever reads the output does.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/step/frame.hpp"

namespace belay::inline BELAY_ABI {

/// How long what a forward returned lives: with the handle, or no longer than the call (a recompute), or apart from
/// its output (what is offloaded, or let go of).
enum class residue_use : std::uint8_t { until_backward, dropped };

/// Throws usage_error, with the layer, where the output of its forward ends before those who read it. Memory that the
/// residue may own is no place for the output where the residue is dropped: one that is trivially destructible owns
/// none.
template <class Engine, class Residue, class Input>
void expect_kept(const Engine& engine, const invocation& call, const invocation_memory& memory, const Residue& residue,
                 const Input& input, residue_use use) {
  const void* const first = residue.out.data();
  if (first == nullptr || residue.out.size() == 0) return;
  const auto& activations = engine.activations();
  if (activations.holds(memory.kept, first) || activations.holds(memory.remembered, first)) return;
  const auto* const of_input = reinterpret_cast<const std::byte*>(input.data());
  if (!std::less<>()(first, static_cast<const void*>(of_input)) &&
      std::less<>()(first, static_cast<const void*>(of_input + input.size_bytes())))
    return;
  const auto refuse = [&](const char* why) {
    throw usage_error("the output of layer " + std::to_string(call.layer_index) + " '" + printable(call.layer) +
                          "' (micro-batch " + std::to_string(call.micro_batch) + ") is " + why +
                          ": make it by belay::keep<T>(frame, shape)",
                      call.at);
  };
  if (engine.is_of_steps(first))
    refuse("in memory of the step that its call has not kept, such as scratch or a gathered parameter");
  if (use == residue_use::dropped && !std::is_trivially_destructible_v<Residue>)
    refuse("in memory that may be owned by what its forward returned, of which only the output is kept here");
}
template <class Engine, class Residue, class Input>
void expect_kept(frame<Engine>& call, const Residue& residue, const Input& input, residue_use use) {
  expect_kept(call.engine(), call.call(), call.memory(), residue, input, use);
}

}  // namespace belay::inline BELAY_ABI
