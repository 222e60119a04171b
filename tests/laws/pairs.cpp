// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forwards that run beside backwards, in turns, train to the bit as one after the other do, and take the memory that
// was planned: a rehearsal runs the same turns.
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "laws/support/run.hpp"
#include "train_moe/run_schedule.hpp"

using namespace laws;
using belay::stream_choice;
using belay::stream_policy;

namespace {

struct paired_run {
  const char* schedule;
  belay::axes mesh;
  int zero;
  recompute_kind recompute;
  belay::tier activations;
  stream_choice streams;
};

options options_of(const paired_run& one) {
  options run = small_run();
  run.micro_batches = 8;
  run.steps = 2;
  run.mesh = one.mesh;
  run.schedule = one.schedule;
  run.zero = static_cast<belay::zero_stage>(one.zero);
  run.recompute = one.recompute;
  run.activation_tier = one.activations;
  run.streams = one.streams;
  run.overlap_pairs = true;
  return run;
}

constexpr belay::axes alone{1, 1, 1, 1}, experts{1, 1, 2, 1}, both{2, 1, 2, 1}, replicas{1, 2, 2, 1};
constexpr auto none = recompute_kind::none, full = recompute_kind::full, selective = recompute_kind::selective;
constexpr auto device = belay::tier::device, host = belay::tier::host;
const stream_choice immediate{}, queued{stream_policy::queued, 0};
stream_choice late(std::uint64_t seed) { return {stream_policy::adversarial, seed}; }

}  // namespace

TEST_CASE("pairs that overlap train as their computes one after the other do, to the bit, in the memory of the plan") {
  const std::vector<paired_run> runs{
      {"1f1b", experts, 0, none, device, immediate},
      {"1f1b", alone, 0, none, device, queued},
      {"1f1b", experts, 1, none, device, queued},
      {"1f1b", experts, 0, full, device, late(1)},
      {"zb-h1", experts, 3, none, device, late(2)},
      {"zb-h1", experts, 2, selective, host, queued},
      {"interleaved-zb:2", replicas, 3, full, device, immediate},
      {"1f1b", experts, 0, none, host, late(3)},
      {"dualpipe-v:atomic", both, 0, none, device, queued},
      {"dualpipe-v:atomic", both, 1, none, device, late(4)},
      {"zb-v", both, 2, none, device, immediate},
      {"interleaved:2", both, 3, none, device, queued},
  };
  const uneven_text source(small_run().model.vocab);
  std::map<std::tuple<int, int, bool>, record> expected;  // sums of other ranks have another order
  std::size_t number = 0;
  for (const paired_run& one : runs) {
    if (only_a_sample() && number++ % 4 != 2) continue;
    const options run = options_of(one);
    const bool by_micro_batch = run.zero >= belay::zero_stage::gradients;
    record& whole = expected[{run.mesh.data, run.mesh.expert, by_micro_batch}];
    if (whole.losses.empty()) {
      options plain =
          options_of({"1f1b", {1, run.mesh.data, run.mesh.expert, 1}, by_micro_batch ? 2 : 0, none, device, immediate});
      plain.overlap_pairs = false;
      whole = train<float>(plain, source);
    }
    CAPTURE(one.schedule);
    CAPTURE(run.mesh.text());
    CAPTURE(number);
    CHECK(overlapped_pairs(run, schedule_of(run)) >= 6);
    const difference apart = compare(whole, train<float>(run, source));
    INFO(apart.where << " differs by " << apart.worst);
    CHECK(apart.worst == 0);
  }
}
