// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A training loop without a model: parameters of awkward sizes, gradients that are a formula of parameter,
// element, micro-batch and current value. What buckets, norm and optimizer do with it can be compared bit by
// bit between meshes and sharding stages.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/bucket.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "fake_group.hpp"

namespace belay::inline BELAY_ABI {
// Only a step can make the token; this one is the tests'.
struct test_engine;
template <class Engine, class... Participants>
class step;
template <>
class step<test_engine> {
 public:
  static committed_step commit(std::uint64_t number) { return committed_step{number}; }
};
}  // namespace belay::inline BELAY_ABI

namespace fake {

inline constexpr std::size_t micro_batches = 12;
inline const std::vector<std::size_t> awkward_sizes{5, 4096, 1, 10001, 0, 3, 8200, 4097};

template <class T>
using buckets_of = belay::gradient_buckets<T, group>;

template <class T>
struct outcome {
  std::vector<std::vector<T>> values;     // per parameter, after the last step
  std::vector<std::vector<T>> gradients;  // of the last step, from the ranks that own them
  std::vector<double> norms;              // per step
  std::size_t state_elements = 0;         // of all ranks
};

template <class T>
struct rank_state {
  rank_state(const group& replicas, belay::zero_stage stage, std::size_t bucket_bytes,
             const std::vector<std::size_t>& sizes = awkward_sizes, belay::ownership_unit unit = {}) {
    std::vector<belay::bucket_member<T>> members;
    parameters.reserve(sizes.size());
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      parameters.emplace_back(
          belay::parameter_spec{.name = "p" + std::to_string(p),
                                .shape = {sizes[p]},
                                .first_values = belay::initial::normal(0.5),
                                .decay = p % 2 == 0 ? belay::weight_decay::yes : belay::weight_decay::no});
      members.emplace_back(parameters.back(), 0);
    }
    buckets = std::make_unique<buckets_of<T>>(std::move(members),
                                              std::vector<belay::bucket_replica_group<group>>{{replicas, stage}},
                                              bucket_bytes, micro_batches, unit);
    values.resize(buckets->layout().elements());
    gradients.resize(buckets->layout().gradient_elements());
    buckets->bind(values, gradients);
    for (auto& p : parameters) p.initialise(11);
  }

  void backward(std::size_t micro_batch, std::size_t local_number) {
    for (std::size_t p = parameters.size(); p-- > 0;) {
      auto& parameter = parameters[p];
      for (std::size_t i = 0; i < parameter.local_size(); ++i)
        parameter.gradient()[i] += static_cast<T>(std::sin(static_cast<double>(p * 7919 + i * 31 + micro_batch * 101) +
                                                           static_cast<double>(parameter.value()[i])));
      buckets->contributed(p, 1, local_number);
    }
  }

  std::vector<belay::parameter<T>> parameters;
  std::unique_ptr<buckets_of<T>> buckets;
  std::vector<T> values;
  std::vector<T> gradients;
};

/// Trains on `ranks` replicas that divide the micro-batches.
template <class T>
outcome<T> train(std::size_t ranks, belay::zero_stage stage, std::size_t steps = 3, std::size_t bucket_bytes = 16384,
                 belay::ownership_unit unit = {}) {
  shared_state shared(ranks);
  std::vector<queue> queues(ranks);
  outcome<T> result;
  for (std::size_t size : awkward_sizes) result.gradients.emplace_back(size);
  std::mutex mutex;
  run_ranks(ranks, [&](int rank) {
    const auto number = static_cast<std::size_t>(rank);
    const group replicas(shared, queues[number], rank);
    rank_state<T> state(replicas, stage, bucket_bytes, awkward_sizes, unit);
    belay::norm_table table;
    std::vector<belay::norm_place> places;
    for (std::size_t size : awkward_sizes) places.push_back({table.add(size), 0});
    table.widen(unit);
    std::vector<double> norm_memory(table.entries());
    belay::gradient_norm<T> norm(table, places, norm_memory);
    std::vector<T> moments(belay::adamw<T, group>::state_elements(*state.buckets));
    belay::adamw<T, group> optimizer({.learning_rate = 0.01}, *state.buckets, moments);
    for (std::size_t s = 0; s < steps; ++s) {
      const belay::local_part mine = belay::even_part(micro_batches, ranks, number);
      state.buckets->begin(mine.count);
      for (std::size_t m = 0; m < mine.count; ++m) state.backward(s * micro_batches + mine.first + m, m);
      auto gradients = state.buckets->finish(belay::target_tokens{37});
      const auto value = norm(gradients, replicas);
      if (rank == 0) result.norms.push_back(value.value());
      if (s + 1 == steps) {
        const std::scoped_lock lock(mutex);
        for (const auto& range : gradients.owned())
          std::copy_n(range.gradient, range.count,
                      result.gradients[range.parameter].begin() + static_cast<std::ptrdiff_t>(range.offset));
        result.state_elements += moments.size();
      }
      optimizer.apply(belay::step<belay::test_engine>::commit(s + 1), std::move(gradients), value.clip(1.0));
    }
    if (rank == static_cast<int>(ranks) - 1)  // any rank has the whole
      for (const auto& p : state.parameters) result.values.emplace_back(p.value(), p.value() + p.local_size());
  });
  return result;
}

}  // namespace fake
