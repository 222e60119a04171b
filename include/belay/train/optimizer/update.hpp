// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What an update of AdamW is made with, and how much state it has.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/step/commit.hpp"

namespace belay::inline BELAY_ABI {

/// learning_rate, beta1, beta2, epsilon, and decay (of parameters made with weight_decay::yes).
using adamw_settings = kernel::adamw_settings;

/// The token of a committed step.
template <class Token>
concept committed_token = std::same_as<std::remove_cvref_t<Token>, committed_step>;

/// Reduced and divided gradients, which are moved.
template <class Gradients, class T>
concept gradients_to_apply = std::same_as<Gradients, reduced_gradients<T>>;

/// Elements of AdamW's state for every element of T that a rank owns: two moments, and a master copy where T is
/// narrower than its gradients.
template <class T>
inline constexpr std::size_t adamw_state_parts = rounds_gradients<T> ? 3 : 2;

/// Elements of AdamW's state for `layout` on a rank with number `rank_in_family[f]` in each family f.
template <class T = float>
[[nodiscard]] std::size_t adamw_state_elements(const bucket_layout& layout,
                                               std::span<const std::size_t> rank_in_family) {
  return adamw_state_parts<T> * layout.owned_elements(rank_in_family);
}

/// Whether shares of parameters or gradients lie in a lower tier.
[[nodiscard]] inline bool has_lower_shares(const bucket_layout& layout) {
  for (const family_shape& each : layout.families())
    if (each.values != tier::device || each.gradients != tier::device) return true;
  return false;
}

/// The settings that may change from step to step: equal on all ranks, which the next commit's vote compares.
struct update {
  /// The learning rate of this update.
  double learning_rate = 1e-3;
  double clip = infinite<double>;  // the largest norm of all gradients; larger ones are scaled
};

/// Throws usage_error for a rate that is below 0 or no number, and for a limit of the norm that is not above 0.
inline void check_update(const update& with, where at) {
  if (!is_finite(with.learning_rate) || with.learning_rate < 0)
    throw usage_error(
        "an update with the learning rate " + std::to_string(with.learning_rate) + ": it is a number from 0 on", at);
  if (is_nan(with.clip) || with.clip <= 0)
    throw usage_error("an update that clips the norm to " + std::to_string(with.clip) +
                          ": the limit is above 0, and infinity is none",
                      at);
}

}  // namespace belay::inline BELAY_ABI
