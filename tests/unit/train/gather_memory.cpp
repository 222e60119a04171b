// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run is planned to the byte, and may make calls that its plan does not have: their gathers find memory in the
// plan's, wherever they come, and so do those that the plan goes on with.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;
using belay::gather_by;
using belay::gather_counts;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
// Layers one after the other, of given widths.
struct chain {
  std::vector<listed> layers;
  explicit chain(const std::vector<std::size_t>& widths) {
    layers.reserve(widths.size());
    for (std::size_t i = 0; i < widths.size(); ++i)
      layers.push_back({{{"layer" + std::to_string(i), {widths[i], i == 0 ? columns : widths[i - 1]}}}});
  }
  void for_each_parameter(auto&& visit) {
    for (listed& one : layers) visit(one.weight);
  }
};
// What stands where a step may call layer 0: its output is as large, so that the plan has that memory.
struct place_of_call {
  std::size_t width;
  struct residue {
    belay::view<float, 2> out;
  };
  residue forward(auto& frame, matrix x) { return {frame.template keep<float>(belay::extents<2>{x.extent(0), width})}; }
  void backward(auto&, residue&&, matrix, belay::view<float, 2>) {}
};

// Who calls layer 0 beside the plan, in the second step, after the forward of layer `after`.
struct departure {
  std::size_t after;
  enum class ranks { all, rank_1 } who;
};
struct found {
  std::vector<gather_counts> steps;
  std::size_t peak = 0, planned = 0;  // bytes of the device tier
};

auto body(std::vector<found>& out, const std::vector<std::size_t>& widths, departure departs,
          const belay::store_options& options) {
  return [&out, widths, departs, options](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    chain net{widths};
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, options};
    std::vector<belay::gathers<listed, decltype(store)>> layers;
    for (listed& one : net.layers) layers.emplace_back(one, store);
    place_of_call nothing{widths.front()};
    const data batch(1, 0);
    const std::vector<float> zeros(rows * widths.back());
    const matrix x = batch.inputs(), targets{zeros.data(), {rows, widths.back()}};
    found own;
    for (auto number : run.steps(3)) {
      const bool calls =
          !run.rehearsing() && number == 2 && (departs.who == departure::ranks::all || rank.number() == 1);
      // A function: branches beside handles are more than Clang's -Wconsumed always follows.
      const auto depart = [&](const auto& of, std::size_t after) {
        if (after != departs.after) return;
        if (calls)
          static_cast<void>(belay::observe(of, layers[0], x));
        else
          static_cast<void>(belay::observe(of, nothing, x));
      };
      belay::step step{run.engine(), store};
      belay::handle_store<decltype(belay::forward(step, layers[0], x))> handles{widths.size()};
      for (std::size_t i = 0; i < widths.size(); ++i) {
        handles.keep(i, belay::forward(step, layers[i], i == 0 ? x : matrix(handles.at(i - 1).out())));
        depart(step, i);
      }
      auto [loss, grad] = belay::squared_error(step, handles.at(widths.size() - 1).out(), targets);
      for (std::size_t i = widths.size(); i-- > 0;) grad = handles.take(i).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
      own.steps.push_back(store.take_gathered());
    }
    if (run.rehearsing()) return;
    own.peak = run.meters()[belay::tier::device].peak_bytes();
    own.planned = run.planned().peak_bytes(belay::tier::device);
    out[static_cast<std::size_t>(rank.number())] = std::move(own);
  };
}

}  // namespace

TEST_CASE("a call beside the plan is one miss, and takes no byte more, whatever was started early or is kept") {
  const std::vector<std::size_t> networks[] = {
      {60, 1, 420},  // of layers of 1680, 240 and 1680 bytes two are held at a time
      {7, 7, 7, 100},
      {7, 7, 7, 7, 9},  // where the large one lies depends on how many small ones come before it
      {100, 1, 7, 7, 7}};
  for (const std::vector<std::size_t>& widths : networks)
    for (std::size_t ahead = 0; ahead < 4; ++ahead)
      for (std::size_t after = 0; after < widths.size(); ++after)
        for (const gather_by how : {gather_by::reach, gather_by::collectives}) {
          CAPTURE(widths.size());
          CAPTURE(widths.back());
          CAPTURE(ahead);
          CAPTURE(after);
          CAPTURE(static_cast<int>(how));
          const departure departs{after, how == gather_by::reach ? departure::ranks::rank_1 : departure::ranks::all};
          std::vector<found> all(2);
          belay::launch(belay::host::world{2},
                        body(all, widths, departs, {.bucket_bytes = 64, .gathers = how, .gathers_ahead = ahead}));
          for (std::size_t rank = 0; rank < all.size(); ++rank) {
            const found& each = all[rank];
            const bool called = departs.who == departure::ranks::all || rank == 1;
            REQUIRE(each.steps.size() == 3);
            CHECK(each.peak <= each.planned);
            for (std::size_t i = 0; i < 3; ++i) {
              const gather_counts& step = each.steps[i];
              CHECK(step.missed == (called && i == 1 ? 1 : 0));
              CHECK(step.prefetched + step.in_order == 2 * widths.size());
              if (!called || i != 1) CHECK((ahead == 0 ? step.prefetched : step.in_order) == 0);
              CHECK(step.peak_bytes <= each.steps.front().peak_bytes);
            }
          }
        }
}
