// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Shards of parameters that are gathered for a step and updated after it, on any world.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/evaluate.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/store.hpp"
#include "failures/support/batches.hpp"

namespace pulled_shards {

using namespace failures;

// An optimizer of one's own: it ends with `finish_gathers_in`, and the wrong one does not.
enum class update_ends : std::uint8_t { with_barrier, without };

void descend(auto& run, auto& store, auto&& part, update_ends how) {
  auto& kit = run.engine().kit();
  const auto used = std::forward<decltype(part)>(part).take();
  for (const auto& range : used.owned()) kit.each(range.count, descent{range.value, range.gradient});
  if (how == update_ends::with_barrier) store.buckets().finish_gathers_in(kit.stream());
}

// Steps of two layers whose parameters the ranks divide: `then(gradients)` has the committed gradients of each. A step
// stays where it was made: Clang cannot follow one that another function ends or continues.
struct pulled_steps {
  std::size_t number = 1;
  belay::store_options store;
};

auto steps_of(pulled_steps setting, auto&& then) {
  return [setting, then](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net(9);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, setting.store};
    belay::gathers first{net.first, store}, second{net.last, store};
    const batches batch(run, 1);
    const auto evaluated = [&] {
      belay::forward_only pass{run.engine()};
      const auto hidden = belay::observe(pass, first, batch.inputs());
      const auto out = belay::observe(pass, second, hidden.out());
      static_cast<void>(belay::squared_error(pass, out.out(), batch.targets()));
    };
    for ([[maybe_unused]] auto number : run.steps(setting.number)) {
      belay::step step{run.engine(), store};
      auto h = belay::forward(step, first, belay::constant(batch.inputs()));
      auto y = belay::forward(step, second, h.out());
      auto [loss, grad] = belay::squared_error(step, matrix(y.out()), batch.targets());
      grad = std::move(y).backward(grad);
      std::move(h).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
      auto* const ok = belay::committed(outcome);
      if (ok != nullptr) then(run, mesh, store, std::move(*ok), evaluated);
    }
  };
}

inline auto body(std::vector<double>& losses, update_ends how) {
  return steps_of({.number = 6, .store = {.seed = 3, .bucket_bytes = 64}},
                  [&losses, how](auto& run, auto& mesh, auto& store, auto&& gradients, const auto& evaluated) {
                    descend(run, store, std::forward<decltype(gradients)>(gradients).only_part(), how);
                    const auto after = belay::evaluate(run, mesh, evaluated);  // in which ranks meet at the end alone
                    run.report(after, [&](double mean) { losses.push_back(mean); });
                  });
}

template <class Launch>
std::vector<double> train(const Launch& launch, update_ends how = update_ends::with_barrier) {
  std::vector<double> losses;
  launch(body(losses, how));
  return losses;
}

// A layer gathers between a commit and its update.
inline auto early_gather() {
  return steps_of({}, [](auto&, auto&, auto&, auto&& gradients, const auto& evaluated) {
    evaluated();
    std::forward<decltype(gradients)>(gradients).discard();
  });
}
inline constexpr const char* early_words = "parameters that ranks divide are gathered between a commit and its update";

}  // namespace pulled_shards
