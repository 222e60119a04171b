// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What layers keep from their forward to their backward, by a formula: that of the layers in examples/model, whose
// attention keeps no scores, with dense networks, shared experts and latents beside them. It stands for models that
// train_moe cannot rehearse, and for searches; it is an estimate.
#pragma once

#include <algorithm>
#include <cmath>

#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/setting.hpp"

namespace belay_plan {

/// Bytes of one micro-batch on one rank.
class activation_formula {
 public:
  activation_formula(const architecture& model, const setting& run) noexcept
      : model_(&model),
        run_(&run),
        rows_(real(run.rows())),
        value_(real(run.value_bytes())),
        hidden_(real(model.hidden)),
        capacity_(capacity(model, run)) {}

  /// One tensor between layers, which is what is computed with, and one on its way to another stage.
  [[nodiscard]] double boundary() const noexcept { return number * hidden_ * rows_; }
  [[nodiscard]] double sent() const noexcept { return value_ * hidden_ * rows_; }
  /// Bytes that a layer keeps, its output included.
  [[nodiscard]] double kept(count layer) const noexcept {
    if (run_->recompute == recompute_kind::full) return boundary() + remembered(layer);
    return attention_kept(run_->recompute) + feed_forward_kept(layer);
  }
  /// Rows for experts, and what these put out, until the backward; of a layer whose forward runs again, none.
  [[nodiscard]] double windows_kept(count layer) const noexcept {
    return run_->recompute == recompute_kind::full ? 0 : 2 * window(layer);
  }
  /// And while a layer's backward runs: gradients of rows, and rows that a forward which runs again has.
  [[nodiscard]] double windows_of_backward(count layer) const noexcept {
    return (run_->recompute == recompute_kind::full ? 3 : 1) * window(layer);
  }
  /// Bytes that a backward has beside what is kept: gradients of its output and input, what runs again, and scratch.
  /// The feed-forward part gives back what it has kept before the attention's backward.
  [[nodiscard]] double backward(count layer) const noexcept {
    const double normed = number * hidden_ * rows_, gradients = 2 * boundary() + normed;
    const double of_attention = attention_kept(recompute_kind::none) - boundary();
    const double given_back = feed_forward_kept(layer) - boundary();
    const double first = feed_forward_scratch(layer), second = attention_scratch();
    switch (run_->recompute) {
      case recompute_kind::none: return gradients + std::max(first, second - given_back + 2 * boundary());
      case recompute_kind::selective:
        return gradients + std::max(first, second - given_back + of_attention + normed + boundary());
      case recompute_kind::full:
        return gradients +
               std::max({of_attention + given_back + boundary() + forward_scratch(layer),
                         of_attention + given_back + boundary() + normed + first, of_attention + normed + second});
    }
    return 0;
  }
  /// Logits, which the head keeps, and a number for each row.
  [[nodiscard]] double head_kept() const noexcept { return number * rows_ * (real(model_->vocabulary) + 1); }
  /// Their gradient, and what the backward of the head has in scratch. It rounds the gradient into the logits' memory.
  [[nodiscard]] double head_backward() const noexcept {
    return number * rows_ * real(model_->vocabulary) + boundary() + value_ * hidden_ * rows_;
  }

 private:
  static constexpr double number = 4;  // bytes of what is computed with
  // A copy that products read, of what stays a number beside it.
  [[nodiscard]] double rounded(double numbers) const noexcept { return value_ < number ? value_ * numbers : 0; }
  [[nodiscard]] static double real(count value) noexcept { return static_cast<double>(value); }

  // As train_moe plans them: over the balanced number, but no more than can come.
  [[nodiscard]] static double capacity(const architecture& model, const setting& run) noexcept {
    if (!model.has_experts()) return 0;
    const count local = model.mixture.experts / run.expert_ranks();
    const double tokens = real(run.micro_batch_size) * real(run.sequence);
    const double balanced = std::ceil(tokens * real(model.mixture.experts_per_token) / real(run.expert_ranks()));
    return std::min(std::floor(balanced * run.expert_capacity),
                    tokens * real(std::min(model.mixture.experts_per_token, local)));
  }
  [[nodiscard]] double window(count layer) const noexcept {
    return model_->feed_forward(layer).experts == 0 ? 0 : capacity_ * hidden_ * value_;
  }

  [[nodiscard]] double attention_kept(recompute_kind how) const noexcept {
    if (how == recompute_kind::selective) return boundary();
    const attention_part& part = model_->attention;
    const count widths = part.query_width + part.key_width + part.value_width + part.context_width + part.latent_width;
    return boundary() + rows_ * (value_ * real(widths) + number * (real(part.heads) + 1));
  }
  // A router's probabilities, weights, choices and places.
  [[nodiscard]] double routing(const feed_forward_part& part) const noexcept {
    return rows_ * (number * real(part.experts) + 3 * number * real(part.experts_per_token));
  }
  [[nodiscard]] double remembered(count layer) const noexcept {
    const feed_forward_part& part = model_->feed_forward(layer);
    return part.experts == 0 ? 0 : routing(part);
  }
  [[nodiscard]] double feed_forward_kept(count layer) const noexcept {
    const feed_forward_part& part = model_->feed_forward(layer);
    const double projections = real(part.matrices - 1);
    const double common = boundary() + number * rows_;
    if (part.experts == 0) return common + value_ * projections * real(part.width) * rows_;
    return common + routing(part) +
           value_ * projections * (real(part.width) * capacity_ + real(part.shared_width) * rows_);
  }
  [[nodiscard]] double feed_forward_scratch(count layer) const noexcept {
    const feed_forward_part& part = model_->feed_forward(layer);
    if (part.experts == 0) return value_ * (real(part.width) + hidden_) * rows_;
    const double inside = value_ * real(part.width) * capacity_, shared = value_ * real(part.shared_width) * rows_;
    const double normed = value_ * hidden_ * rows_ + rounded(rows_ * real(part.experts));
    return std::max({inside, normed, shared}) + rows_ * number * real(part.experts + part.experts_per_token);
  }
  [[nodiscard]] double forward_scratch(count layer) const noexcept {
    const feed_forward_part& part = model_->feed_forward(layer);
    const double inside = value_ * real(part.width) * (part.experts == 0 ? rows_ : capacity_);
    return rows_ * (value_ * hidden_ + number * real(part.experts)) + inside;
  }
  [[nodiscard]] double attention_scratch() const noexcept {
    const attention_part& part = model_->attention;
    const double packed = rows_ * real(part.query_width + part.key_width + part.value_width);
    const double context = rows_ * real(part.context_width), scores = 2 * 64 * real(run_->sequence);
    return value_ * rows_ * hidden_ + number * (packed + context + scores) + rounded(packed);
  }

  const architecture* model_;
  const setting* run_;
  double rows_, value_, hidden_, capacity_;
};

}  // namespace belay_plan
