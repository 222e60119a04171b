// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A language model as sizes: how many parameters stand where, and how wide what flows through is. All that a plan needs
// of a model without running it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace belay_plan {

using count = std::uint64_t;

/// Attention of a layer. Widths are numbers a token.
struct attention_part {
  count parameters = 0;     // its matrices, and what biases and norms stand between them
  count largest = 0;        // matrix
  count query_width = 0;    // all heads' queries, as scores are made of them
  count key_width = 0;      // all keys that are kept: of shared heads once
  count value_width = 0;    // alike
  count context_width = 0;  // all heads' outputs
  count latent_width = 0;   // what is kept between two projections of one thing: DeepSeek's latents
  count heads = 0;
};

/// The part after the attention: one network for all tokens, or experts and what of them all tokens visit.
struct feed_forward_part {
  count width = 0;     // of the network, or of one expert
  count matrices = 3;  // 3: gate, up and down; 2: up and down
  count biases = 0;    // of the network
  count experts = 0;   // 0: one network
  count experts_per_token = 0;
  count shared_width = 0;  // of what every token visits besides
  count router_parameters = 0;
};

/// A table for tokens that the head uses too, or a projection of its own.
enum class head_kind { own, tied };

struct architecture {
  std::string name;  // as it was asked for: a preset, or a file
  std::string type;  // model_type
  count vocabulary = 0, hidden = 0, layers = 0;
  count positions = 0;            // the longest sequence
  count position_parameters = 0;  // of a table for positions
  count norm_parameters = 0;      // of one norm
  head_kind head = head_kind::own;
  attention_part attention;
  feed_forward_part dense, mixture;  // of layers without experts, and with
  count first_mixture = 0;           // layers before it have no experts; `layers` where none has
  count mixture_every = 1;           // of the others
  std::string left_out;              // what is in the published file and not counted; empty: nothing

  [[nodiscard]] bool is_mixture(count layer) const noexcept {
    return layer >= first_mixture && layer % mixture_every == 0;
  }
  [[nodiscard]] const feed_forward_part& feed_forward(count layer) const noexcept {
    return is_mixture(layer) ? mixture : dense;
  }
  [[nodiscard]] bool has_experts() const noexcept { return first_mixture < layers; }
  [[nodiscard]] count most_experts() const noexcept { return has_experts() ? mixture.experts : 0; }
};

/// Parameters of one expert.
[[nodiscard]] inline count expert_parameters(const architecture& of) noexcept {
  return of.mixture.matrices * of.hidden * of.mixture.width;
}
/// Elements that all tokens of a layer visit beside its attention, norms excepted.
[[nodiscard]] inline count visited_by_all(const architecture& of, count layer) noexcept {
  const feed_forward_part& part = of.feed_forward(layer);
  if (part.experts == 0) return part.matrices * of.hidden * part.width + part.biases;
  return part.matrices * of.hidden * part.shared_width + part.router_parameters;
}
[[nodiscard]] inline count embedding_parameters(const architecture& of) noexcept {
  return of.vocabulary * of.hidden + of.position_parameters;
}
/// Of the projection onto the vocabulary, where it is not the table of tokens.
[[nodiscard]] inline count head_parameters(const architecture& of) noexcept {
  return of.head == head_kind::own ? of.vocabulary * of.hidden : 0;
}
/// Of a layer, without routed experts.
[[nodiscard]] inline count dense_parameters(const architecture& of, count layer) noexcept {
  return of.attention.parameters + 2 * of.norm_parameters + visited_by_all(of, layer);
}

/// All parameters.
[[nodiscard]] inline count parameters_of(const architecture& of) noexcept {
  count all = embedding_parameters(of) + head_parameters(of) + of.norm_parameters;
  for (count layer = 0; layer < of.layers; ++layer)
    all += dense_parameters(of, layer) + of.feed_forward(layer).experts * expert_parameters(of);
  return all;
}
/// Of which a token visits so many.
[[nodiscard]] inline count active_parameters_of(const architecture& of) noexcept {
  count all = embedding_parameters(of) + head_parameters(of) + of.norm_parameters;
  for (count layer = 0; layer < of.layers; ++layer)
    all += dense_parameters(of, layer) + of.feed_forward(layer).experts_per_token * expert_parameters(of);
  return all;
}

}  // namespace belay_plan
