// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store that divides gradients and parameters: what each rank keeps, gathers in the order of the plan, and what is
// told of a slip.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;
using belay::stream_choice;
using belay::stream_policy;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};

// Two layers of one size, so that a gather of the wrong one would be seen by its numbers alone.
struct square_network {
  listed first{{{"first.weight", {7, 7}}}}, second{{{"second.weight", {7, 7}}}}, last{{{"last.weight", {3, 7}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight), visit(last.weight); }
};

struct result {
  std::vector<double> losses;
  std::vector<belay::gather_counts> counts;  // by step
  std::vector<float> kept;                   // elements of parameters and of gradients that a rank keeps
  bool as_planned = true;
};

// What a body may do otherwise in one step.
enum class extra { none, one_more_forward, one_more_on_rank_1, one_forward_less, another_layer_on_rank_1 };

template <int Stage>
auto body(result& out, extra what = extra::none, belay::store_options options = {.seed = 3, .bucket_bytes = 128}) {
  return [&out, what, options](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    square_network net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, options};
    belay::gathers first{net.first, store}, second{net.second, store};
    belay::gathers last{net.last, store};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                       static_cast<std::size_t>(rank.number()));
    std::vector<std::unique_ptr<data>> batches;  // until the step has ended: streams may be queued
    for (auto number : run.steps(4)) {
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      batches.clear();
      const bool otherwise = !run.rehearsing() && number == 3;
      for (std::size_t m = 0; m < mine.count; ++m) {
        const auto scope = step.micro_batch(m);
        const data& batch = *batches.emplace_back(std::make_unique<data>(number, mine.first + m));
        if (otherwise && m == 0 && what == extra::one_more_forward)
          static_cast<void>(belay::observe(step, first, batch.inputs()));
        if (otherwise && m == 0 && what == extra::one_more_on_rank_1 && rank.number() == 1)
          static_cast<void>(belay::observe(step, last, batch.inputs()));
        if (otherwise && m == 0 && what == extra::another_layer_on_rank_1)
          static_cast<void>(rank.number() == 1 ? belay::observe(step, second, batch.inputs()).out()
                                               : belay::observe(step, last, batch.inputs()).out());
        auto h = belay::forward(scope, first, belay::constant(batch.inputs()));
        auto g = belay::forward(scope, second, h.out());
        auto y = belay::forward(scope, last, g.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
        grad = std::move(y).backward(grad);
        grad = std::move(g).backward(grad);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) { out.losses.push_back(end.mean_loss()); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      // Where ranks are processes, each has a result of its own.
      if (run.rehearsing() || (rank.number() != 0 && what != extra::one_more_on_rank_1)) continue;
      out.counts.push_back(store.take_gathered());
      out.as_planned = run.planned().peak_bytes(belay::tier::device) == run.meters()[belay::tier::device].peak_bytes();
    }
  };
}

template <int Stage, class World>
result train(World&& world, const stream_choice& streams = {}, extra what = extra::none,
             belay::store_options options = {.seed = 3, .bucket_bytes = 128}) {
  result out;
  belay::launch(world, body<Stage>(out, what, options), {.streams = streams});
  return out;
}

const belay::store_options together{.seed = 3, .bucket_bytes = 128, .gathers = belay::gather_by::collectives};

const stream_choice policies[] = {
    {}, {stream_policy::queued, 0}, {stream_policy::adversarial, 0}, {stream_policy::adversarial, 7}};

}  // namespace

TEST_CASE("gradients and parameters that are divided train alike, under every policy, and as planned") {
  for (const int ranks : {1, 2, 3}) {
    const result whole = train<1>(belay::host::world{ranks});
    for (const stream_choice& how : policies) {
      INFO(ranks << " ranks, streams " << name(how.policy) << " " << how.seed);
      const result second = train<2>(belay::host::world{ranks}, how), third = train<3>(belay::host::world{ranks}, how);
      REQUIRE(second.losses.size() == 4);
      for (std::size_t step = 0; step < 4; ++step)
        CHECK(second.losses[step] == doctest::Approx(whole.losses[step]).epsilon(1e-6));
      CHECK(second.losses == third.losses);
      const result collective = train<3>(belay::host::world{ranks}, how, extra::none, together);
      CHECK(second.losses == collective.losses);
      CHECK(collective.as_planned);
      CHECK(second.as_planned);
      CHECK(third.as_planned);
      if (ranks == 1) CHECK(second.losses == whole.losses);
    }
  }
}

TEST_CASE("reducing once a step keeps whole gradients, and gives the bits of ZeRO 1") {
  belay::store_options last{.seed = 3, .bucket_bytes = 128};
  last.reduce = belay::reduce_when::last;
  for (const int ranks : {2, 3}) {
    const result whole = train<1>(belay::host::world{ranks});
    CHECK(train<2>(belay::host::world{ranks}, {}, extra::none, last).losses == whole.losses);
    CHECK(train<3>(belay::host::world{ranks}, {stream_policy::queued, 0}, extra::none, last).losses == whole.losses);
  }
}

TEST_CASE("every gather of a step is started before its layer asks, from the first step on") {
  for (const belay::reshard_when reshard : {belay::reshard_when::after_use, belay::reshard_when::after_step}) {
    belay::store_options options{.seed = 3, .bucket_bytes = 128};
    options.reshard = reshard;
    const result found = train<3>(belay::host::world{2}, {}, extra::none, options);
    REQUIRE(found.counts.size() == 4);
    for (const belay::gather_counts& step : found.counts) {
      CHECK(step.missed == 0);
      CHECK(step.in_order == 0);
      // Three micro-batches of three forwards and backwards; or each layer once.
      CHECK(step.prefetched == (reshard == belay::reshard_when::after_use ? 18 : 3));
    }
    CHECK(found.as_planned);
  }
}

TEST_CASE("the depth of the ring of gathers changes when they begin, and no bit; the plan has its memory") {
  constexpr std::size_t square = belay::leased_size(49 * sizeof(float)), small = belay::leased_size(21 * sizeof(float));
  const std::size_t whole[] = {square, 2 * square, 2 * square + small, 2 * square + small};  // at a time, by depth
  for (const belay::gather_by how : {belay::gather_by::reach, belay::gather_by::collectives}) {
    const result one = train<3>(belay::host::world{2});
    for (std::size_t ahead = 0; ahead < 4; ++ahead)
      for (const stream_choice& streams : policies) {
        INFO(ahead << " ahead, streams " << name(streams.policy) << " " << streams.seed);
        belay::store_options options{.seed = 3, .bucket_bytes = 128, .gathers = how, .gathers_ahead = ahead};
        const result found = train<3>(belay::host::world{2}, streams, extra::none, options);
        REQUIRE(found.losses.size() == 4);
        CHECK(found.losses == one.losses);
        CHECK(found.as_planned);
        for (const belay::gather_counts& step : found.counts) {
          CHECK(step.peak_bytes == whole[ahead]);
          CHECK(step.missed == 0);
          CHECK((ahead == 0 ? step.prefetched : step.in_order) == 0);
        }
      }
  }
}

TEST_CASE("parameters below a size stay whole, and are not gathered") {
  belay::store_options options{.seed = 3, .bucket_bytes = 128, .whole_below = 7 * 7 * sizeof(float)};  // the last one
  for (const int ranks : {2, 3}) {
    const result whole = train<1>(belay::host::world{ranks});
    const result found = train<3>(belay::host::world{ranks}, {stream_policy::queued, 0}, extra::none, options);
    REQUIRE(found.losses.size() == 4);
    for (std::size_t step = 0; step < 4; ++step)
      CHECK(found.losses[step] == doctest::Approx(whole.losses[step]).epsilon(1e-6));
    for (const belay::gather_counts& step : found.counts)
      CHECK(step.prefetched == 4 * global_micro_batches / static_cast<std::size_t>(ranks));
    CHECK(found.as_planned);
  }
}

TEST_CASE("what a step does beside the plan is counted once, and the plan stays") {
  for (const belay::store_options& options : {belay::store_options{.seed = 3, .bucket_bytes = 128}, together}) {
    const result found = train<3>(belay::host::world{2}, {}, extra::one_more_forward, options);
    REQUIRE(found.counts.size() == 4);
    for (std::size_t step : {0U, 1U, 3U}) {
      CHECK(found.counts[step].missed == 0);
      CHECK(found.counts[step].prefetched == 18);
    }
    CHECK(found.counts[2].missed == 1);
    CHECK(found.counts[2].prefetched + found.counts[2].in_order == 18);
  }
}

TEST_CASE("ranks that gather together, and different layers beside the plan, are told, in that step") {
  result out;
  std::string told;
  try {
    belay::launch(belay::host::world{2}, body<3>(out, extra::another_layer_on_rank_1, together));
  } catch (const std::exception& error) {
    told = error.what();
  }
  CHECK(contains(told, "ranks gather different layers, and the plan says neither"));
  CHECK(out.losses.size() == 2);
}

TEST_CASE("ranks whose plans have different orders are told before the first step") {
  for (const std::string& one : messages([](auto&rank, auto&run) {
         belay::mesh mesh{rank, {.data = rank.size()}};
         square_network net;
         belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
         belay::gathers first{net.first, store}, second{net.second, store};
         const data batch(1, 0);
         for ([[maybe_unused]] auto number : run.steps(1)) {
           belay::step step{run.engine(), store};
           const bool swaps = rank.number() == 1;
           static_cast<void>(belay::observe(step, swaps ? second : first, batch.inputs()));
           static_cast<void>(belay::observe(step, swaps ? first : second, batch.inputs()));
           step.cut_off();
         }
       }))
    CHECK(contains(one, "rank 0 and rank 1 gather the layers of a step in different orders"));
}

TEST_CASE("layers that are wrapped within a step are gathered when they ask") {
  std::size_t steps = 0;
  const auto late = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    square_network net;
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
    const data batch(1, 0);
    for (auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      belay::gathers first{net.first, store};
      static_cast<void>(belay::observe(step, first, batch.inputs()));
      step.cut_off();
      if (rank.number() == 0 && !run.rehearsing()) steps = number;
    }
  };
  belay::launch(belay::host::world{2}, late);
  CHECK(steps == 2);
}

TEST_CASE("ranks that are processes divide and gather alike") {
  const result threads = train<3>(belay::host::world{3});
  belay::launch(belay::host::processes{3}, [&](auto& rank, auto& run) {
    result out;
    body<3>(out)(rank, run);
    if (!run.rehearsing() && rank.number() == 0 && out.losses != threads.losses)
      throw std::runtime_error("other losses");
  });
}

TEST_CASE("of ranks that are processes one departs alone: its miss, and nobody else's") {
  const result threads = train<3>(belay::host::world{3});
  belay::launch(belay::host::processes{3}, [&](auto& rank, auto& run) {
    result out;
    body<3>(out, extra::one_more_on_rank_1)(rank, run);
    if (run.rehearsing()) return;
    const bool departs = rank.number() == 1;
    for (std::size_t step = 0; step < 4; ++step)
      if (out.counts[step].missed != (departs && step == 2 ? 1U : 0U) ||
          (!departs && out.counts[step].prefetched != threads.counts[step].prefetched))
        throw std::runtime_error("other counts");
    if (rank.number() == 0 && out.losses != threads.losses) throw std::runtime_error("other losses");
  });
}

TEST_CASE("slips are told by name: a layer that is not wrapped, other numbers of micro-batches") {
  for (const std::string& one : messages([](auto&rank, auto&run) {
         belay::mesh mesh{rank, {.data = rank.size()}};
         square_network net;
         belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
         const data batch(1, 0);
         for ([[maybe_unused]] auto number : run.steps(1)) {
           belay::step step{run.engine(), store};
           static_cast<void>(belay::observe(step, net.first, batch.inputs()));
           step.cut_off();
         }
       }))
    CHECK(contains(one,
                   "parameter first.weight is read in layer 'linear', and is divided among ranks: wrap the layer "
                   "in belay::gathers"));
  if constexpr (belay::checked(belay::check_level::across_ranks)) {
    for (const std::string& one : messages([](auto&rank, auto&run) {
           belay::mesh mesh{rank, {.data = rank.size()}};
           network net;
           belay::parameter_store store{run, mesh, net, belay::zero<2>{}};
           for ([[maybe_unused]] auto number : run.steps(1)) {
             belay::step step{run.engine(), store};
             step.micro_batches(rank.number() == 0 ? 1 : 2);
             step.cut_off();
           }
         }))
      CHECK(contains(one, "ranks have different numbers of micro-batches (rank 0: 1; rank 1: 2)"));
  }
  // Under ZeRO-3 ranks gather as often, too: from the first step on, which the plan has, and in a later one.
  for (const bool at_once : {true, false}) {
    if (!at_once && !belay::checked(belay::check_level::across_ranks)) continue;
    const belay::store_options options{.reduce = belay::reduce_when::last, .gathers = belay::gather_by::collectives};
    for (const std::string& one : messages([&](auto& rank, auto& run) {
           belay::mesh mesh{rank, {.data = rank.size()}};
           square_network net;
           belay::parameter_store store{run, mesh, net, belay::zero<3>{}, options};
           belay::gathers first{net.first, store};
           const data batch(1, 0);
           for (auto number : run.steps(2)) {
             belay::step step{run.engine(), store};
             const std::size_t count = rank.number() == 1 && (at_once || number == 2) ? 3 : 2;
             step.micro_batches(count);
             for (std::size_t m = 0; m < count; ++m)
               static_cast<void>(belay::observe(step.micro_batch(m), first, batch.inputs()));
             step.cut_off();
           }
         }))
      CHECK(contains(one, at_once
                              ? "ranks have different numbers of micro-batches in their first step (rank 0: 2; rank "
                                "1: 3), and gather the layers"
                              : "ranks have different numbers of micro-batches (rank 0: 2; rank 1: 3), and gather "
                                "divided parameters together in each"));
  }
}
