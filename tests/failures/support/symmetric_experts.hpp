// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two layers of experts that ranks divide, four micro-batches of each at once, trained and evaluated on any world: what
// is left of their symmetric memory, and what a backward that is forgotten leaves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/belay.hpp"
#include "model/moe_block.hpp"
#include "unit/train/support/device_trainer.hpp"

namespace symmetric_experts {

using tensor = belay::view<const float, 3>;

inline constexpr std::size_t micro_batches = 4, rows = 6, hidden = 8;
inline constexpr std::size_t room_for_all = 24;  // both choices of every row of two ranks
enum class slip : std::uint8_t { none, forgotten_backward, untold_overflow };

struct settings {
  std::size_t steps = 3;
  std::size_t capacity = room_for_all;
  slip what = slip::none;  // the second layer forgets micro-batch 2 and hands on its gradient, as a stub would
};

struct found {
  std::vector<double> losses = {}, held_out = {};
  std::size_t room = 0;                       // rows of a rank in the end
  std::size_t most_open = 0;                  // obligations of a step that was refused
  std::atomic<std::size_t> begun = 0;         // steps, on all ranks; a step that comes again is one more
  std::atomic<std::size_t> lost = 0;          // bytes of slots and activations where a step had been refused
  std::atomic<std::size_t> left = 0;          // where a step had begun, or an evaluation ended
  std::atomic<std::size_t> other_live = 0;    // steps that left the device's memory otherwise than the first
  std::atomic<std::size_t> off_the_plan = 0;  // ranks that leased otherwise than planned
};

template <class Exchange>
struct layer : model::moe_block<float, Exchange> {
  std::size_t number;
  std::string label;
  layer(std::size_t index_of, Exchange& exchange)
      : model::moe_block<float, Exchange>("moe." + std::to_string(index_of), {hidden, 12, 4, 2}, 1e-5,
                                          {exchange.first_local_expert(), exchange.local_experts()}, exchange),
        number(index_of),
        label("moe." + std::to_string(index_of)) {
    this->set_balance_scale(0.1);
  }
  [[nodiscard]] const char* name() const { return label.c_str(); }
  [[nodiscard]] std::size_t index() const { return number; }
};
template <class Exchange>
struct network {
  layer<Exchange> lower, upper;
  explicit network(Exchange& exchange) : lower(0, exchange), upper(1, exchange) {}
  void for_each_parameter(auto&& visit) { lower.for_each_parameter(visit), upper.for_each_parameter(visit); }
};

/// An exchange in a step or pass; with slip::untold_overflow, which begins it by hand, nobody hears of an overflow.
template <class Exchange>
struct participant final : belay::participant {
  Exchange& of;
  slip what;
  participant(Exchange& exchange, slip how) : of(exchange), what(how) {}
  void begin(const belay::step_start& start, belay::where at) override {
    if (what != slip::untold_overflow) return of.begin(start, at);
    of.withdraw();
    of.begin_step(at);
  }
  void finish(const belay::divisor_value& divisor, belay::where at) override { of.finish(divisor, at); }
  void abandon(belay::where at) override { of.abandon(at); }
  void withdraw() noexcept override { of.withdraw(); }
  [[nodiscard]] belay::ballot findings() override { return of.findings(); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return of.fingerprint(); }
  void make_room(std::size_t wanted, belay::where at) override { of.make_room(wanted, at); }
};

/// Inputs and targets of each micro-batch, made by kernels.
struct batches {
  float* first;
  [[nodiscard]] tensor inputs(std::size_t m) const { return {first + 2 * m * rows * hidden, {1, rows, hidden}}; }
  [[nodiscard]] tensor targets(std::size_t m) const { return {first + (2 * m + 1) * rows * hidden, {1, rows, hidden}}; }
};

inline constexpr int opening_line = __LINE__ + 4;
template <class Step, class Network>
void train_micro_batches(const Step& step, Network& net, const batches& batch, bool forgets) {
  const auto lower_of = [&](std::size_t m) { return belay::forward(step.micro_batch(m), net.lower, batch.inputs(m)); };
  const auto upper_of = [&](std::size_t m, tensor h) { return belay::forward(step.micro_batch(m), net.upper, h); };
  belay::handle_store<decltype(lower_of(0))> lower{micro_batches};
  belay::handle_store<decltype(upper_of(0, batch.inputs(0)))> upper{micro_batches};
  for (std::size_t m = 0; m < micro_batches; ++m) {
    lower.keep(m, lower_of(m));
    upper.keep(m, upper_of(m, lower.at(m).out()));
  }
  for (std::size_t m = 0; m < micro_batches; ++m) {
    auto [loss, grad] = belay::squared_error(step.micro_batch(m), tensor(upper.at(m).out()), batch.targets(m));
    if (!forgets || m != 2) grad = upper.take(m).backward(grad);
    grad = lower.take(m).backward(grad);
  }
}

/// Bytes that experts and activations have now.
std::size_t within_steps(const auto& run) {
  std::size_t bytes = 0;
  run.each_live([&](belay::tier, std::string_view purpose, std::size_t live) {
    if (purpose == "expert windows" || purpose == "activations") bytes += live;
  });
  return bytes;
}

template <class Launch>
void train(const Launch& launch, const settings& how, found& out) {
  launch([&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.expert = rank.size()}};
    using exchange_type = belay::expert_exchange<float>;
    const belay::expert_settings sizes{4, 2, hidden, how.capacity};
    const auto made = [&] {
      if (how.what == slip::untold_overflow) return exchange_type(mesh.expert(), run.windows(mesh.expert()), sizes);
      return exchange_type(run, mesh.expert(), sizes);
    };
    exchange_type experts = made();
    participant<exchange_type> taking_part{experts, how.what};
    network<exchange_type> net(experts);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::precision<float>{}, {.seed = 3}};
    belay::adamw optimizer{store};
    const std::size_t count = 2 * micro_batches * rows * hidden;
    const batches batch{run.template lease<float>(belay::tier::device, count, "batches").data()};
    const auto& meter = run.meters()[belay::tier::device];
    std::size_t live = 0;
    for (auto number : run.steps(how.steps)) {
      run.engine().kit().each(
          count, device_trainer::batch_of{batch.first, 3 * number + 2 * static_cast<std::size_t>(rank.number())});
      belay::step step{run.engine(), store, taking_part};
      if (!run.rehearsing()) ++out.begun, out.left += within_steps(run);
      step.micro_batches(micro_batches);
      train_micro_batches(step, net, batch, how.what == slip::forgotten_backward && !run.rehearsing());
      const std::size_t samples = micro_batches * rows * static_cast<std::size_t>(rank.size());
      auto outcome = std::move(step).commit(mesh, belay::samples{samples});
      if (const auto* const no = belay::refused(outcome)) {
        out.lost += within_steps(run);
        if (rank.number() == 0) out.most_open = no->findings.open_obligations;
      }
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](double mean) { out.losses.push_back(mean), out.room = experts.shape().capacity; });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      const belay::evaluation seen = belay::evaluate(run, mesh, [&] {
        for (std::size_t m = 0; m < micro_batches; ++m) {
          const belay::forward_only pass{run.engine(), taking_part};
          const auto h = belay::observe(pass, net.lower, batch.inputs(m));
          const auto y = belay::observe(pass, net.upper, tensor(h.out()));
          belay::squared_error(pass, tensor(y.out()), batch.targets(m));
        }
      });
      run.report(seen, [&](double mean) { out.held_out.push_back(mean); });
      if (run.rehearsing()) continue;
      out.left += within_steps(run);
      if (live == 0) live = meter.live_bytes();
      out.other_live += meter.live_bytes() == live ? 0U : 1U;
    }
    if (!run.rehearsing())
      out.off_the_plan += meter.peak_bytes() == run.planned().peak_bytes(belay::tier::device) ? 0U : 1U;
  });
}

}  // namespace symmetric_experts
