// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part of the model as a pipeline stage: it runs layers, and keeps their handles between forward and
// backward. Memory for the handles is allocated at the start.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "belay/core/view.hpp"
#include "belay/step.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

template <class T, class Engine, class Model>
class model_stage {
 public:
  using hidden_view = belay::view<const T, 3>;
  using token_view = belay::view<const std::int32_t, 2>;
  using scope_type = belay::micro_batch_scope<Engine>;

  model_stage(Model& model, recompute_kind recompute, std::size_t micro_batches)
      : model_(&model),
        recompute_(recompute),
        flights_(micro_batches),
        embeddings_(micro_batches),
        layers_(recompute == recompute_kind::full ? 0 : micro_batches * model.layers().size()),
        checkpointed_layers_(recompute == recompute_kind::full ? micro_batches * model.layers().size() : 0),
        heads_(micro_batches) {
    for (auto& layer : model.layers()) checkpointed_.emplace_back(layer);
    loss_sums_.resize(micro_batches);
    loss_scales_.assign(micro_batches, 1.0);
  }

  /// The slice of the batch that the next steps train on; alive until they are over.
  void set_batch(const batch& data) noexcept { data_ = data; }
  /// The factor of a micro-batch's loss gradient, beside the division by all targets; 1 at first.
  void set_loss_scale(std::size_t micro_batch, double scale) noexcept { loss_scales_[micro_batch] = scale; }

  /// Cross-entropy summed over the targets of each micro-batch, where the stage has the head.
  [[nodiscard]] std::span<const double> loss_sums() const noexcept { return loss_sums_; }

  /// A step that ended early has reclaimed what its handles held.
  void forget() noexcept {
    for (flight& one : flights_) one.gradient.reset();
    embeddings_.forget();
    layers_.forget();
    checkpointed_layers_.forget();
    heads_.forget();
  }

  void forward(const scope_type& scope, hidden_view input) {
    const std::size_t micro_batch = scope.micro_batch();
    hidden_view x = input;
    if (model_->has_embedding()) {
      embeddings_.keep(micro_batch, belay::forward(scope, model_->first(), tokens(micro_batch)));
      x = embeddings_.at(micro_batch).out();
    }
    for (std::size_t i = 0; i < checkpointed_.size(); ++i) {
      const std::size_t slot = slot_of(micro_batch, i);
      if (recompute_ == recompute_kind::full) {
        checkpointed_layers_.keep(slot, belay::forward(scope, checkpointed_[i], x));
        x = checkpointed_layers_.at(slot).out();
      } else {
        layers_.keep(slot, belay::forward(scope, model_->layers()[i], x));
        x = layers_.at(slot).out();
      }
    }
    flights_[micro_batch].output = x;
    if (model_->has_head()) heads_.keep(micro_batch, belay::forward(scope, model_->last(), x));
  }

  [[nodiscard]] hidden_view output(std::size_t micro_batch) const noexcept { return flights_[micro_batch].output; }
  [[nodiscard]] hidden_view input_gradient(std::size_t micro_batch) const noexcept {
    return *flights_[micro_batch].gradient;
  }
  void release(std::size_t micro_batch) noexcept { flights_[micro_batch].gradient.reset(); }

  void backward(const scope_type& scope, hidden_view dout) {
    const std::size_t micro_batch = scope.micro_batch();
    flight& one = flights_[micro_batch];
    if (heads_.holds(micro_batch)) {
      one.gradient.emplace(head_backward(scope));
      dout = *one.gradient;
    }
    for (std::size_t i = checkpointed_.size(); i-- > 0;) {
      const std::size_t slot = slot_of(micro_batch, i);
      one.gradient.emplace(recompute_ == recompute_kind::full ? checkpointed_layers_.take(slot).backward(dout)
                                                              : layers_.take(slot).backward(dout));
      dout = *one.gradient;
    }
    if (embeddings_.holds(micro_batch)) {
      embeddings_.take(micro_batch).backward(dout);
    }
  }

 private:
  using layer_type = typename Model::layer_type;
  using checkpointed_type = belay::recompute<layer_type>;
  using embedding_handle = belay::saved<Engine, typename Model::embedding_type, token_view>;
  using layer_handle = belay::saved<Engine, layer_type, hidden_view>;
  using checkpointed_handle = belay::saved<Engine, checkpointed_type, hidden_view>;
  using head_handle = belay::saved<Engine, typename Model::head_type, hidden_view>;

  // What crosses to the stages beside, of one micro-batch between its forward and its backward.
  struct flight {
    std::optional<belay::gradient<Engine, T, 3>> gradient;
    hidden_view output;
  };

  [[nodiscard]] std::size_t slot_of(std::size_t micro_batch, std::size_t layer) const noexcept {
    return micro_batch * checkpointed_.size() + layer;
  }
  [[nodiscard]] token_view tokens(std::size_t micro_batch) const {
    return belay::view<const std::int32_t, 3>(data_.tokens)[micro_batch];
  }
  [[nodiscard]] token_view targets(std::size_t micro_batch) const {
    return belay::view<const std::int32_t, 3>(data_.targets)[micro_batch];
  }

  // The loss and its gradient are one pass over the logits, so they are computed together.
  [[nodiscard]] auto head_backward(const scope_type& scope) {
    auto head = heads_.take(scope.micro_batch());
    const belay::view<const T, 3> logits = head.out();
    belay::gradient<Engine, T, 3> dlogits{scope.engine(), logits.shape()};
    scope.engine().compute().run([&] {
      loss_sums_[scope.micro_batch()] = model::cross_entropy<T>(logits, targets(scope.micro_batch()),
                                                                loss_scales_[scope.micro_batch()], dlogits.values());
    });
    return std::move(head).backward(dlogits);
  }

  Model* model_;
  recompute_kind recompute_;
  std::vector<checkpointed_type> checkpointed_;
  std::vector<flight> flights_;
  belay::handle_store<embedding_handle> embeddings_;
  belay::handle_store<layer_handle> layers_;
  belay::handle_store<checkpointed_handle> checkpointed_layers_;
  belay::handle_store<head_handle> heads_;
  std::vector<double> loss_sums_;
  std::vector<double> loss_scales_;
  batch data_;
};

}  // namespace train_moe
