// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples, whose experts are divided among ranks that share a device, under `launch`: it has the bits
// that it has over a world of the host, also where a step must come again with more room.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "model/mixtral.hpp"

namespace {

constexpr std::size_t steps = 3, sequences = 2, length = 5;

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
  std::size_t room = 0;    // rows of a rank in the end
  bool as_planned = true;  // rank 0 has leased what was planned for its device tier
  bool operator==(const result&) const = default;
};

template <class T>
auto body(result& out, belay::axes shape) {
  return [&out, shape](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    model::mixtral_config config;
    config.vocab = 19;
    config.hidden = 16;
    config.expert_width = 24;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 8;
    config.experts = 4;
    config.positions = length;
    using number = belay::compute_type_t<T>;
    using exchange_type = belay::expert_exchange<T, std::remove_cvref_t<decltype(mesh.expert())>>;
    exchange_type experts(run, mesh.expert(), {config.experts, config.experts_per_token, config.hidden, 17});
    model::mixtral<T, exchange_type> net(config, model::model_part::whole(config),
                                         {experts.first_local_expert(), experts.local_experts()}, experts);
    belay::staged<number, std::remove_reference_t<decltype(run)>> positions(run, net.positions().size(), "positions");
    positions.write([&](auto table) { net.positions().fill(table); });
    net.positions().use(positions.data());
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::precision<T>{}, {.seed = 3}};
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
            count, batch_of{first, 7 * step_number + 3 * m + 11 * static_cast<std::size_t>(rank.number()), 19});
        const belay::view<const std::int32_t, 2> x{first, {sequences, length}};
        auto embedded = belay::forward(scope, net.first(), x);
        auto lower = belay::forward(scope, net.layers()[0], embedded.out());
        auto upper = belay::forward(scope, net.layers()[1], lower.out());
        auto logits = belay::forward(scope, net.last(), upper.out());
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
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.5});
    }
    if (rank.number() == 0 && !run.rehearsing())
      out.as_planned = run.meters()[belay::tier::device].peak_bytes() == run.planned().peak_bytes(belay::tier::device);
  };
}

template <class T>
result on_host(int ranks, belay::axes shape) {
  result out;
  belay::launch<belay::host_kit<belay::kernel::blocked_products>>(belay::host::world(ranks), body<T>(out, shape));
  return out;
}
template <class T>
result on_device(int ranks, belay::axes shape, const fakes::device_options& how, std::size_t* calls = nullptr) {
  fakes::device_api api(how);
  result out;
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 1 << 12}), body<T>(out, shape));
  } catch (...) {
    CHECK(api.empty());
    throw;
  }
  CHECK(api.empty());
  if (calls != nullptr) *calls = api.calls().size();
  return out;
}

template <class T>
void check(int ranks, belay::axes shape) {
  using fakes::work_order;
  const result expected = on_host<T>(ranks, shape);
  REQUIRE(expected.losses.size() == steps);
  CHECK(expected.losses[2] < expected.losses[0]);
  CHECK(expected.room > 17);  // a step came again
  CHECK(expected.as_planned);
  for (const fakes::device_options& how :
       {fakes::device_options{work_order::eager}, {work_order::late}, {work_order::random, 1}, {work_order::random, 2}})
    CHECK(on_device<T>(ranks, shape, how) == expected);
}

}  // namespace

TEST_CASE("experts on two ranks of a device have the bits of the host") { check<float>(2, {.expert = 2}); }
TEST_CASE("experts on two ranks of a device have the bits of the host, beside replicas and in bf16") {
  check<belay::bf16>(4, {.data = 2, .expert = 2});
}
TEST_CASE("a call of the device that fails while experts are trained is what a launch throws, and nothing is left") {
  std::size_t calls = 0;
  static_cast<void>(on_device<float>(2, {.expert = 2}, {fakes::work_order::late}, &calls));
  for (std::size_t k = 1; k <= calls * 4 / 5; k += calls / 12) {  // the rest ends something, which throws nothing
    CAPTURE(k);
    try {
      static_cast<void>(on_device<float>(2, {.expert = 2}, {fakes::work_order::late, 0, k}));
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
  }
}
