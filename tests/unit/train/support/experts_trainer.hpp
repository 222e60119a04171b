// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples, small, trained by ranks that divide its experts, on any world: a rank's batches are made
// by kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "model/mixtral.hpp"

namespace experts_trainer {

inline constexpr std::size_t steps = 3, sequences = 2, length = 5;

struct batch_of {
  std::int32_t* tokens;  // [2, sequences, length]: and what comes next
  std::size_t seed, vocab;
  BELAY_HD void operator()(std::size_t i) const {
    const std::size_t s = i / length, p = i % length;
    tokens[i] = static_cast<std::int32_t>((seed + s * 5 + p * (1 + s % 3)) % vocab);
    tokens[sequences * length + i] = static_cast<std::int32_t>((seed + s * 5 + (p + 1) * (1 + s % 3)) % vocab);
  }
};

struct result {
  std::vector<double> losses, norms;
  std::size_t room = 0;                      // rows of a rank in the end
  bool as_planned = true;                    // rank 0 has leased what was planned for its device tier
  std::function<void()> step_ended = [] {};  // on rank 0
  bool operator==(const result& other) const {
    return losses == other.losses && norms == other.norms && room == other.room && as_planned == other.as_planned;
  }
};

/// The model that is trained unless another is asked for.
inline model::mixtral_config few_columns() {
  model::mixtral_config config;
  config.vocab = 19;
  config.hidden = 16;
  config.expert_width = 24;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  return config;
}

struct settings {
  belay::axes shape = {};
  std::size_t experts = 4;
  std::size_t capacity = 17;  // rows that a rank has room for at first
  belay::tier activations = belay::tier::device;
  model::mixtral_config model = few_columns();
};

template <class T, int Stage = 1>
auto body(result& out, const settings& how) {
  return [&out, how](auto& rank, auto& run) {
    belay::mesh mesh{rank, how.shape};
    model::mixtral_config config = how.model;
    config.experts = how.experts;
    config.positions = length;
    using number = belay::compute_type_t<T>;
    using exchange_type = belay::expert_exchange<T>;
    exchange_type experts(run, mesh.expert(), {config.experts, config.experts_per_token, config.hidden, how.capacity});
    model::mixtral<T, exchange_type> net(config, model::model_part::whole(config),
                                         {experts.first_local_expert(), experts.local_experts()}, experts);
    belay::staged<number, std::remove_reference_t<decltype(run)>> positions(run, net.positions().size(), "positions");
    positions.write([&](auto table) { net.positions().fill(table); });
    net.positions().use(positions.data());
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, belay::precision<T>{}, {.seed = 3}};
    belay::gathering_network whole{net, store};
    belay::offloaded_activations activations{run, how.activations};
    belay::offloads lower_layer{whole.layers()[0], activations}, upper_layer{whole.layers()[1], activations};
    belay::adamw optimizer{store};
    const std::size_t count = sequences * length;
    const auto tokens = run.template lease<std::int32_t>(belay::tier::device, 4 * count, "batches");
    for (auto step_number : run.steps(steps)) {
      belay::step step{run.engine(), store, experts};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        const auto scope = step.micro_batch(m);
        std::int32_t* const first = tokens.data() + m * 2 * count;
        run.engine().kit().each(
            count, batch_of{first, 7 * step_number + 3 * m + 11 * static_cast<std::size_t>(rank.number()), config.vocab});
        const belay::view<const std::int32_t, 2> x{first, {sequences, length}};
        auto embedded = belay::forward(scope, whole.first(), x);
        auto lower = belay::forward(scope, lower_layer, embedded.out());
        auto upper = belay::forward(scope, upper_layer, lower.out());
        auto logits = belay::forward(scope, whole.last(), upper.out());
        auto loss = belay::cross_entropy(scope, belay::view<const number, 3>(logits.out()),
                                         belay::view<const std::int32_t, 2>{first + count, x.shape()});
        auto grad = std::move(logits).backward(loss.gradient);
        grad = std::move(upper).backward(grad);
        grad = std::move(lower).backward(grad);
        std::move(embedded).backward(grad);
      }
      const std::size_t all = 2 * count * static_cast<std::size_t>(rank.size());
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{all});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
        out.room = experts.shape().capacity;
        out.step_ended();
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.5});
    }
    if (rank.number() == 0 && !run.rehearsing())
      out.as_planned = run.meters()[belay::tier::device].peak_bytes() == run.planned().peak_bytes(belay::tier::device);
  };
}

template <class T, int Stage = 1>
result on_host(int ranks, const settings& how) {
  result out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks), body<T, Stage>(out, how));
  return out;
}

}  // namespace experts_trainer
