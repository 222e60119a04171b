// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How long ranks of a pipeline wait: two of them, one on each core, with immediate streams and stages that do nothing
// but compute for a millisecond: a forward, an input gradient, a weight gradient each. Of every schedule a line of
// JSON: the share of the time that no rank computes, of each round, beside that of the schedule alone, where tensors
// wait for nobody, and where a rank's exchanges run one after the other.
//   pipeline_idle ROUNDS MICRO_BATCHES MICROSECONDS      bench/run pipeline
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "belay/parallel/schedule.hpp"

namespace {

constexpr std::size_t ranks = 2;

using clock_type = std::chrono::steady_clock;
using time_point = clock_type::time_point;
using tensor = belay::view<const float, 1>;

/// Computes of a rank, one after the other.
struct busy_rank {
  std::chrono::nanoseconds tick{};  // of one; 0: of a rehearsal
  std::chrono::nanoseconds all{};

  void compute(int ticks) {
    const time_point begin = clock_type::now(), end = begin + ticks * tick;
    double x = 1;
    while (clock_type::now() < end) x = x * 1.0000001 + 1e-9;
    sum += x;
    all += clock_type::now() - begin;
  }
  double sum = 0;
};

/// A stage that only takes its time.
class spinning_stage {
 public:
  explicit spinning_stage(busy_rank& on) noexcept : on_(&on) {}

  void forward(const auto& /*scope*/, tensor) { on_->compute(1); }
  void backward(const auto& /*scope*/, tensor) { on_->compute(2); }
  void backward_input(const auto& /*scope*/, tensor) { on_->compute(1); }
  void weights(const auto& /*scope*/) { on_->compute(1); }
  [[nodiscard]] tensor output(std::size_t) const noexcept { return {&number_, {1}}; }
  [[nodiscard]] tensor input_gradient(std::size_t) const noexcept { return {&number_, {1}}; }
  void release(std::size_t) const noexcept {}

 private:
  busy_rank* on_;
  float number_ = 1;
};

// The share of the time in which no rank computes, of each round but the first.
std::vector<double> idle_shares(const belay::schedule::dynamic_table& table, std::size_t rounds,
                                std::chrono::microseconds tick) {
  struct times_of_rank {
    time_point begin, end;
    std::chrono::nanoseconds busy{};
  };
  std::array<std::vector<times_of_rank>, ranks> times;
  const auto body = [&](belay::rank& rank, belay::run& run) {
    const belay::mesh mesh{rank, belay::axes{.pipeline = ranks}};
    busy_rank own{run.rehearsing() ? std::chrono::nanoseconds{} : std::chrono::nanoseconds{tick}};
    std::deque<spinning_stage> stages;
    std::vector<spinning_stage*> pointers;
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk) pointers.push_back(&stages.emplace_back(own));
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({1})};
    for ([[maybe_unused]] const std::size_t round : run.steps(rounds + 1)) {
      belay::step step{run.engine()};
      mesh.control().barrier();
      own.all = {};
      times_of_rank now{clock_type::now(), {}};
      pipeline.run(step, belay::stages_of_rank<spinning_stage>(pointers));
      run.engine().synchronize();
      now.end = clock_type::now();
      now.busy = own.all;
      static_cast<void>(std::move(step).commit());
      if (!run.rehearsing()) times[static_cast<std::size_t>(rank.number())].push_back(now);
    }
  };
  belay::launch(belay::host::world{ranks, {.pin = belay::host::pinning::one_core_each}}, body,
                {.streams = {belay::stream_policy::immediate, 0}});
  std::vector<double> shares;
  for (std::size_t round = 1; round < times[0].size(); ++round) {
    time_point begin = times[0][round].begin, end = times[0][round].end;
    std::chrono::nanoseconds busy{};
    for (const auto& of_rank : times) {
      begin = std::min(begin, of_rank[round].begin);
      end = std::max(end, of_rank[round].end);
      busy += of_rank[round].busy;
    }
    shares.push_back(1 - std::chrono::duration<double>(busy) / (ranks * std::chrono::duration<double>(end - begin)));
  }
  return shares;
}

void measure(const std::string& name, std::size_t rounds, std::size_t micro_batches, std::chrono::microseconds tick) {
  const auto table = belay::schedule::named_table(name, ranks, micro_batches);
  const auto cost = belay::schedule::cost_of(table, belay::schedule::equal_costs{});
  const double formula = static_cast<double>(cost.bubble()) / static_cast<double>(cost.total);
  belay::schedule::timeline_player<belay::schedule::dynamic_table, belay::schedule::ticks> player(table);
  std::printf("{\"schedule\": \"%s\", \"chunks\": %zu, \"formula\": %.6f, \"unbuffered\": %.6f, \"idle\": [",
              name.c_str(), table.chunks(), formula, player.play_costs(belay::schedule::equal_costs{}).idle());
  const char* separator = "";
  for (const double share : idle_shares(table, rounds, tick))
    std::printf("%s%.6f", std::exchange(separator, ", "), share);
  std::printf("]}\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  const auto number = [&](int at, unsigned long otherwise) {
    return argc > at ? std::strtoul(argv[at], nullptr, 10) : otherwise;
  };
  const std::size_t rounds = number(1, 5), micro_batches = number(2, 8);
  const std::chrono::microseconds tick(number(3, 1000));
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "bfs:2", "interleaved-zb:2", "zb-h1",
                           "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"})
    measure(name, rounds, micro_batches, tick);
} catch (const std::exception& problem) {
  std::fprintf(stderr, "pipeline_idle: %s\n", problem.what());
  return 1;
}
