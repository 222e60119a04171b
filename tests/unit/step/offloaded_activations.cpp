// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/offloaded_activations.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/kernel.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"
#include "support/offloaded_layers.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

using namespace offloaded_layers;
using belay::stream_policy;
using belay::tier;

namespace {

struct found {
  std::vector<double> gradients;
  std::size_t device = 0, lower = 0;  // peaks of the run
  std::size_t planned_device = 0, planned_lower = 0;
  belay::return_counts counts;
  std::uint64_t allocated = 0;  // in the third step, by handles' stores of the test too
};

enum class order { none, last_first, first_first, in_turn };
enum class recomputes_halves { no, yes };
struct how {
  tier lower = tier::host;
  order backwards = order::last_first;
  recomputes_halves recomputes = recomputes_halves::no;
  std::size_t micro_batches = 3;
  order second_step = order::none;  // another order in the second step than in the rehearsal
};

// Two layers, each twice, over several micro-batches in flight.
auto body_of(how what, found& out) {
  return [what, &out](auto& rank, auto& run) {
    static_cast<void>(rank);
    curved bent;
    halved half;
    belay::recompute<halved> lean{half};
    belay::offloaded_activations activations{run, what.lower};
    belay::offloads first{bent, activations};
    belay::offloads second{half, activations};
    belay::offloads cheap{lean, activations};
    std::vector<double> input(rows * width);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = 1 + static_cast<double>(i % 7) / 16;
    order now = what.backwards;
    const auto train = [&](const auto& step, auto& other) {
      using engine_type = std::remove_reference_t<decltype(run.engine())>;
      using one = belay::saved<engine_type, std::remove_reference_t<decltype(first)>, matrix>;
      using two = belay::saved<engine_type, std::remove_reference_t<decltype(other)>, matrix>;
      belay::handle_store<one> ones{2 * what.micro_batches};
      belay::handle_store<two> twos{2 * what.micro_batches};
      step.micro_batches(what.micro_batches);
      const auto forward = [&](std::size_t m) {
        matrix x{input.data(), {rows, width}};
        for (std::size_t i = 2 * m; i < 2 * m + 2; ++i) {
          ones.keep(i, belay::forward(step.micro_batch(m), first, x));
          if (i % 2 == 1) twos.at(i - 1).let_go();
          twos.keep(i, belay::forward(step.micro_batch(m), other, ones.at(i).out()));
          ones.at(i).let_go();
          x = twos.at(i).out();
        }
      };
      const auto backward = [&](std::size_t m) {
        auto dy = belay::gradient<engine_type, double, 2>{step.engine(), {rows, width}};
        step.engine().compute().run([to = dy.values(), from = twos.at(2 * m + 1).out()] {
          for (std::size_t i = 0; i < to.size(); ++i) to.data()[i] = from.data()[i];
        });
        for (std::size_t i = 2 * m + 2; i-- > 2 * m;) {
          dy = twos.take(i).backward(dy);
          dy = ones.take(i).backward(dy);
        }
      };
      if (now == order::in_turn) forward(0);
      for (std::size_t m = 0; m < what.micro_batches; ++m) {
        if (now != order::in_turn) {
          forward(m);
        } else {
          if (m + 1 < what.micro_batches) forward(m + 1);
          backward(m);
        }
      }
      for (std::size_t m = 0; m < what.micro_batches && now != order::in_turn; ++m)
        backward(now == order::last_first ? what.micro_batches - 1 - m : m);
    };
    for (auto number : run.steps(3)) {
      now = number == 2 && what.second_step != order::none ? what.second_step : what.backwards;
      const std::uint64_t allocated = tools::heap_allocations();
      belay::step step{run.engine()};
      belay::lease_chain spare;  // another order than the plan's may need more: a plan with room for it
      if (run.rehearsing() && what.second_step != order::none)
        static_cast<void>(run.engine().activations().lease_bytes(1 << 15, spare));
      what.recomputes == recomputes_halves::yes ? train(step, cheap) : train(step, second);
      run.engine().activations().release(spare);
      auto outcome = std::move(step).commit();
      REQUIRE(belay::committed(outcome) != nullptr);
      CHECK(run.meters()[tier::device].live_bytes() == lasting_bytes(run, tier::device));
      CHECK(run.meters()[what.lower].live_bytes() == lasting_bytes(run, what.lower));
      if (run.rehearsing()) continue;
      out.gradients.push_back(bent.gradient);
      if (number == 3) out.allocated = tools::heap_allocations() - allocated;
    }
    if (run.rehearsing()) return;
    out.device = run.meters()[tier::device].peak_bytes();
    out.lower = run.meters()[what.lower].peak_bytes();
    out.planned_device = run.planned().peak_bytes(tier::device);
    out.planned_lower = run.planned().peak_bytes(what.lower);
    out.counts = activations.counts();
  };
}

template <class Kit = belay::host_kit<>>
found train(how what, belay::stream_choice streams = {}) {
  found out;
  belay::launch<Kit>(belay::host::world{1}, body_of(what, out), {.streams = streams});
  return out;
}

// Streams that do not wait: computing for copies, or copies for computing.
template <belay::stream_kind Kind>
struct forgetful_stream : belay::host_stream {
  explicit forgetful_stream(belay::stream_kind kind = belay::stream_kind::compute)
      : host_stream(kind), forgets_(kind == Kind) {}
  explicit forgetful_stream(const belay::stream_settings& how, int rank = 0,
                            belay::stream_kind kind = belay::stream_kind::compute)
      : host_stream(how, rank, kind), forgets_(kind == Kind) {}
  // Its clock goes on, as if it had not forgotten: memory is where it was planned.
  void wait(const belay::stream_event& mark, belay::where at = belay::where::current()) {
    host_stream::wait(forgets_ ? belay::stream_event().at(mark.clock()) : mark, at);
  }

 private:
  bool forgets_ = false;
};
template <belay::stream_kind Kind>
bool is_caught(how what) {
  using kit = belay::host_kit<forgetful_stream<Kind>>;
  const found expected = train(what);
  CHECK(train<kit>(what).gradients == expected.gradients);  // what runs at once needs no events
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    if (train<kit>(what, {stream_policy::adversarial, seed}).gradients != expected.gradients) return true;
  return false;
}

const belay::stream_choice all_streams[] = {{stream_policy::immediate, 0},   {stream_policy::queued, 0},
                                            {stream_policy::adversarial, 0}, {stream_policy::adversarial, 1},
                                            {stream_policy::adversarial, 2}, {stream_policy::adversarial, 3}};

}  // namespace

TEST_CASE("activations that were in a lower tier give the bits of resident ones, and both tiers peak as planned") {
  for (const order backwards : {order::last_first, order::first_first, order::in_turn})
    for (const recomputes_halves again : {recomputes_halves::no, recomputes_halves::yes})
      for (const std::size_t micro_batches : {std::size_t{1}, std::size_t{4}}) {
        const how resident{tier::device, backwards, again, micro_batches};
        const found expected = train(resident);
        REQUIRE(expected.gradients.size() == 3);
        CHECK(expected.gradients[0] != 0);
        for (const tier lower : {tier::host, tier::pinned})
          for (const belay::stream_choice& streams : all_streams) {
            how what = resident;
            what.lower = lower;
            const found got = train(what, streams);
            CAPTURE(std::string(name(streams.policy)));
            CAPTURE(std::string(name(lower)));
            CAPTURE(static_cast<int>(again));
            CAPTURE(streams.seed);
            CAPTURE(static_cast<int>(backwards));
            CAPTURE(micro_batches);
            CHECK(got.gradients == expected.gradients);
            CHECK(got.device == got.planned_device);
            CHECK(got.lower == got.planned_lower);
            CHECK(got.lower > 0);
            CHECK(got.counts.missed == 0);
            if (streams.policy == stream_policy::immediate) CHECK(got.allocated == expected.allocated);
            if (micro_batches > 1) CHECK(got.counts.prefetched > 0);
            if (micro_batches > 1) CHECK(got.device < expected.device);
          }
      }
}

TEST_CASE("wrong policies do not pass: freed bytes of the device are used before their copy's event") {
  for (const recomputes_halves again : {recomputes_halves::no, recomputes_halves::yes}) {
    CHECK(is_caught<belay::stream_kind::compute>({tier::host, order::last_first, again}));
    CHECK(is_caught<belay::stream_kind::copy>({tier::host, order::last_first, again}));
  }
}

TEST_CASE("a step in another order than the plan's costs copies that are not hidden, and changes no bit") {
  how what{tier::host, order::last_first};
  const found expected = train(what);
  what.second_step = order::last_first;
  CHECK(train(what).counts.missed == 0);
  what.second_step = order::first_first;
  how resident = what;
  resident.lower = tier::device;
  for (const belay::stream_choice& streams : all_streams) {
    const found got = train(what, streams);
    CHECK(got.gradients == train(resident).gradients);
    CHECK(got.counts.missed > 0);
  }
}

TEST_CASE("a call that stays on the device keeps what its backward reads when its output is let go of") {
  const auto gradient = [](tier lower, const belay::stream_choice& streams) {
    double out = 0;
    belay::launch(belay::host::world{1},
                  [&](auto&, auto& run) {
                    curved bent;
                    belay::offloaded_activations activations{run, lower};
                    belay::offloads layer{bent, activations};
                    std::vector<double> input(rows * width, 1.5), ones(rows * width, 1.0);
                    for (auto number : run.steps(2)) {
                      static_cast<void>(number);
                      belay::step step{run.engine()};
                      auto h = belay::forward(step, layer, matrix{input.data(), {rows, width}});
                      h.let_go();
                      const belay::gradient<std::remove_reference_t<decltype(run.engine())>, double, 2> dy{
                          run.engine(), {rows, width}};
                      run.engine().compute().run([to = dy.values().data()] { std::fill_n(to, rows * width, 1.0); });
                      static_cast<void>(std::move(h).backward(dy));
                      static_cast<void>(std::move(step).commit());
                    }
                    if (!run.rehearsing()) out = bent.gradient;
                    if (!run.rehearsing() && lower != tier::device) CHECK(activations.counts().stayed == 2);
                  },
                  {.streams = streams});
    return out;
  };
  const double expected = gradient(tier::device, {});
  CHECK(expected == 2 * rows * width * 1.5);
  for (const belay::stream_choice& streams : all_streams) CHECK(gradient(tier::host, streams) == expected);
}

TEST_CASE("exactly the planned bytes of the lower tier are accepted, and one byte less is refused") {
  found out;
  const auto body = body_of({}, out);
  const belay::rehearsal_result planned = belay::rehearse(1, body);
  belay::launch_options options;
  options.budget[tier::host] = planned.plan.ranks()[0].peak_bytes(tier::host);
  belay::launch(belay::host::world{1}, body, options);
  CHECK(out.lower == options.budget[tier::host]);
  --options.budget[tier::host];
  CHECK_THROWS_AS(belay::launch(belay::host::world{1}, body, options), belay::plan_refused);
}
