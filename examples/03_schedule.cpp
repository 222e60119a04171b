// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A pipeline schedule is a value: proven by the compiler, drawn as text and as a picture, and executed by a pipeline.
//      examples/run 03_schedule [NAME] [FILE.svg]
// NAME is any schedule of the library: 1f1b, interleaved:2, zb-v, v-half, ...
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/report/schedule_chart.hpp"

namespace {

// Four stages, eight micro-batches. A table that drops a backward, deadlocks, or keeps more than four micro-batches
// alive on a stage does not compile.
constexpr auto table = belay::schedule::one_f_one_b<4, 8>();
static_assert(belay::proof(table).complete);
static_assert(belay::proof(table).deadlock_free);
static_assert(belay::require_proven<table, 4>());

}  // namespace

int main(int argc, char** argv) try {
  // A schedule by its name, of four ranks and eight micro-batches.
  const std::string last = argc > 1 ? argv[argc - 1] : "";
  const bool draws = last.ends_with(".svg");
  const std::string name = argc - draws > 1 ? argv[1] : "1f1b";
  const auto named = belay::schedule::named_table(name, 4, 8);
  std::printf("%s\n", belay::schedule::draw_text(named).c_str());
  const auto cost = belay::schedule::cost_of(named, belay::schedule::equal_costs{});
  std::printf("%s: %lld units, of which a rank waits %lld, and keeps at most %zu of %zu chunks\n\n", name.c_str(),
              static_cast<long long>(cost.total), static_cast<long long>(cost.bubble()), cost.peak, 8 * named.chunks());

  // The same proof at run time, for sizes known only now, and the message for a wrong table.
  const auto gpipe = belay::schedule::gpipe(4, 8);
  std::printf("gpipe keeps %zu micro-batches alive, 1f1b %zu\n", belay::proof(gpipe).peak, belay::proof(table).peak);
  std::vector<std::vector<belay::schedule::action>> lists;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const auto actions = gpipe.actions(stage);
    lists.emplace_back(actions.begin(), actions.end());
  }
  lists[3].pop_back();
  const auto wrong = belay::schedule::make_table("wrong", 8, lists);
  std::printf("without its last action: %s\n", belay::explain(belay::proof(wrong).reason).c_str());

  // Played with a time for each stage: how long it waits for a neighbour.
  const std::vector<double> forward(4, 1.0), backward(4, 2.0);
  std::printf("bubble of 1f1b with equal stages: %.3f\n",
              belay::schedule::timeline(belay::schedule::to_dynamic(table), forward, backward).idle());
  if (draws) {
    std::ofstream drawing(last);
    if (!(drawing << belay::schedule::draw_svg(named, belay::schedule::equal_costs{})).flush())
      throw belay::file_error(last, 0, "cannot be written");
    std::printf("drawn to %s\n", last.c_str());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "03_schedule: %s\n", belay::printable_what(error).c_str());
  return 1;
}
