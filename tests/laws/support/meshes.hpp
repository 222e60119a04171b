// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All meshes, schedules, recomputes and ZeRO stages that laws compare with the single rank, in any type.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "laws/support/run.hpp"

namespace laws {

inline std::vector<belay::axes> meshes() {
  std::vector<belay::axes> out;
  for (int pp : {1, 2, 4}) {
    for (int ep : {1, 2, 4}) {
      for (int dp : {1, 2, 3}) {
        if (pp * ep * dp <= 8) out.push_back({pp, dp, ep, 1});
      }
    }
  }
  return out;
}

struct variant {
  const char* schedule;
  recompute_kind recompute;
  belay::zero_stage zero;
};

inline std::vector<variant> variants() {
  std::vector<variant> out;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (auto recompute : {recompute_kind::none, recompute_kind::full}) {
      for (auto zero : {belay::zero_stage::none, belay::zero_stage::optimizer_state})
        out.push_back({schedule, recompute, zero});
    }
  }
  return out;
}

inline options with(options run, const belay::axes& mesh, const variant& how) {
  run.mesh = mesh;
  run.schedule = how.schedule;
  run.recompute = how.recompute;
  run.zero = how.zero;
  return run;
}

inline std::string text(const options& run) {
  return run.mesh.text() + ", " + run.schedule +
         (run.recompute == recompute_kind::full ? ", recompute" : "") +
         (run.zero == belay::zero_stage::none ? "" : ", zero 1");
}

// With dp and ep fixed, everything else must not change a bit; against the single rank, `tolerance`.
template <class T>
void every_mesh_equals_one_rank(double loss_tolerance, double tensor_tolerance) {
  const options base = small_run();
  const uneven_text text_source(base.model.vocab);
  const record single = train<T>(base, text_source);
  REQUIRE(single.gradients.size() == base.steps);
  std::size_t number = 0;
  for (const belay::axes& mesh : meshes()) {
    belay::axes reference_mesh = mesh;
    reference_mesh.pipeline = 1;
    const record reference = train<T>(with(base, reference_mesh, variants().front()), text_source);
    const difference apart = compare(single, reference);
    INFO(reference_mesh.text() << ": " << apart.where << " differs by " << apart.worst);
    CHECK(apart.worst <= tensor_tolerance);
    for (std::size_t s = 0; s < base.steps; ++s) {
      CHECK(std::abs(reference.losses[s] - single.losses[s]) <= loss_tolerance * single.losses[s]);
      CHECK(std::abs(reference.norms[s] - single.norms[s]) <= tensor_tolerance * single.norms[s]);
    }
    for (const variant& how : variants()) {
      // Every pair of settings still meets in the sample: each mesh sees each schedule, recompute and ZeRO in turn.
      if (only_a_sample() && number++ % 8 != static_cast<std::size_t>(mesh.pipeline + mesh.data + mesh.expert) % 8)
        continue;
      const options run = with(base, mesh, how);
      const difference bits = compare(reference, train<T>(run, text_source));
      INFO(text(run) << ": " << bits.where << " differs by " << bits.worst);
      CHECK(bits.worst == 0);
    }
  }
}

}  // namespace laws
