// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Every schedule trains what one rank trains, to the bit, whatever else is chosen: ranks with several stages, the batch
// and the loss on whichever of them the table puts the first stage and the last.
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "laws/support/pairwise.hpp"
#include "laws/support/run.hpp"
#include "train_moe/run_schedule.hpp"
#include "unit/parallel/support/breadth_first_in_v.hpp"

using namespace laws;
using belay::tier;
namespace schedule = belay::schedule;

namespace {

const std::vector<std::string> schedules{
    "gpipe", "interleaved:2", "interleaved:2:4", "interleaved:3", "bfs:2",  "bfs:3", "v.csv",      "zb-h1",
    "zb-h2", "interleaved-zb:2", "interleaved-zb:3", "zb-v",      "v-half", "v-min", "dualpipe-v", "dualpipe-v:atomic",
};

constexpr std::size_t layers = 6;

options base_run() {
  options run = small_run();
  run.model.layers = layers;
  run.steps = 2;
  run.schedule = "1f1b";
  return run;
}

// As even as can be, with one layer of the first stage in the second.
std::vector<std::size_t> uneven(std::size_t stages) {
  std::vector<std::size_t> out = model::model_part::even_layers(layers, stages);
  --out[0], ++out[1];
  return out;
}

using row_type = setting_row<8>;

// Nothing where the model has too few layers, or a stage no neighbour.
std::optional<options> run_of(const row_type& row) {
  options run = base_run();
  const auto ranks = static_cast<int>(row[1]) + 1;
  run.mesh = {ranks, row[2] == 1 ? 2 : 1, row[2] == 2 ? 2 : 1, 1};
  run.schedule = schedules[row[0]];
  if (run.schedule == "v.csv")
    run.schedule_text = schedule::to_csv(
        schedule::generate(test::breadth_first_in_v{}, static_cast<std::size_t>(ranks), batch_shape(run).micro_batches));
  run.zero = static_cast<belay::zero_stage>(row[3]);
  run.recompute = static_cast<recompute_kind>(row[4]);
  if (row[5] == 1) run.activation_tier = tier::host;
  if (row[5] == 2) {
    run.optimizer_tier = tier::pinned;
    if (run.zero >= belay::zero_stage::gradients) run.gradient_tier = tier::host;
    if (run.zero == belay::zero_stage::parameters) run.parameter_tier = tier::pinned;
  }
  const std::size_t stages = schedule_of(run).stages();
  if (stages > layers || (row[6] == 1 && stages == 1)) return std::nullopt;
  if (row[6] == 1) run.stage_layers = uneven(stages);
  const belay::stream_policy policies[] = {belay::stream_policy::immediate, belay::stream_policy::queued,
                                           belay::stream_policy::adversarial};
  run.streams = {policies[row[7]], row[7] == 2 ? 3 * row[0] + row[1] : 0};
  return run;
}

std::vector<row_type> rows() {
  const row_type values{static_cast<unsigned>(schedules.size()), 3, 3, 4, 3, 3, 2, 3};
  std::vector<row_type> all(1);
  for (std::size_t column = 0; column < values.size(); ++column) {
    std::vector<row_type> longer;
    for (row_type row : all)
      for (row[column] = 0; row[column] < values[column]; ++row[column]) longer.push_back(row);
    all = std::move(longer);
  }
  std::erase_if(all, [](const row_type& row) { return !run_of(row); });
  return is_soak() ? all : pairwise(all);
}

std::string text(const options& run) {
  return run.mesh.text() + ", " + run.schedule + ", zero " + std::to_string(static_cast<int>(run.zero)) +
         ", recompute " + std::to_string(static_cast<int>(run.recompute)) + ", offload " + offload_text(run) +
         ", layers " + layers_text(run.stage_layers) + ", streams " + streams_text(run.streams);
}

}  // namespace

TEST_CASE("every schedule trains as one rank does, to the bit, beside every other setting") {
  const uneven_text source(base_run().model.vocab);
  std::map<std::tuple<int, int, belay::zero_stage>, record> expected;  // sums of other ranks have another order
  std::size_t number = 0;
  for (const row_type& row : rows()) {
    if (only_a_sample() && number++ % 6 != 0) continue;
    const options run = *run_of(row);
    options alone = base_run();
    alone.mesh = {1, run.mesh.data, run.mesh.expert, 1};
    if (run.zero >= belay::zero_stage::gradients) alone.zero = belay::zero_stage::gradients;  // by micro-batch
    record& one = expected[{alone.mesh.data, alone.mesh.expert, alone.zero}];
    if (one.losses.empty()) {
      one = train<float>(alone, source);
    }
    const difference bits = compare(one, train<float>(run, source));
    INFO(text(run) << ": " << bits.where << " differs by " << bits.worst);
    CHECK(bits.worst == 0);
  }
}

// A tensor between stages is rounded where it leaves the rank.
TEST_CASE("in bf16 ranks with several stages train as a longer pipeline does, which rounds in the same places") {
  options run = base_run();
  run.dtype = belay::dtype::bf16;
  const uneven_text source(run.model.vocab);
  run.mesh = {4, 2, 1, 1};
  const record longer = train<belay::bf16>(run, source);
  run.mesh.pipeline = 2;
  for (const char* name : {"interleaved:2", "bfs:2", "interleaved-zb:2"}) {
    CAPTURE(name);
    run.schedule = name;
    run.zero = belay::zero_stage::optimizer_state;
    CHECK(compare(longer, train<belay::bf16>(run, source)).worst == 0);
  }
}
