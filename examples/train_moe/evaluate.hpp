// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Evaluation of a trained model on its training mesh: the mean cross-entropy of a text. Micro-batches cross the stages
// one by one, and a rank without sequences takes part with none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/view.hpp"
#include "belay/kernel/losses.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/step.hpp"
#include "belay/train/evaluate.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/staged.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/corpus.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// Sequences of full length that an expert group can evaluate at once whatever their routing: the capacity holds them
/// even if every token chooses experts of the same rank. At least 1, at most a training micro-batch.
template <class Trainer>
[[nodiscard]] std::size_t evaluation_sequences(Trainer& trainer) {
  const auto& shape = trainer.exchange().shape();
  const options& settings = trainer.settings();
  const std::size_t choices = std::min(settings.model.experts_per_token, shape.local());
  return std::clamp<std::size_t>(shape.capacity / (choices * settings.sequence), 1, settings.micro_batch_size);
}

/// The logits of `tokens` [sequences, length], memory that kernels read: `see(pass, logits)` is called where the last
/// stage is, and queues what it does with them. What is queued is over when it returns. Collective: ranks of one
/// pipeline give the same shape, those of one expert group may give different numbers of sequences.
template <class Trainer, class See>
void observe(Trainer& trainer, belay::view<const std::int32_t, 2> tokens, See&& see) {
  belay::forward_only pass{trainer.run().engine(), trainer.exchange()};
  trainer.pipeline().observe(pass, trainer.stages(), tokens, [&](auto logits) { see(pass, logits); });
}

/// Cross-entropy of a text in windows of `length` tokens without overlap; the last one may be shorter, one of fewer
/// than 2 tokens is dropped. Its memory is made once, by a rehearsal too.
template <class Trainer>
class text_evaluation {
 public:
  using run_type = typename Trainer::run_type;

  /// `text` outlives it.
  text_evaluation(Trainer& trainer, std::span<const std::int32_t> text, std::size_t length)
      : trainer_(&trainer),
        text_(text),
        length_(length),
        tokens_(trainer.run(), trainer.settings().micro_batch_size * length, "evaluation"),
        targets_(trainer.run(), tokens_.size(), "evaluation"),
        losses_(trainer.run(), text_windows{most_evaluated_bytes, length}.full() + 1, "evaluation") {}

  /// Leases what the largest evaluation does.
  void rehearse() {
    const auto ranks = static_cast<std::size_t>(trainer_->mesh().shape().expert);
    observe_windows(0, (evaluation_sequences(*trainer_) + ranks - 1) / ranks, length_);
  }

  /// Collective over the world, between steps; every rank gets the same sums, folded window by window, so that the mesh
  /// does not change them by more than the model's own rounding.
  [[nodiscard]] belay::evaluation run() {
    const auto& mesh = trainer_->mesh();
    const auto data = static_cast<std::size_t>(mesh.shape().data);
    const auto expert = static_cast<std::size_t>(mesh.shape().expert);
    const auto rank = static_cast<std::size_t>(mesh.coordinate().expert);
    const auto pipeline = static_cast<std::size_t>(mesh.coordinate().data);
    const text_windows cut{text_.size(), length_};
    const std::size_t full = cut.full(), rest = cut.rest();
    losses_.write([](std::span<double> all) { std::fill(all.begin(), all.end(), 0.0); });
    // A round gives every expert group up to `most` windows, in order, divided among its ranks.
    const std::size_t most = evaluation_sequences(*trainer_);
    static_cast<void>(belay::evaluate(trainer_->run(), mesh, [&] {
      for (std::size_t begin = 0; begin < full; begin += most * data) {
        const std::size_t first = std::min(full, begin + pipeline * most);
        const auto part = belay::even_part(std::min(full, first + most) - first, expert, rank);
        observe_windows(first + part.first, part.count, length_);
      }
      if (rest > 0) observe_windows(full, pipeline == 0 && rank == 0 ? 1 : 0, rest);
    }));
    losses_.fetch();
    const std::span<double> losses = losses_.values();
    mesh.control().all_reduce(losses, belay::sum);
    belay::evaluation out{0, cut.targets()};
    for (double loss : losses) out.loss += loss;
    return out;
  }

 private:
  // The loss of each of these windows, which have `length` tokens.
  void observe_windows(std::size_t first_window, std::size_t windows, std::size_t length) {
    tokens_.write([&](std::span<std::int32_t> tokens) {
      targets_.write([&](std::span<std::int32_t> targets) {
        std::copy_n(text_.begin() + static_cast<std::ptrdiff_t>(first_window * length_), windows * length,
                    tokens.begin());
        for (std::size_t w = 0; w < windows; ++w)
          next_token_targets(tokens.subspan(w * length, length), targets.subspan(w * length, length));
      });
    });
    const belay::view<const std::int32_t, 2> input{tokens_.data(), {windows, length}};
    observe(*trainer_, input, [&]<class T>(const auto& pass, belay::view<const T, 3> logits) {
      using loss_type = belay::kernel::noted_cross_entropy<T>;
      for (std::size_t w = 0; w < windows; ++w)
        belay::queue_loss(pass.engine(),
                          belay::kernel::kept_loss<loss_type>{{{logits.rows(w, 1).data(), targets_.data() + w * length,
                                                                nullptr, nullptr, logits.extent(2), 0},
                                                               length},
                                                              losses_.data() + first_window + w});
    });
  }

  Trainer* trainer_;
  std::span<const std::int32_t> text_;
  std::size_t length_;
  belay::staged<std::int32_t, run_type> tokens_, targets_;
  belay::staged<double, run_type> losses_;  // by window
};

}  // namespace train_moe
