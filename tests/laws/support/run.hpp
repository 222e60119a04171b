// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Trains a small model on some mesh and keeps everything a law compares: losses, norms, every parameter's
// reduced gradient at every step and the final weights, all as whole tensors. Each run also peaks as planned, to the
// byte, in every tier on every rank.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "model/products.hpp"
#include "test_length.hpp"
#include "train_moe/host_trainer.hpp"

namespace laws {

using namespace train_moe;

/// Numbers that follow a pattern with noise; sequences end early, so micro-batches have unequal numbers of targets.
class uneven_text final : public batch_source {
 public:
  enum class endings { equal, unequal };
  explicit uneven_text(std::size_t vocabulary, endings kind = endings::unequal)
      : vocabulary_(vocabulary), kind_(kind) {}

  void sequence(std::size_t step, std::size_t micro_batch, std::size_t index, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets) const override {
    std::uint64_t state = 1000003 * step + 1009 * micro_batch + 31 * index + 7;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      tokens[i] =
          static_cast<std::int32_t>((i * i + 3 * index + ((state >> 60U) == 0 ? state >> 33U : 0U)) % vocabulary_);
    }
    next_token_targets(tokens, targets);
    if (kind_ == endings::equal) return;
    const std::size_t kept = 1 + (7 * micro_batch + 3 * index + step) % tokens.size();
    for (std::size_t i = kept; i < targets.size(); ++i) targets[i] = model::ignored;
  }

 private:
  std::size_t vocabulary_;
  endings kind_;
};

/// Twelve micro-batches of four sequences through a model that four stages and four expert ranks can share.
inline options small_run() {
  options run;
  run.mesh = {};
  run.micro_batches = 12;
  run.micro_batch_size = 4;
  run.sequence = 8;
  run.steps = 3;
  run.zero = belay::zero_stage::none;
  run.schedule = "gpipe";
  run.model.vocab = 32;
  run.model.hidden = 16;
  run.model.expert_width = 24;
  run.model.layers = 4;
  run.model.heads = 2;
  run.model.kv_heads = 1;
  run.model.head_dim = 8;
  run.model.experts = 4;
  run.model.positions = 8;
  run.expert_capacity = 4;
  run.bucket_bytes = 4096;
  return run;
}

using tensors = std::map<std::string, std::vector<double>>;

struct record {
  std::vector<double> losses, aux_losses, norms;
  std::vector<std::size_t> replays;
  std::vector<tensors> gradients;  // by step
  tensors weights;
};

template <class Parameter>
[[nodiscard]] bool is_expert(const Parameter& parameter) {
  return belay::sharded_over<belay::axis::expert>(parameter);
}

/// Runs `body` on threads, with the products that train_moe has, within the budgets of `run`.
template <class Kit = belay::host_kit<>, class Body>
void launch(const options& run, Body&& body, const belay::host_products& products = model::products()) {
  belay::launch<Kit>(belay::host::world{static_cast<int>(run.mesh.ranks())}, body,
                     {.budget = run.budget, .streams = run.streams, .products = products});
}

/// A test's change of the gradients of one rank before they are used; the wrong policies live here.
template <class T>
using gradient_policy = void (*)(const std::string& name, bool expert, std::span<belay::compute_type_t<T>> gradient);

template <class T, class Trainer>
class recorder {
 public:
  recorder(record& into, std::mutex& lock, gradient_policy<T> policy) : into_(&into), lock_(&lock), policy_(policy) {}

  static void gradients(void* self, Trainer& trainer) { static_cast<recorder*>(self)->take_gradients(trainer); }

  void take_weights(Trainer& trainer) {
    const std::lock_guard guard(*lock_);
    each_owned(trainer, [&](auto& parameter, const auto& range, std::size_t global) {
      std::vector<T> read;
      const T* values = range.value;
      if (trainer.store().buckets().places()[range.bucket].values_in == belay::tier::file) {
        read.resize(range.count);
        trainer.store().buckets().value_file()->read(values, read.data(), range.count * sizeof(T),
                                                     belay::where::current());
        values = read.data();
      }
      copy(into_->weights[parameter.name()], parameter.global_size(), global, values, range.count);
    });
    trainer.model().for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      if constexpr (!belay::has_gradient<typename Parameter::learning_type>)
        parameter.each_held([&](std::size_t first, std::span<const T> values) {
          copy(into_->weights[parameter.name()], parameter.global_size(), first, values.data(), values.size());
        });
    });
  }

 private:
  void take_gradients(Trainer& trainer) {
    const std::lock_guard guard(*lock_);
    if (into_->gradients.size() <= step_) into_->gradients.resize(step_ + 1);
    each_owned(trainer, [&](auto& parameter, const auto& range, std::size_t global) {
      if (policy_ != nullptr) policy_(parameter.name(), is_expert(parameter), {range.gradient, range.count});
      if (range.share != belay::norm_share::counted_here) return;
      auto& whole = into_->gradients[step_][parameter.name()];
      std::vector<belay::compute_type_t<T>> read;
      if (range.gradient_file != nullptr) {
        read.resize(range.count);
        range.gradient_file->read(range.gradient, read.data(), range.count * sizeof read[0], belay::where::current());
      }
      copy(whole, parameter.global_size(), global, read.empty() ? range.gradient : read.data(), range.count);
    });
    ++step_;
  }

  // Stacked experts are cut along their first dimension, so the local part is one run of the whole.
  template <class Visit>
  static void each_owned(Trainer& trainer, Visit visit) {
    std::size_t number = 0;
    trainer.model().for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      if (!belay::has_gradient<typename Parameter::learning_type>) return;  // the buckets do not have it
      const std::size_t first = parameter.local_box().sides[0].first * (parameter.global_size() / parameter.shape()[0]);
      for (const auto& range : trainer.store().buckets().owned()) {
        if (range.parameter == number) visit(parameter, range, (is_expert(parameter) ? first : 0) + range.offset);
      }
      ++number;
    });
  }

  template <class U>
  static void copy(std::vector<double>& whole, std::size_t size, std::size_t first, const U* from, std::size_t count) {
    whole.resize(size);
    for (std::size_t i = 0; i < count; ++i) whole[first + i] = static_cast<double>(from[i]);
  }

  record* into_;
  std::mutex* lock_;
  gradient_policy<T> policy_;
  std::size_t step_ = 0;
};

/// Where a run begins: at its own first values, or at these rounded to bf16, which all types hold.
enum class beginning { drawn, rounded };

/// Where a rank's peaks are not as planned: "rank 1, tier device: 4160 bytes, planned 4096"; else empty.
template <class Run>
[[nodiscard]] std::string unplanned_peaks(const Run& self, int rank) {
  std::string out;
  for (std::size_t t = 0; t < belay::tier_count; ++t) {
    const auto of = static_cast<belay::tier>(t);
    const std::size_t peak = self.meters()[of].peak_bytes(), planned = self.planned().peak_bytes(of);
    if (peak != planned)
      out += "rank " + std::to_string(rank) + ", tier " + belay::name(of) + ": " + std::to_string(peak) +
             " bytes, planned " + std::to_string(planned) + "\n";
  }
  return out;
}

/// `Parts` are the parts of the model that are trained.
template <class T, class Kit = belay::host_kit<>, class Parts = model::trains_all>
[[nodiscard]] record train(const options& run, const batch_source& source, gradient_policy<T> policy = nullptr,
                           beginning from = beginning::drawn) {
  check(run);
  record out;
  std::mutex lock;
  std::string unplanned;
  std::size_t at_once = 0;  // calls in halves that had no second one
  launch<Kit>(run, [&](auto& rank, auto& self) {
    using trainer_type = trainer<T, std::remove_reference_t<decltype(self)>, Parts>;
    trainer_type trained{run, rank, self, source};
    if (from == beginning::rounded && !self.rehearsing()) {
      trained.model().for_each_parameter([](auto& parameter) {
        parameter.each_held([](std::size_t, std::span<T> values) {
          for (T& value : values) value = static_cast<T>(static_cast<float>(belay::bf16(static_cast<float>(value))));
        });
      });
    }
    recorder<T, trainer_type> keeper{out, lock, policy};
    if (!self.rehearsing()) trained.on_gradients(&recorder<T, trainer_type>::gradients, &keeper);
    bool replayed = false;  // under a plan with more room, which the peak before it may not reach
    for (const std::size_t step : self.steps(run.steps)) {
      const auto result = trained.train(step);
      replayed = replayed || !result;
      if (rank.number() != 0 || !result || self.rehearsing()) continue;
      out.losses.push_back(result->loss);
      out.aux_losses.push_back(result->aux_loss);
      out.norms.push_back(result->grad_norm);
      out.replays.push_back(result->replays);
    }
    if (self.rehearsing()) return;
    keeper.take_weights(trained);
    const std::lock_guard guard(lock);
    at_once += self.engine().notes().added_at_once();
    if (!replayed) unplanned += unplanned_peaks(self, rank.number());
  });
  CHECK(at_once == 0);
  CHECK_MESSAGE(unplanned.empty(), run.mesh.text() << ": " << unplanned);
  return out;
}

/// |a - b| / |a| of the worst tensor, and which one it is.
struct difference {
  double worst = 0;
  std::string where;
};

[[nodiscard]] inline difference compare(const tensors& expected, const tensors& got) {
  difference out;
  if (expected.size() != got.size()) return {1e300, "the number of tensors"};
  for (const auto& [name, values] : expected) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != values.size()) return {1e300, name};
    double apart = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      apart += (values[i] - found->second[i]) * (values[i] - found->second[i]);
      norm += values[i] * values[i];
    }
    const double relative = apart == 0 ? 0 : std::sqrt(apart / norm);
    if (!(relative <= out.worst)) out = {relative, name};
  }
  return out;
}

/// The worst difference of anything that was recorded; 0 means equal bits.
[[nodiscard]] inline difference compare(const record& expected, const record& got) {
  difference out;
  const auto keep = [&](double relative, const std::string& name) {
    if (!(relative <= out.worst)) out = {relative, name};
  };
  const auto numbers = [&](const std::vector<double>& a, const std::vector<double>& b, const char* name) {
    if (a.size() != b.size()) return keep(1e300, name);
    for (std::size_t i = 0; i < a.size(); ++i) keep(std::abs(a[i] - b[i]) / std::abs(a[i]), name);
  };
  numbers(expected.losses, got.losses, "loss");
  numbers(expected.aux_losses, got.aux_losses, "aux_loss");
  numbers(expected.norms, got.norms, "grad_norm");
  if (expected.gradients.size() != got.gradients.size())
    keep(1e300, "the number of steps");
  else {
    for (std::size_t s = 0; s < expected.gradients.size(); ++s) {
      const difference one = compare(expected.gradients[s], got.gradients[s]);
      keep(one.worst, "gradient of " + one.where + " in step " + std::to_string(s + 1));
    }
  }
  const difference weights = compare(expected.weights, got.weights);
  keep(weights.worst, "weights of " + weights.where);
  return out;
}

}  // namespace laws
