// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A store on a mesh whose data axis is cut into shard groups: state is divided within a group, and replicated over
// them.
#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct deep_network {
  listed first{{{"first.weight", {7, 7}}}}, last{{{"last.weight", {3, 7}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(last.weight); }
};

// Of four steps.
struct result {
  std::vector<double> losses, norms;
  bool as_planned = true;
};

template <int Stage>
auto body(result& out, int shard_group) {
  return [&out, shard_group](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size(), .shard_group = shard_group}};
    deep_network net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, {.seed = 3, .bucket_bytes = 128}};
    belay::gathers first{net.first, store}, last{net.last, store};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                       static_cast<std::size_t>(rank.number()));
    std::vector<std::unique_ptr<data>> batches;
    for (auto number : run.steps(4)) {
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      batches.clear();
      for (std::size_t m = 0; m < mine.count; ++m) {
        const auto scope = step.micro_batch(m);
        const data& batch = *batches.emplace_back(std::make_unique<data>(number, mine.first + m));
        auto h = belay::forward(scope, first, belay::constant(batch.inputs()));
        auto y = belay::forward(scope, last, h.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.1});
      if (!run.rehearsing() &&
          run.planned().peak_bytes(belay::tier::device) != run.meters()[belay::tier::device].peak_bytes())
        out.as_planned = false;
    }
  };
}

template <int Stage, class World>
result train(World&& world, int shard_group, const belay::stream_choice& streams = {}) {
  result out;
  belay::launch(world, body<Stage>(out, shard_group), {.streams = streams});
  return out;
}

void check_alike(const result& expected, const result& found) {
  REQUIRE(found.losses.size() == 4);
  for (std::size_t step = 0; step < 4; ++step) {
    CHECK(found.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-6));
    CHECK(found.norms[step] == doctest::Approx(expected.norms[step]).epsilon(1e-6));
  }
  CHECK(found.as_planned);
}

template <int Stage>
std::size_t planned_bytes(int ranks, int shard_group, const std::string& purpose) {
  result out;
  const belay::rehearsal_result planned = belay::rehearse(ranks, body<Stage>(out, shard_group));
  for (const auto& item : planned.plan.ranks()[1].items())
    if (item.purpose == purpose) return item.bytes;
  throw std::runtime_error("no " + purpose + " in the plan");
}

}  // namespace

TEST_CASE("groups of any size train as one rank does, whatever is divided, and as planned") {
  const result one = train<1>(belay::host::world{1}, 0);
  for (const auto& [ranks, group] : {std::pair{2, 1}, {3, 1}, {3, 3}, {6, 2}, {6, 3}}) {
    INFO(ranks << " ranks in groups of " << group);
    const belay::host::world world{ranks};
    check_alike(one, train<1>(world, group));
    const result second = train<2>(world, group, {belay::stream_policy::queued, 0});
    check_alike(one, second);
    const result third = train<3>(world, group, {belay::stream_policy::adversarial, 1});
    CHECK(third.losses == second.losses);
    CHECK(third.as_planned);
  }
}

TEST_CASE("a rank keeps the shard of its group, however many groups there are") {
  for (const char* purpose : {"parameters", "gradients", "optimizer state"}) {
    CHECK(planned_bytes<3>(4, 2, purpose) == planned_bytes<3>(2, 0, purpose));
    CHECK(planned_bytes<3>(4, 2, purpose) > planned_bytes<3>(4, 0, purpose));
  }
}

TEST_CASE("ranks that are processes form shard groups alike") {
  const result threads = train<3>(belay::host::world{6}, 2);
  belay::launch(belay::host::processes{6}, [&](auto& rank, auto& run) {
    result out;
    body<3>(out, 2)(rank, run);
    if (!run.rehearsing() && rank.number() == 0 && out.losses != threads.losses)
      throw std::runtime_error("other losses");
  });
}

TEST_CASE("copies of what nobody divides are refused") {
  static_cast<void>(belay::host::world{2}.run([](auto& rank) {
    deep_network net;
    using group = belay::host::group;
    std::vector<belay::bucket_member<float>> members;
    members.emplace_back(net.first.weight, 0);
    const belay::bucket_replica_group<group> wrong{rank.world(), belay::zero_stage::none,
                                                   belay::reduce_when::each_micro_batch, rank.world()};
    CHECK_THROWS_WITH_AS((belay::gradient_buckets<float, group>{members, {wrong}, 128, 1}),
                         doctest::Contains("copies of shards divides them among two ranks or more"),
                         belay::usage_error);
    return 0;
  }));
}
