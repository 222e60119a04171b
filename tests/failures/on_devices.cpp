// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures from the field on devices: on one that ranks share, and on one a rank over NCCL, both of the host and late
// on purpose. What is named on the host is named there, and nothing stays on a device.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/ledger.hpp"
#include "failures/support/gather_orders.hpp"
#include "failures/support/gathered_parameters.hpp"
#include "failures/support/on_fakes.hpp"
#include "failures/support/on_host.hpp"
#include "failures/support/pulled_shards.hpp"
#include "unit/train/support/device_trainer.hpp"

using namespace device_trainer;
using namespace failures;

namespace {

enum class slip : std::uint8_t { none, forgotten_backward, other_seed, throws_in_a_step };

struct seen {
  std::vector<double> losses;
  std::size_t open = 0;  // obligations of a step that was refused
};

auto body(seen& out, slip what) {
  return [&out, what](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    const bool odd = rank.number() == 1 && !run.rehearsing();
    belay::mesh mesh{rank, {.data = rank.size()}};
    network<float> net(9);
    belay::parameter_store<run_type, belay::precision<float>> store{
        run,
        mesh,
        net,
        what == slip::other_seed ? belay::zero_stage::none : belay::zero_stage::parameters,
        {.seed = odd && what == slip::other_seed ? 4U : 3U, .bucket_bytes = 128}};
    belay::gathers first{net.first, store}, last{net.last, store};
    const auto memory = run.template lease<float>(belay::tier::device, 2 * rows * width, "batches");
    const auto micro_batch = [&](const auto& scope, std::size_t number) {
      if (odd && what == slip::throws_in_a_step && number > 10) throw std::runtime_error("out of data");
      float* const x = memory.data();
      run.engine().kit().each(2 * rows * width, batch_of{x, number + static_cast<std::size_t>(rank.number())});
      auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows, width}}));
      auto y = belay::forward(scope, last, h.out());
      auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), matrix{x + rows * width, {rows, width}});
      if (what == slip::forgotten_backward && !run.rehearsing() && number % 2 == 1) {
        belay::handle_store<decltype(h)> lost_h{1};
        belay::handle_store<decltype(y)> lost_y{1};
        lost_h.keep(0, std::move(h));
        lost_y.keep(0, std::move(y));
        return;
      }
      std::move(h).backward(std::move(y).backward(grad));
    };
    for (const auto number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) micro_batch(step.micro_batch(m), 6 * number + m);
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows * static_cast<std::size_t>(rank.size())});
      if (const auto* const no = belay::refused(outcome); no != nullptr && rank.number() == 0)
        out.open = no->findings.open_obligations;
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) { out.losses.push_back(end.mean_loss()); });
      store.update(std::move(*ok),
                   [](auto& frame, const std::string&, std::span<float> values, std::span<const float> gradients,
                      std::size_t) { frame.each(values.size(), descent{values.data(), gradients.data()}); });
    }
  };
}

// What a launch has thrown, empty: nothing.
template <class World>
std::string thrown_by(const World& world, const auto& body) {
  try {
    world(body);
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return {};
}
template <class World>
seen train(int ranks, slip what, fakes::device_options how, std::string* thrown = nullptr) {
  seen out;
  const std::string got = thrown_by(World{ranks, how}, body(out, what));
  if (thrown == nullptr) CHECK(got == "");
  if (thrown != nullptr) *thrown = got;
  return out;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE_TEMPLATE("a backward that is forgotten is named, or its step is refused", World, on_one_device_in_turns,
                   on_device_each) {
  std::string thrown;
  CHECK(train<World>(2, slip::none, {work_order::late}).losses.size() == steps);
  const seen got = train<World>(2, slip::forgotten_backward, {work_order::late}, &thrown);
  CHECK(got.losses.empty());
  if constexpr (belay::checked(belay::check_level::local))
    CHECK(has(thrown, "backward was never called"));
  else
    CHECK((thrown.empty() && got.open > 0));
}
TEST_CASE_TEMPLATE("replicas that begin with other values are named", World, on_one_device_in_turns, on_device_each) {
  std::string thrown;
  CHECK(train<World>(3, slip::other_seed, {work_order::random, 2}, &thrown).losses.empty());
  CHECK(has(thrown, "begin with different values of parameter"));
}
TEST_CASE_TEMPLATE("a rank that throws in a step ends the run with what it threw", World, on_one_device_in_turns,
                   on_device_each) {
  for (const work_order order : {work_order::eager, work_order::late}) {
    std::string thrown;
    CHECK(train<World>(3, slip::throws_in_a_step, {order}, &thrown).losses.size() == 1);
    CHECK(thrown == "out of data");
  }
}

namespace {

std::vector<fakes::device_options> orders() {
  std::vector<fakes::device_options> out{{work_order::eager}, {work_order::late}};
  for (std::uint64_t seed = 0; seed < 4; ++seed) out.push_back({work_order::random, seed});
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("what ranks of devices gather is what every rank's update has left", World, on_one_device,
                   on_device_each) {
  using pulled_shards::train, pulled_shards::update_ends;
  for (const int ranks : {2, 3}) {
    const std::vector<double> expected = train(on_host{ranks});
    REQUIRE(expected.size() == 6);
    for (const fakes::device_options& how : orders()) CHECK(train(World{ranks, how}) == expected);
    const auto losses_without = [&](forgets what) {
      std::vector<double> losses;
      static_cast<void>(
          thrown_by(World{ranks, {work_order::late}, what}, pulled_shards::body(losses, update_ends::with_barrier)));
      return losses;
    };
    CHECK(losses_without(forgets::nothing) == expected);
    CHECK(losses_without(forgets::own) != expected);
  }
  CHECK(has(thrown_by(World{2}, pulled_shards::early_gather()), pulled_shards::early_words));
}
TEST_CASE("an update that ends without the barrier is seen where ranks pull shards on their device") {
  using pulled_shards::train, pulled_shards::update_ends;
  const std::vector<double> expected = train(on_host{3});
  bool other = false;
  for (std::uint64_t seed = 0; seed < 20 && !other; ++seed)
    other = train(on_one_device_in_turns{3, {work_order::random, seed}}, update_ends::without) != expected;
  CHECK(other);
}

TEST_CASE_TEMPLATE("whole parameters of devices end with the calls that gathered them", World, on_one_device,
                   on_device_each) {
  using namespace gathered_parameters;
  for (const belay::tier parameters : {belay::tier::device, belay::tier::pinned})
    for (const how what : {how::plain_and_observed, how::recomputed, how::two_in_flight}) {
      CAPTURE(static_cast<int>(parameters));
      CAPTURE(static_cast<int>(what));
      const World world{2 + static_cast<int>(what) % 2, {work_order::late}};
      const found right = train<belay::gathers>(world, what, 6, parameters);
      CHECK(right.after_use == 0);
      CHECK(right.other_live == 0);
      CHECK(right.as_planned);
      CHECK((train<gathers_by_counter>(world, what, 2, parameters).after_use > 0) == (what != how::two_in_flight));
    }
}
TEST_CASE_TEMPLATE("what an exception has left gathered on devices ends with its step", World, on_one_device,
                   on_device_each) {
  using namespace gathered_parameters;
  for (const belay::gather_by gathers : {belay::gather_by::reach, belay::gather_by::collectives})
    for (const thrown where : {thrown::between_calls, thrown::in_forward, thrown::in_backward}) {
      CAPTURE(static_cast<int>(where));
      throw_in_a_step(World{3, {work_order::late}}, gathers, where, [](bool holds) { CHECK(holds); });
    }
}

TEST_CASE_TEMPLATE("layers of devices are gathered in the order of the plan, and what departs from it is one miss",
                   World, on_one_device, on_device_each) {
  using namespace gather_orders;
  constexpr std::size_t count = 5;
  const World world{2, {work_order::late}};
  const std::vector<found> host = run_on(on_host{2}, between::nothing, otherwise::never, gather_by::reach, count);
  for (const gather_by how : {gather_by::reach, gather_by::collectives}) {
    for (const found& each : run_on(world, between::evaluation, otherwise::never, how, count)) {
      REQUIRE(each.steps.size() == count);
      for (const gather_counts& step : each.steps) CHECK(step.prefetched == 6);
      for (const gather_counts& step : each.steps) CHECK(step.in_order + step.missed == 0);
      for (const gather_counts& pass : each.passes) CHECK(pass.prefetched == 2);
      for (const gather_counts& pass : each.passes) CHECK(pass.missed == 0);
      CHECK(hits_of_one_trace(each.calls) == 0);
    }
    for (const found& each : run_on(world, between::nothing, otherwise::one_extra_call, how, count)) {
      REQUIRE(each.steps.size() == count);
      for (std::size_t i = 0; i < count; ++i) CHECK(each.steps[i].missed == (i == 2 ? 1 : 0));
      for (std::size_t i = 0; i < count; ++i) CHECK((i == 2 || each.steps[i].prefetched == 6));
      if (!each.losses.empty()) CHECK(each.losses == host[0].losses);  // to the bit
    }
  }
}
TEST_CASE("a rank that departs from the plan on its device gathers alone: its misses, and nobody else's") {
  using namespace gather_orders;
  for (const otherwise what : {otherwise::one_extra_call_on_rank_1, otherwise::passes_on_rank_1}) {
    const std::vector<found> all =
        run_on(on_one_device{2, {work_order::late}}, between::nothing, what, gather_by::reach, 5);
    CHECK(all[0].losses == run_on(on_host{2}, between::nothing, otherwise::never, gather_by::reach, 5)[0].losses);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const bool departs = rank == 1, passes = what == otherwise::passes_on_rank_1;
      REQUIRE(all[rank].steps.size() == 5);
      CHECK(all[rank].steps[2].missed == (departs && !passes ? 1 : 0));
      CHECK(all[rank].passes[2].missed == (departs && passes ? 15 : 0));
    }
  }
}
TEST_CASE_TEMPLATE("where ranks of devices gather together, an order that depends on the rank is named on all ranks",
                   World, on_one_device, on_device_each) {
  using namespace gather_orders;
  for (const auto& [what, words] : departures)
    for (const int ranks : {2, 3}) {
      CAPTURE(words);
      std::vector<found> out;
      for (const std::string& each : told_of(World{ranks, {work_order::late}}, what, out)) CHECK(has(each, words));
      for (const found& each : out) CHECK(each.steps.size() <= 2);
    }
}
