// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any mesh, schedule, recompute and ZeRO stage trains what the single rank trains, to twelve digits, and wrong policies
// do not. A trainer of doubles is compiled for this alone.
#include <doctest/doctest.h>

#include <span>
#include <string>

#include "laws/support/meshes.hpp"

using namespace laws;

TEST_CASE("every mesh, schedule, recompute and ZeRO stage trains as one rank does, in double") {
  every_mesh_equals_one_rank<double>(1e-12, 1e-12);
}

TEST_CASE("wrong policies do not pass: expert gradients doubled") {
  options run = small_run();
  const uneven_text source(run.model.vocab);
  const record single = train<double>(run, source);
  run.mesh = {1, 1, 2, 1};
  const auto doubled = [](const std::string&, bool expert, std::span<double> gradient) {
    if (!expert) return;
    for (double& g : gradient) g *= 2;
  };
  const record wrong = train<double>(run, source, doubled);
  CHECK(compare(single.gradients[0], wrong.gradients[0]).worst > 0.9);
}

TEST_CASE("wrong policies do not pass: a mean of micro-batches instead of tokens") {
  options run = small_run();
  const uneven_text source(run.model.vocab);
  const record right = train<double>(run, source);
  run.mean = loss_mean::micro_batches;
  CHECK(compare(right.gradients[0], train<double>(run, source).gradients[0]).worst > 1e-3);
  // With equal numbers of targets the two are the same, which is why the law's are not.
  const uneven_text even(run.model.vocab, uneven_text::endings::equal);
  const record mean_of_means = train<double>(run, even);
  run.mean = loss_mean::targets;
  CHECK(compare(train<double>(run, even).gradients[0], mean_of_means.gradients[0]).worst < 1e-12);
}
