// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An obligation is something that a step has opened and that must be discharged exactly once before the step can
// commit: an activation that owes a backward, tokens that owe a combine. The handle that the user holds is the only
// way to discharge it. This record remains when the handle is lost, and says what was opened and where.
//
//   const belay::obligation what{.micro_batch = 3, .bytes = 64, .layer = "head", .opened_at = belay::where::current()};
//   what.text();  // "saved activation of layer 0 'head' (micro-batch 3, holds 64 bytes) opened at train.cpp:88: ..."
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The kind of an obligation: what a handle owes.
enum class obligation_kind : std::uint8_t {
  saved_activation,
  recompute_frame,
  gathered_parameter,
  weight_gradient,
  dispatched_tokens,
  combined_tokens,
  returning_gradients,
  pending_collective,
  transfer,
  offload_copy,
  owed_backward,
};

/// The name as lists of open obligations have it: "saved activation", ...
[[nodiscard]] constexpr const char* name(obligation_kind kind) noexcept {
  switch (kind) {
    case obligation_kind::saved_activation: return "saved activation";
    case obligation_kind::recompute_frame: return "recompute frame";
    case obligation_kind::gathered_parameter: return "gathered parameter";
    case obligation_kind::weight_gradient: return "weight-gradient job";
    case obligation_kind::dispatched_tokens: return "dispatched tokens";
    case obligation_kind::combined_tokens: return "combined tokens";
    case obligation_kind::returning_gradients: return "returning expert gradients";
    case obligation_kind::pending_collective: return "pending collective";
    case obligation_kind::transfer: return "send or receive";
    case obligation_kind::offload_copy: return "offload copy";
    case obligation_kind::owed_backward: return "owed backward";
  }
  return "obligation";
}

/// The action that is missing, in words, for messages about an open obligation of this kind.
[[nodiscard]] constexpr const char* remedy(obligation_kind kind) noexcept {
  switch (kind) {
    case obligation_kind::saved_activation: return "its backward was never called";
    case obligation_kind::recompute_frame: return "its recompute was not followed by a backward";
    case obligation_kind::gathered_parameter: return "it was never resharded";
    case obligation_kind::weight_gradient: return "its weight gradient was never computed";
    case obligation_kind::dispatched_tokens: return "they were never combined";
    case obligation_kind::combined_tokens: return "their backward was never called";
    case obligation_kind::returning_gradients: return "they were never finished";
    case obligation_kind::pending_collective: return "it was never waited for";
    case obligation_kind::transfer: return "it was never completed";
    case obligation_kind::offload_copy: return "its copy was never awaited";
    case obligation_kind::owed_backward: return "it was never discharged";
  }
  return "it was never discharged";
}

/// One obligation. `layer` points to a name that outlives the step. `shape` is that of the output, or of what was sent,
/// in elements; its first `rank` entries are meaningful. `bytes` are all that the handle holds.
struct obligation {
  /// The kind of what is owed; the members after it say by whom and from where: layer with index and name, micro-batch,
  /// bytes, shape of the output, site.
  obligation_kind kind = obligation_kind::saved_activation;
  std::uint8_t rank = 0;
  std::uint32_t parent = 0;  // ledger index of the invocation that a recompute repeats; 0: none
  std::size_t layer_index = 0;
  std::size_t micro_batch = 0;
  std::size_t bytes = 0;
  std::array<std::size_t, 4> shape{};
  const char* layer = "";
  where opened_at;

  /// "saved activation of layer 5 'head' (micro-batch 3, 4x128x256, holds 1048576 bytes) opened at train.cpp:88: its
  /// backward was never called"
  [[nodiscard]] std::string text() const {
    std::string out = std::string(name(kind)) + " of layer " + std::to_string(layer_index) + " '" + printable(layer) +
                      "' (micro-batch " + std::to_string(micro_batch) + ", ";
    for (std::uint8_t axis = 0; axis < rank; ++axis) {
      if (axis > 0) out += 'x';
      out += std::to_string(shape[axis]);
    }
    if (rank > 0) out += ", ";
    return out + "holds " + std::to_string(bytes) + " bytes) opened at " + opened_at.text() + ": " + remedy(kind);
  }
};

}  // namespace belay::inline BELAY_ABI
