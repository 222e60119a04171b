// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part of the model as a pipeline stage: it runs layers, and keeps their handles between forward and
// backward. Memory for the handles is allocated at the start.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "belay/core/view.hpp"
#include "belay/step.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// `Contributed(first_parameter, count, micro_batch)` is called when a backward has added to parameters
/// [first_parameter, first_parameter + count) of the stage.
template <class T, class Engine, class Model, class Contributed>
class model_stage {
 public:
  using hidden_view = belay::view<const T, 3>;
  using token_view = belay::view<const std::int32_t, 2>;
  using scope_type = belay::micro_batch_scope<Engine>;

  model_stage(Model& model, recompute_kind recompute, std::size_t micro_batches, Contributed contributed)
      : model_(&model), contributed_(std::move(contributed)), flights_(micro_batches) {
    for (auto& layer : model.layers()) checkpointed_.emplace_back(layer);
    for (flight& one : flights_) one.layers.resize(recompute == recompute_kind::full ? 0 : checkpointed_.size());
    for (flight& one : flights_) one.checkpointed.resize(recompute == recompute_kind::full ? checkpointed_.size() : 0);
    loss_sums_.resize(micro_batches);
    loss_scales_.assign(micro_batches, 1.0);
    count_parameters();
  }

  /// The slice of the batch that the next steps train on; alive until they are over.
  void set_batch(const batch& data) noexcept { data_ = data; }
  /// The factor of a micro-batch's loss gradient, beside the division by all targets; 1 at first.
  void set_loss_scale(std::size_t micro_batch, double scale) noexcept { loss_scales_[micro_batch] = scale; }

  /// Cross-entropy summed over the targets of each micro-batch, where the stage has the head.
  [[nodiscard]] std::span<const double> loss_sums() const noexcept { return loss_sums_; }

  /// A step that ended early has reclaimed what its handles held.
  void forget() noexcept {
    for (flight& one : flights_) {
      one.embedding.reset();
      one.head.reset();
      one.gradient.reset();
      for (auto& layer : one.layers) layer.reset();
      for (auto& layer : one.checkpointed) layer.reset();
    }
  }

  void forward(const scope_type& scope, hidden_view input) {
    flight& one = flights_[scope.micro_batch()];
    hidden_view x = input;
    if (model_->has_embedding()) {
      one.embedding.emplace(belay::forward(scope, model_->first(), tokens(scope.micro_batch())));
      x = one.embedding->out();
    }
    for (std::size_t i = 0; i < one.layers.size(); ++i) {
      one.layers[i].emplace(belay::forward(scope, model_->layers()[i], x));
      x = one.layers[i]->out();
    }
    for (std::size_t i = 0; i < one.checkpointed.size(); ++i) {
      one.checkpointed[i].emplace(belay::forward(scope, checkpointed_[i], x));
      x = one.checkpointed[i]->out();
    }
    one.output = x;
    if (model_->has_head()) one.head.emplace(belay::forward(scope, model_->last(), x));
  }

  [[nodiscard]] hidden_view output(std::size_t micro_batch) const noexcept { return flights_[micro_batch].output; }
  [[nodiscard]] hidden_view input_gradient(std::size_t micro_batch) const noexcept {
    return *flights_[micro_batch].gradient;
  }
  void release(std::size_t micro_batch) noexcept { flights_[micro_batch].gradient.reset(); }

  void backward(const scope_type& scope, hidden_view dout) {
    const std::size_t micro_batch = scope.micro_batch();
    flight& one = flights_[micro_batch];
    if (one.head) {
      one.gradient.emplace(head_backward(scope, one));
      contributed_(head_first_, head_count_, micro_batch);
      dout = *one.gradient;
    }
    for (std::size_t i = checkpointed_.size(); i-- > 0;) {
      auto dx = one.layers.empty() ? std::move(*one.checkpointed[i]).backward(dout)
                                   : std::move(*one.layers[i]).backward(dout);
      one.gradient.emplace(std::move(dx));
      if (one.layers.empty())
        one.checkpointed[i].reset();
      else
        one.layers[i].reset();
      contributed_(layer_first_[i], layer_first_[i + 1] - layer_first_[i], micro_batch);
      dout = *one.gradient;
    }
    if (one.embedding) {
      std::move(*one.embedding).backward(dout);
      one.embedding.reset();
      contributed_(std::size_t{0}, layer_first_[0], micro_batch);
    }
  }

 private:
  using layer_type = typename Model::layer_type;
  using checkpointed_type = belay::recompute<layer_type>;
  using embedding_handle = belay::saved<Engine, typename Model::embedding_type, token_view>;
  using layer_handle = belay::saved<Engine, layer_type, hidden_view>;
  using checkpointed_handle = belay::saved<Engine, checkpointed_type, hidden_view>;
  using head_handle = belay::saved<Engine, typename Model::head_type, hidden_view>;

  // The handles of one micro-batch between its forward and its backward.
  struct flight {
    std::optional<embedding_handle> embedding;
    std::vector<std::optional<layer_handle>> layers;
    std::vector<std::optional<checkpointed_handle>> checkpointed;
    std::optional<head_handle> head;
    std::optional<belay::gradient<Engine, T, 3>> gradient;
    hidden_view output;
  };

  [[nodiscard]] token_view tokens(std::size_t micro_batch) const {
    return belay::view<const std::int32_t, 3>(data_.tokens)[micro_batch];
  }
  [[nodiscard]] token_view targets(std::size_t micro_batch) const {
    return belay::view<const std::int32_t, 3>(data_.targets)[micro_batch];
  }

  // The loss and its gradient are one pass over the logits, so they are computed together.
  [[nodiscard]] auto head_backward(const scope_type& scope, flight& one) {
    const belay::view<const T, 3> logits = one.head->out();
    belay::gradient<Engine, T, 3> dlogits{scope.engine(), logits.shape()};
    scope.engine().compute().run([&] {
      loss_sums_[scope.micro_batch()] = model::cross_entropy<T>(logits, targets(scope.micro_batch()),
                                                                loss_scales_[scope.micro_batch()], dlogits.values());
    });
    auto dx = std::move(*one.head).backward(dlogits);
    one.head.reset();
    return dx;
  }

  void count_parameters() {
    std::size_t count = 0;
    const auto counter = [&](auto&) { ++count; };
    if (model_->has_embedding()) model_->first().for_each_parameter(counter);
    for (auto& layer : model_->layers()) {
      layer_first_.push_back(count);
      layer.for_each_parameter(counter);
    }
    layer_first_.push_back(count);
    head_first_ = count;
    if (model_->has_head()) model_->last().for_each_parameter(counter);
    head_count_ = count - head_first_;
  }

  Model* model_;
  Contributed contributed_;
  std::vector<checkpointed_type> checkpointed_;
  std::vector<flight> flights_;
  std::vector<double> loss_sums_;
  std::vector<double> loss_scales_;
  std::vector<std::size_t> layer_first_;
  std::size_t head_first_ = 0;
  std::size_t head_count_ = 0;
  batch data_;
};

}  // namespace train_moe
