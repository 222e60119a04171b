// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// offload [millions of parameters] [rounds] [folder]
//
// What offload costs on one rank with a core for its copies. First a slot of a ring: taken and given back, beside its
// events. Then AdamW over 2^20 parameters a million with its state in every tier: nanoseconds a parameter, and how much
// of the copies was hidden (1 - waiting on copies / time of copies); limits 60 ns and 0.90.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "support/matrices.hpp"

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}
double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Nanoseconds of a slot that is taken and given back, at events of a queued stream that are over.
double slot_nanoseconds(std::size_t rounds) {
  constexpr std::size_t calls = 100000;
  std::vector<std::byte> memory(3 * 4096);
  belay::slot_ring ring(memory, 3, 64);
  belay::host_stream stream({belay::stream_policy::queued});
  const belay::stream_event over = stream.record();
  std::vector<double> samples;
  for (std::size_t r = 0; r < rounds; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      static_cast<void>(ring.acquire(stream));
      ring.release(over);
    }
    samples.push_back(1e9 * seconds_since(begin) / static_cast<double>(calls));
  }
  return median(samples);
}

struct figures {
  double nanoseconds = 0;  // a parameter
  double hidden = 0;
};
figures update(std::size_t parameters, std::size_t rounds, const belay::optimizer_memory& memory) {
  figures out;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    bench::network net(parameters);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    belay::adamw optimizer{store, {}, memory};
    const float one = 0.5F;
    std::vector<double> samples, hidden;
    for (auto number : run.steps(rounds + 1)) {
      belay::step step{run.engine(), store};
      net.write_gradients(step, one);
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      const belay::copy_times before = run.engine().times_of_copies();
      const auto begin = std::chrono::steady_clock::now();
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3, .clip = 1.0});
      run.engine().synchronize();
      if (run.rehearsing() || number == 1) continue;  // warm
      samples.push_back(1e9 * seconds_since(begin) / static_cast<double>(parameters));
      const belay::copy_times after = run.engine().times_of_copies();
      hidden.push_back(belay::copy_times{after.copied - before.copied, after.waited - before.waited}.hidden_share());
    }
    if (!run.rehearsing()) out = {median(samples), median(hidden)};
  };
  belay::launch(belay::host::world{1}, body, {.streams = {belay::stream_policy::queued, 0}});
  return out;
}

std::size_t number_of(int argc, char** argv, int which, std::size_t otherwise) {
  return argc > which ? std::strtoul(argv[which], nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  const std::size_t parameters = quick ? std::size_t{1} << 18U : number_of(argc, argv, 1, 32) << 20U;
  const std::size_t rounds = quick ? 1 : number_of(argc, argv, 2, 11);
  const std::string folder = argc > 3 ? argv[3] : "/tmp";
  const double slot = slot_nanoseconds(rounds);
  std::printf("slot of a ring, taken and given back: %.1f ns (limit 60)\n", slot);
  bool enough = slot <= 60;
  for (const belay::tier of : {belay::tier::device, belay::tier::pinned, belay::tier::host, belay::tier::file}) {
    const figures got =
        update(parameters, rounds, {.state = of, .folder = of == belay::tier::file ? folder : std::string()});
    std::printf("AdamW with its state in tier %-6s %6.3f ns a parameter", belay::name(of), got.nanoseconds);
    if (of != belay::tier::device) std::printf(", %.3f of its copies hidden (limit 0.90, goal 0.97)", got.hidden);
    std::printf("\n");
    // How fast a disk is, is not up to the ring.
    if (of == belay::tier::pinned || of == belay::tier::host) enough = enough && got.hidden >= 0.90;
  }
  return enough || quick ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "offload: %s\n", problem.what());
  return 2;
}
