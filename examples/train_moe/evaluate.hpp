// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Evaluation of a trained model on its training mesh: the mean cross-entropy of a text, and a sample. Micro-batches
// cross the stages one by one, and a rank without sequences takes part with none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

/// Cross-entropy of `text` in windows of `length` tokens without overlap; the last one may be shorter, one of
/// fewer than 2 tokens is dropped. Collective over the world; every rank gets the same sums, folded window by
/// window, so that the mesh does not change them by more than the model's own rounding.
template <class Trainer>
[[nodiscard]] belay::evaluation evaluate(Trainer& trainer, std::span<const std::int32_t> text, std::size_t length) {
  const auto& mesh = trainer.mesh();
  const auto data = static_cast<std::size_t>(mesh.shape().data);
  const auto expert = static_cast<std::size_t>(mesh.shape().expert);
  const auto own =
      static_cast<std::size_t>(mesh.coordinate().data) * expert + static_cast<std::size_t>(mesh.coordinate().expert);
  const text_windows cut{text.size(), length};
  const std::size_t full = cut.full(), rest = cut.rest();
  std::vector<double> losses(full + 1, 0.0);
  const auto run_round = [&](std::size_t first_window, std::size_t windows, std::size_t tokens) {
    const belay::view<const std::int32_t, 2> input{text.data() + first_window * length, {windows, tokens}};
    std::vector<std::int32_t> targets(tokens);
    observe(trainer, input, [&](auto logits) {
      for (std::size_t w = 0; w < windows; ++w) {
        next_token_targets(input[w].flat(), targets);
        losses[first_window + w] =
            model::cross_entropy(logits.rows(w, 1), belay::view<const std::int32_t, 2>{targets.data(), {1, tokens}});
      }
    });
  };
  // A round gives every expert group up to `most` windows, in order, divided among its ranks.
  const std::size_t most = evaluation_sequences(trainer);
  const auto pipeline = static_cast<std::size_t>(mesh.coordinate().data);
  static_cast<void>(belay::evaluate(trainer.run(), mesh, [&] {
    for (std::size_t begin = 0; begin < full; begin += most * data) {
      const std::size_t first = std::min(full, begin + pipeline * most);
      const std::size_t count = std::min(full, first + most) - first;
      const auto part = belay::even_part(count, expert, static_cast<std::size_t>(mesh.coordinate().expert));
      run_round(first + part.first, part.count, length);
    }
    if (rest > 0) run_round(full, own == 0 ? 1 : 0, rest);
  }));
  mesh.control().all_reduce(std::span<double>(losses), belay::sum);
  belay::evaluation out{0, cut.targets()};
  for (double loss : losses) out.loss += loss;
  return out;
}

/// Continues `prompt` by `count` bytes drawn from the model at `temperature`, with a context of at most `length`
/// tokens. The draws depend on `seed` alone. Collective over the world; every rank gets the text.
template <class Trainer>
[[nodiscard]] std::string sample(Trainer& trainer, std::string_view prompt, std::size_t count, std::size_t length,
                                 double temperature, std::uint64_t seed) {
  const auto& mesh = trainer.mesh();
  const bool speaks = mesh.coordinate().data == 0 && mesh.coordinate().expert == 0;
  const int last = belay::rank_at(mesh.shape(), {mesh.shape().pipeline - 1, 0, 0, 0});
  std::vector<std::int32_t> text;
  for (char c : prompt) text.push_back(static_cast<unsigned char>(c));
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t context = std::min(length, text.size());
    const belay::view<const std::int32_t, 2> input{text.data() + (text.size() - context),
                                                   {speaks ? std::size_t{1} : 0, context}};
    std::int32_t next[1] = {0};
    const auto draw = [&]<class T>(belay::view<const T, 3> logits) {
      if (logits.extent(0) == 0) return;
      const std::size_t bytes = std::min<std::size_t>(256, logits.extent(2));
      const T* row = &logits(0, context - 1, 0);
      const T largest = *std::max_element(row, row + bytes);
      double total = 0;
      for (std::size_t b = 0; b < bytes; ++b)
        total += std::exp((static_cast<double>(row[b]) - static_cast<double>(largest)) / temperature);
      std::uint64_t hash = (seed + i + 1) * 0x9e3779b97f4a7c15U;
      hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
      hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebU;
      double left = static_cast<double>((hash ^ (hash >> 31U)) >> 11U) / 9007199254740992.0 * total;
      for (std::size_t b = 0; b < bytes; ++b) {
        next[0] = static_cast<std::int32_t>(b);
        left -= std::exp((static_cast<double>(row[b]) - static_cast<double>(largest)) / temperature);
        if (left < 0) break;
      }
    };
    static_cast<void>(belay::evaluate(trainer.run(), mesh, [&] { observe(trainer, input, draw); }));
    mesh.control().broadcast(std::span<std::int32_t>(next), last);
    text.push_back(next[0]);
  }
  std::string out;
  for (std::int32_t token : text) out += static_cast<char>(token);
  return out;
}

}  // namespace train_moe
