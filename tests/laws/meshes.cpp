// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any mesh, schedule, recompute and ZeRO stage trains what the single rank trains.
#include "laws/support/meshes.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>

using namespace laws;

TEST_CASE("every mesh, schedule, recompute and ZeRO stage trains as one rank does, in float") {
  every_mesh_equals_one_rank<float>(1e-6, 1e-5);
}

TEST_CASE("two runs of one command are equal to the bit") {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.schedule = "1f1b";
  run.zero = belay::zero_stage::optimizer_state;
  const uneven_text source(run.model.vocab);
  CHECK(compare(train<float>(run, source), train<float>(run, source)).worst == 0);
}

TEST_CASE("a run that must replay for room equals, bit for bit, one with room for all") {
  options run = small_run();
  const uneven_text source(run.model.vocab);
  for (const belay::axes& mesh : {belay::axes{1, 1, 2, 1}, belay::axes{2, 1, 4, 1}, belay::axes{1, 2, 4, 1}}) {
    run.mesh = mesh;
    run.expert_capacity = 4;
    const record roomy = train<float>(run, source);
    run.expert_capacity = 1;
    const record tight = train<float>(run, source);
    std::size_t replays = 0;
    for (std::size_t count : tight.replays) replays += count;
    INFO(mesh.text());
    CHECK(replays > 0);
    CHECK(compare(roomy, tight).worst == 0);
  }
}

TEST_CASE("one rank of each stage is rehearsed, and every rank's plan is that of its own rehearsal") {
  for (const belay::axes& mesh : meshes()) {
    const options run = with(small_run(), mesh, variants().back());
    const uneven_text source(run.model.vocab);
    const auto body = [&](auto& rank, auto& self) {
      trainer<float, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
      for (const std::size_t step : self.steps(1)) static_cast<void>(trained.train(step));
    };
    INFO(mesh.text());
    const int ranks = static_cast<int>(mesh.ranks());
    const belay::rehearsal_result found = belay::rehearse(ranks, body);
    CHECK(found.rehearsed == static_cast<std::size_t>(mesh.pipeline));
    for (int number = 0; number < ranks; ++number) {
      const belay::rank_rehearsal own(number, ranks, body, 0, belay::where::current());
      CHECK(belay::words_of(found.plan.ranks()[static_cast<std::size_t>(number)]) ==
            belay::words_of(own.leased_by(number).plan));
    }
  }
}
