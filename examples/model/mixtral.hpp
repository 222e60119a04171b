// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A Mixtral, or a contiguous part of one: the embedding or not, some decoder layers, the head or not. The caller
// chooses the part, such as a pipeline stage.
#pragma once

#include <cstddef>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "model/decoder_layer.hpp"
#include "model/embedding.hpp"
#include "model/head.hpp"
#include "model/learning.hpp"
#include "model/rotary.hpp"

namespace model {

/// The architecture; the names of Hugging Face's config.json in comments where they differ.
struct mixtral_config {
  std::size_t vocab = 256;
  std::size_t hidden = 128;
  std::size_t expert_width = 256;  // intermediate_size
  std::size_t layers = 4;          // num_hidden_layers
  std::size_t heads = 4;           // num_attention_heads
  std::size_t kv_heads = 4;        // num_key_value_heads
  std::size_t head_dim = 32;
  std::size_t experts = 8;            // num_local_experts
  std::size_t experts_per_token = 2;  // num_experts_per_tok
  std::size_t positions = 128;        // max_position_embeddings: the longest sequence
  double rope_theta = 1e6;
  double norm_eps = 1e-5;  // rms_norm_eps

  [[nodiscard]] attention_shape attention() const { return {hidden, heads, kv_heads, head_dim}; }
  [[nodiscard]] moe_shape mixture() const { return {hidden, expert_width, experts, experts_per_token}; }
};

/// hidden 128, expert width 256, 4 layers, 4 heads, 8 experts.
[[nodiscard]] inline mixtral_config tiny() { return {}; }

/// hidden 256, expert width 512, 8 layers, 8 heads, 8 experts.
[[nodiscard]] inline mixtral_config small() {
  mixtral_config config;
  config.hidden = 256;
  config.expert_width = 512;
  config.layers = 8;
  config.heads = 8;
  config.kv_heads = 8;
  return config;
}

enum class with_embedding { no, yes };
enum class with_head { no, yes };

/// Layers `first_layer` to `first_layer + layer_count - 1` of a model, and what stands before and after them.
struct model_part {
  std::size_t first_layer = 0;
  std::size_t layer_count = 0;
  with_embedding embedding = with_embedding::no;
  with_head head = with_head::no;
  std::size_t index = 0;  // of the parts in order

  /// Everything.
  [[nodiscard]] static model_part whole(const mixtral_config& config) {
    return {0, config.layers, with_embedding::yes, with_head::yes};
  }
  /// Part `index` of those that follow each other with so many layers each: the first has the embedding, the last the
  /// head. Throws usage_error where they are not the model's layers.
  [[nodiscard]] static model_part of(const mixtral_config& config, std::size_t index,
                                     std::span<const std::size_t> layers) {
    const std::size_t all = std::accumulate(layers.begin(), layers.end(), std::size_t{0});
    if (index >= layers.size() || all != config.layers) {
      throw belay::usage_error(std::to_string(config.layers) + " layers cannot be divided into " +
                                   std::to_string(layers.size()) + " parts of " + std::to_string(all) + " together",
                               belay::where::current());
    }
    const std::size_t first =
        std::accumulate(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(index), std::size_t{0});
    return {first, layers[index], index == 0 ? with_embedding::yes : with_embedding::no,
            index + 1 == layers.size() ? with_head::yes : with_head::no, index};
  }
  /// Part `index` of `count`: the first (layers mod count) have one layer more.
  [[nodiscard]] static model_part of(const mixtral_config& config, std::size_t index, std::size_t count) {
    return of(config, index, even_layers(config.layers, count));
  }
  /// The layers of each of `count` parts, of which the first (layers mod count) have one more.
  [[nodiscard]] static std::vector<std::size_t> even_layers(std::size_t layers, std::size_t count) {
    std::vector<std::size_t> out(count);
    for (std::size_t part = 0; part < count; ++part) out[part] = layers / count + (part < layers % count ? 1 : 0);
    return out;
  }
};

/// It cannot be moved: lists of parameters and handles of a step point into it. `Parts` are those that are trained.
template <class T, class Exchange, class Parts = trains_all>
class mixtral {
 public:
  using embedding_type = embedding<T, typename Parts::embedding>;
  using layer_type = decoder_layer<T, Exchange, Parts>;
  using head_type = head<T>;

  /// `local` are the experts held of every layer; `exchange` outlives the model.
  mixtral(const mixtral_config& config, model_part part, expert_range local, Exchange& exchange)
      : config_(config), part_(part), positions_(config.positions, config.head_dim, config.rope_theta) {
    if (part.first_layer + part.layer_count > config.layers) {
      throw belay::usage_error("layers " + std::to_string(part.first_layer) + " to " +
                                   std::to_string(part.first_layer + part.layer_count) + " of a model of " +
                                   std::to_string(config.layers),
                               belay::where::current());
    }
    if (part.embedding == with_embedding::yes) {
      embedding_.emplace("model.embed_tokens.weight", config.vocab, config.hidden);
    }
    for (std::size_t i = 0; i < part.layer_count; ++i) {
      layers_.emplace_back(part.first_layer + i, config.attention(), config.mixture(), config.norm_eps, positions_,
                           local, exchange);
    }
    if (part.head == with_head::yes) {
      head_.emplace("model.norm.weight", "lm_head.weight", config.vocab, config.hidden, config.norm_eps);
    }
  }
  mixtral(const mixtral&) = delete;  // its parameters' addresses are known to plans and steps
  mixtral& operator=(const mixtral&) = delete;

  [[nodiscard]] const mixtral_config& config() const { return config_; }
  [[nodiscard]] const model_part& part() const { return part_; }

  [[nodiscard]] bool has_embedding() const { return embedding_.has_value(); }
  [[nodiscard]] bool has_head() const { return head_.has_value(); }
  /// Only where the part has one.
  [[nodiscard]] embedding_type& first() { return *embedding_; }
  [[nodiscard]] head_type& last() { return *head_; }
  [[nodiscard]] std::deque<layer_type>& layers() { return layers_; }

  /// The table that all layers read; over a device the caller gives it memory there.
  [[nodiscard]] rotary<T>& positions() { return positions_; }

  /// Whether every layer's attention is computed again in the backward. Between steps.
  void recompute_attention(belay::recomputes how) {
    for (layer_type& layer : layers_) layer.recompute_attention(how);
  }
  /// The factor of one layer's and one forward's load-balancing loss in the objective.
  void set_balance_scale(double scale) {
    for (layer_type& layer : layers_) layer.experts().set_balance_scale(scale);
  }

  /// Calls `visit(parameter)` for every parameter held, in the model's order; the types differ by placement.
  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    if (embedding_) embedding_->for_each_parameter(visit);
    for (layer_type& layer : layers_) layer.for_each_parameter(visit);
    if (head_) head_->for_each_parameter(visit);
  }

 private:
  mixtral_config config_;
  model_part part_;
  rotary<T> positions_;
  std::optional<embedding_type> embedding_;
  std::deque<layer_type> layers_;
  std::optional<head_type> head_;
};

}  // namespace model
