// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One step of the examples' model with one layer and all of its experts, in memory of any kind. Includes no doctest, so
// that nvcc can take it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"
#include "belay/train/loss.hpp"
#include "model/mixtral.hpp"
#include "unit/parallel/support/group_of_one.hpp"

namespace one_layer_model {

constexpr std::size_t activation_bytes = std::size_t{1} << 20, parameter_bytes = std::size_t{1} << 17;

// Few columns, and more rows than a group of a sum over columns.
inline model::mixtral_config few_columns() {
  model::mixtral_config config;
  config.vocab = 19;
  config.hidden = 16;
  config.expert_width = 24;
  config.layers = 1;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.experts = 4;
  config.positions = 33;
  return config;
}

// The model, how many sequences it is given, and the bytes of its parameters. Where values are absent none is made,
// moved or read, so that a model of any size can be asked what it calls.
struct subject {
  enum class values { made, absent };
  model::mixtral_config config = few_columns();
  std::size_t sequences = 2, bytes = parameter_bytes;
  values has = values::made;
};

// The loss and all gradients of one step, with the parameters in `memory`, of which `staged` is the host's side. Rows
// of experts lie in `slots`.
template <class T, class Engine, class Memory, class Staged>
std::vector<double> one_step(Engine& engine, const Memory& memory, const Memory& slots, const Staged& staged,
                             const subject& of = {}) {
  using number = belay::compute_type_t<T>;
  const model::mixtral_config& config = of.config;
  const bool made = of.has == subject::values::made;
  const std::size_t tokens = of.sequences * config.positions, k = config.experts_per_token;
  using exchange = belay::expert_exchange<T>;
  const belay::group alone = test::group_over(slots);
  belay::symmetric_heap heap(alone, {.bytes = slots.size_bytes()});
  exchange all_here(alone, heap, {config.experts, k, config.hidden, tokens * k});
  model::mixtral<T, exchange> net(config, model::model_part::whole(config), {0, config.experts}, all_here);
  // Tokens, targets, of each parameter its values and its gradient, then the table of positions.
  auto* const index = reinterpret_cast<std::int32_t*>(staged.data());
  for (std::size_t i = 0; made && i < tokens; ++i) {
    index[i] = static_cast<std::int32_t>(i * i % config.vocab);
    index[tokens + i] =
        i % 5 == 4 ? belay::kernel::ignored_target : static_cast<std::int32_t>((i * i + 1) % config.vocab);
  }
  std::size_t bytes = (2 * tokens * sizeof *index + 255) / 256 * 256;
  const auto values_at = [](const auto& region, std::size_t first) {
    return reinterpret_cast<T*>(region.data() + first);
  };
  const auto sums_at = [](const auto& region, std::size_t first) {
    return reinterpret_cast<number*>(region.data() + first);
  };
  // Values and gradients lie as buckets have them.
  std::vector<belay::bucket_member<T>> members;
  net.for_each_parameter([&](auto& parameter) { members.emplace_back(parameter, 0); });
  const belay::replica_group_shape one_rank;
  const belay::bucket_layout layout =
      belay::layout_of(std::span<const belay::bucket_member<T>>(members), {&one_rank, 1}, of.bytes);
  const std::size_t all_values = bytes, all_sums = bytes + (layout.elements() * sizeof(T) + 255) / 256 * 256;
  bytes = all_sums + (layout.elements() * sizeof(number) + 255) / 256 * 256;
  if (bytes > of.bytes) throw belay::budget_error("parameters", bytes, 0, belay::where::current());
  if (made) std::fill_n(sums_at(staged, all_sums), layout.elements(), number(0));
  std::vector<std::pair<std::size_t, std::size_t>> gradients;
  for (std::size_t p = 0; p < members.size(); ++p) {
    auto& parameter = members[p].parameter();
    const std::size_t values = all_values + layout.offset(p) * sizeof(T);
    const std::size_t sums = all_sums + layout.offset(p) * sizeof(number);
    if (made) {
      parameter.bind(values_at(staged, values), sums_at(staged, sums));
      parameter.initialise(3);
    }
    parameter.bind(values_at(memory, values), sums_at(memory, sums));
    gradients.emplace_back(sums, layout.size(p));
  }
  const std::size_t table = bytes;
  bytes += (net.positions().size() * sizeof(number) + 255) / 256 * 256;
  const std::size_t selections = bytes, probabilities = selections + config.experts * sizeof(std::int64_t);
  bytes = probabilities + config.experts * sizeof(double);
  if (bytes > of.bytes) throw belay::budget_error("positions", bytes, 0, belay::where::current());
  all_here.prepare(0, {1, 1, config.experts, k,
                       std::span(reinterpret_cast<std::int64_t*>(memory.data() + selections), config.experts),
                       std::span(reinterpret_cast<double*>(memory.data() + probabilities), config.experts)});
  if (made) net.positions().fill({sums_at(staged, table), net.positions().size()});
  net.positions().use(sums_at(memory, table));

  belay::step step{engine};
  all_here.begin_step();
  if (made) engine.copies().copy(memory.data(), staged.data(), bytes);
  engine.copies().let_wait(engine.compute(), engine.copies().record());
  const auto* const on_device = reinterpret_cast<const std::int32_t*>(memory.data());
  const belay::view<const std::int32_t, 2> x{on_device, {of.sequences, config.positions}};
  auto embedded = belay::forward(step, net.first(), x);
  auto first = belay::forward(step, net.layers()[0], embedded.out());
  auto logits = belay::forward(step, net.last(), first.out());
  auto loss = belay::cross_entropy(step, belay::view<const number, 3>(logits.out()),
                                   belay::view<const std::int32_t, 2>{on_device + tokens, x.shape()});
  auto grad = std::move(logits).backward(loss.gradient);
  auto before = std::move(first).backward(grad);
  std::move(embedded).backward(before);
  std::vector<double> result;
  const auto outcome = std::move(step).commit([&](const belay::ballot& own) {
    result.push_back(own.loss);
    return own;
  });
  static_cast<void>(outcome);
  if (all_here.take_overflow().happened()) throw belay::budget_error("rows of experts", 0, 0, belay::where::current());
  if (!made) return result;
  belay::queue_copy(engine.compute(), staged.data(), memory.data(), bytes);
  engine.compute().synchronize();
  for (const auto& [from, count] : gradients) {
    const number* const values = sums_at(staged, from);
    result.insert(result.end(), values, values + count);
  }
  return result;
}

// Calls that layers make of a fake device, forward and backward: kernels of this library, and calls of others.
template <class Api>
struct counted_calls final : belay::call_listener {
  explicit counted_calls(const Api& of) : api(of) {}
  void begin(const belay::call_under_way& now) noexcept override { layer = now.layer, before = api.calls().size(); }
  void end() noexcept override {
    if (!layer.starts_with("model.layers.")) return;
    for (std::size_t i = before; i < api.calls().size(); ++i) {
      const std::string& call = api.calls()[i];
      ++(call == "product" || call == "sort" || call == "histogram" ? library_calls : launches);
    }
  }

  const Api& api;
  std::string_view layer;
  std::size_t before = 0, launches = 0, library_calls = 0;
};

}  // namespace one_layer_model
