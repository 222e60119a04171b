// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Built with -Ofast: a step whose gradient is no number on one rank is refused on all, and changes nothing; and a toy
// learns on two ranks what it learns on one.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {

// y = w x, on samples that the ranks share: the weights after some steps, and whether each was committed. At step
// `bad_step` the gradient of the last rank gets these bits.
struct learnt {
  std::array<float, 2> weights{};
  std::vector<bool> committed;
  std::string why;
};

learnt learn(int ranks, std::size_t steps, std::size_t bad_step, std::uint32_t bad_bits) {
  const volatile std::uint32_t hidden = bad_bits;  // so that no compiler sees it
  std::vector<std::array<float, 2>> values(static_cast<std::size_t>(ranks), {1, -1}), gradients(values.size());
  learnt out;
  belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
    const auto own = static_cast<std::size_t>(rank.number());
    auto &w = values[own], &g = gradients[own];
    belay::mesh mesh{rank, {.data = ranks}};
    belay::parameter_list<float> list{{w.data(), 2}, {g.data(), 2}};
    auto& weight = list.add("weight", {2});
    belay::parameter_store store{run, mesh, list, belay::zero<1>{}};
    belay::adamw optimizer{store, {.decay = 0}};
    for (const std::size_t number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      auto owed = belay::owe(step, {"layer"}, {weight});
      if (!run.rehearsing()) {
        for (std::size_t sample = own; sample < 4; sample += static_cast<std::size_t>(ranks)) {
          const std::array<float, 2> x{0.5F + static_cast<float>(sample), 2.0F - static_cast<float>(number)};
          const float off = w[0] * x[0] + w[1] * x[1] - 3;
          g[0] += 2 * off * x[0], g[1] += 2 * off * x[1];
        }
        const std::uint32_t bits = hidden;
        if (number == bad_step && rank.number() == ranks - 1) std::memcpy(&g[1], &bits, sizeof bits);
      }
      std::move(owed).discharge();
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      auto* ok = belay::committed(outcome);
      const auto* why = belay::refused(outcome);
      if (rank.number() == 0 && !run.rehearsing()) {
        out.committed.push_back(ok != nullptr);
        if (why != nullptr) out.why = belay::text(*why);
      }
      if (ok != nullptr) optimizer.apply(std::move(*ok), {.learning_rate = 0.01, .clip = number == 1 ? 1.0 : 1e30});
    }
  });
  for (const auto& each : values) CHECK(each == values[0]);
  out.weights = values[0];
  return out;
}

}  // namespace

TEST_CASE("a gradient that is no number is refused, wherever it is, and changes nothing") {
  for (const std::uint32_t bits : {0x7f800000U, 0xff800000U, 0x7fc00000U, 0xffc00001U})
    for (const int ranks : {1, 2}) {
      const learnt seen = learn(ranks, 1, 1, bits);
      CHECK(seen.committed == std::vector{false});
      CHECK(seen.weights == std::array{1.0F, -1.0F});
      CHECK(seen.why.find("weight") != std::string::npos);
    }
}

TEST_CASE("a toy learns on two ranks what it learns on one") {
  const learnt alone = learn(1, 4, 0, 0), two = learn(2, 4, 0, 0);
  CHECK(alone.committed == std::vector(4, true));
  CHECK(two.committed == alone.committed);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(alone.weights[i] == doctest::Approx(i == 0 ? 1.04 : -0.96).epsilon(0.05));
    CHECK(two.weights[i] == doctest::Approx(alone.weights[i]).epsilon(1e-5));
  }
}
