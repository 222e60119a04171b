// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sampling on the training mesh, through the layers that train and without a key-value cache: every token costs a pass
// over its whole context. Every pipeline continues the prompt by a text of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/view.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/tier.hpp"
#include "belay/train/evaluate.hpp"
#include "belay/train/staged.hpp"
#include "train_moe/corpus.hpp"
#include "train_moe/evaluate.hpp"

namespace train_moe {

/// A byte drawn from the softmax of `logits` at `temperature`; `random` chooses.
template <class T>
[[nodiscard]] std::int32_t draw_byte(std::span<const T> logits, double temperature, std::uint64_t random) {
  const std::span<const T> bytes = logits.first(std::min<std::size_t>(256, logits.size()));
  const auto largest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
  const auto weight = [&](T logit) { return std::exp((static_cast<double>(logit) - largest) / temperature); };
  double total = 0;
  for (T logit : bytes) total += weight(logit);
  double left = static_cast<double>(random >> 11U) / 9007199254740992.0 * total;
  for (std::size_t b = 0; b < bytes.size(); ++b)
    if ((left -= weight(bytes[b])) < 0) return static_cast<std::int32_t>(b);
  return static_cast<std::int32_t>(bytes.size()) - 1;
}

/// How rollouts are drawn: the prompt, the context of at most `context` tokens, and the temperature.
struct rollout_settings {
  std::string_view prompt = "The ";
  std::size_t context = 128;
  double temperature = 0.8;
};

/// Draws texts. Its memory is made once, by a rehearsal too.
template <class Trainer>
class rollout {
 public:
  using run_type = typename Trainer::run_type;
  using logit_type = typename Trainer::logit_type;

  /// Of at most `most` tokens after the prompt.
  rollout(Trainer& trainer, const rollout_settings& settings, std::size_t most)
      : trainer_(&trainer),
        settings_(settings),
        tokens_(trainer.run(), settings.context, "sample"),
        logits_(trainer.run().template lease<logit_type>(belay::tier::host, trainer.settings().model.vocab, "sample")) {
    make_room(most);
  }
  /// The next texts may be so long.
  void make_room(std::size_t most) {
    text_.reserve(settings_.prompt.size() + most);
    bytes_.reserve(text_.capacity());
  }

  /// Pipeline d continues the prompt by `lengths[d]` tokens, whose draws depend on `seed` and d alone. Where a pass is
  /// of several ranks, those whose text is done take part until all are, without sequences. Collective over the world,
  /// between steps. Returns the text of this rank's pipeline on the pipeline's first rank, where it is the first of its
  /// expert group; it holds until the next call. Other ranks' bytes mean nothing.
  std::span<const char> run(std::span<const std::size_t> lengths, std::uint64_t seed) {
    const auto& mesh = trainer_->mesh();
    const auto own = static_cast<std::size_t>(mesh.coordinate().data);
    const bool draws = mesh.coordinate().expert == 0;
    const auto seed_of = [&](std::size_t i) {
      return corpus::mix(seed + own * 0xd1b54a32d192ed03U + i * 0x9e3779b97f4a7c15U);
    };
    begin_text();
    if (passes_alone()) {
      static_cast<void>(belay::evaluate(trainer_->run(), mesh, [&] {
        begin_text();
        for (std::size_t i = 0; i < lengths[own]; ++i) text_.push_back(drawn(1, seed_of(i)));
      }));
    } else {
      const std::size_t most = *std::max_element(lengths.begin(), lengths.end());
      for (std::size_t i = 0; i < most; ++i) {
        const bool goes_on = i < lengths[own];
        std::int32_t next = 0;
        static_cast<void>(
            belay::evaluate(trainer_->run(), mesh, [&] { next = drawn(draws && goes_on ? 1 : 0, seed_of(i)); }));
        if (!goes_on) continue;
        if (draws) tell(next);
        text_.push_back(next);
      }
    }
    bytes_.assign(text_.size(), ' ');
    std::transform(text_.begin(), text_.end(), bytes_.begin(), [](std::int32_t t) { return static_cast<char>(t); });
    return bytes_;
  }

  /// Leases what the longest context does.
  void rehearse() { observe_last(1, settings_.context); }

 private:
  void begin_text() {
    text_.clear();
    for (char c : settings_.prompt) text_.push_back(static_cast<unsigned char>(c));
  }
  // Whether no other rank takes part in a pass of this one.
  [[nodiscard]] bool passes_alone() const {
    const auto& shape = trainer_->mesh().shape();
    return shape.pipeline == 1 && shape.expert == 1 && shape.tensor == 1 && trainer_->store().gathers_alone();
  }
  // The token after this rank's text, where it has a sequence: one pass.
  [[nodiscard]] std::int32_t drawn(std::size_t sequences, std::uint64_t random) {
    const std::size_t context = std::min(settings_.context, text_.size());
    tokens_.write([&](std::span<std::int32_t> tokens) {
      std::copy_n(text_.end() - static_cast<std::ptrdiff_t>(context), context, tokens.begin());
    });
    observe_last(sequences, context);
    if (sequences == 0 || trainer_->mesh().pipeline().rank() != trainer_->last_rank()) return 0;
    return draw_byte(std::span<const logit_type>(logits_), settings_.temperature, random);
  }
  // The logits after the last token, where the last stage is.
  void observe_last(std::size_t sequences, std::size_t context) {
    const belay::view<const std::int32_t, 2> input{tokens_.data(), {sequences, context}};
    observe(*trainer_, input, [&](const auto& pass, belay::view<const logit_type, 3> logits) {
      if (logits.extent(0) > 0)
        belay::queue_copy(pass.engine().compute(), logits_.data(), &logits(0, context - 1, 0), logits_.size_bytes());
    });
  }
  // The rank of the last stage has drawn it, that of the first reads it, and the first rank has the text.
  void tell(std::int32_t& token) const {
    const auto& ranks = trainer_->mesh().pipeline();
    const int from = trainer_->last_rank();
    const auto tell_one = [&](int to) {
      if (to == from) return;
      if (ranks.rank() == from) belay::control_of(ranks).send(to, std::span<const std::int32_t>(&token, 1));
      if (ranks.rank() == to) belay::control_of(ranks).receive(from, std::span<std::int32_t>(&token, 1));
    };
    tell_one(0);
    if (trainer_->first_rank() != 0) tell_one(trainer_->first_rank());
  }

  Trainer* trainer_;
  rollout_settings settings_;
  belay::staged<std::int32_t, run_type> tokens_;
  std::span<logit_type> logits_;  // of the host
  std::vector<std::int32_t> text_;
  std::vector<char> bytes_;
};

}  // namespace train_moe
