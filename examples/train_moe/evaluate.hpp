// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Evaluation of a trained model on its training mesh: the mean cross-entropy of a text. Micro-batches cross the stages
// one by one, and a rank without sequences takes part with none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/core/view.hpp"
#include "belay/device/memory.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/step.hpp"
#include "belay/train/evaluate.hpp"
#include "model/cross_entropy.hpp"
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

/// The logits of `tokens` [sequences, length], seen by `see` on the last stage. Collective: ranks of one pipeline give
/// the same shape, those of one expert group may give different numbers of sequences.
template <class Trainer, class See>
void observe(Trainer& trainer, belay::view<const std::int32_t, 2> tokens, See&& see) {
  belay::forward_only pass{trainer.run().engine(), trainer.exchange()};
  trainer.pipeline().observe(pass, trainer.stage(), tokens,
                             [&](auto logits) { pass.engine().run_on_host([&] { see(logits); }); });
}

/// Leases what the largest evaluation does.
template <class Trainer>
void rehearse_evaluation(Trainer& trainer, std::size_t length) {
  const auto ranks = static_cast<std::size_t>(trainer.mesh().shape().expert);
  const std::size_t sequences = (evaluation_sequences(trainer) + ranks - 1) / ranks;
  const belay::reserved_addresses tokens{sequences * length * sizeof(std::int32_t)};
  observe(trainer, {reinterpret_cast<std::int32_t*>(tokens.data()), {sequences, length}}, [](auto) {});
}

/// Cross-entropy of a text in windows of `length` tokens without overlap; the last one may be shorter, one of fewer
/// than 2 tokens is dropped. Its memory is made once.
template <class Trainer>
class text_evaluation {
 public:
  /// `text` outlives it.
  text_evaluation(Trainer& trainer, std::span<const std::int32_t> text, std::size_t length)
      : trainer_(&trainer), text_(text), length_(length), losses_(text_windows{text.size(), length}.full() + 1) {
    targets_.resize(length);
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
    std::fill(losses_.begin(), losses_.end(), 0.0);
    // A round gives every expert group up to `most` windows, in order, divided among its ranks.
    const std::size_t most = evaluation_sequences(*trainer_);
    static_cast<void>(belay::evaluate(trainer_->run(), mesh, [&] {
      for (std::size_t begin = 0; begin < full; begin += most * data) {
        const std::size_t first = std::min(full, begin + pipeline * most);
        const auto part = belay::even_part(std::min(full, first + most) - first, expert, rank);
        run_round(first + part.first, part.count, length_);
      }
      if (rest > 0) run_round(full, pipeline == 0 && rank == 0 ? 1 : 0, rest);
    }));
    mesh.control().all_reduce(std::span<double>(losses_), belay::sum);
    belay::evaluation out{0, cut.targets()};
    for (double loss : losses_) out.loss += loss;
    return out;
  }

 private:
  void run_round(std::size_t first_window, std::size_t windows, std::size_t tokens) {
    const belay::view<const std::int32_t, 2> input{text_.data() + first_window * length_, {windows, tokens}};
    const std::span<std::int32_t> targets(targets_.data(), tokens);
    observe(*trainer_, input, [&](auto logits) {
      for (std::size_t w = 0; w < windows; ++w) {
        next_token_targets(input[w].flat(), targets);
        losses_[first_window + w] =
            model::cross_entropy(logits.rows(w, 1), belay::view<const std::int32_t, 2>{targets.data(), {1, tokens}});
      }
    });
  }

  Trainer* trainer_;
  std::span<const std::int32_t> text_;
  std::size_t length_;
  std::vector<double> losses_;  // by window
  std::vector<std::int32_t> targets_;
};

}  // namespace train_moe
