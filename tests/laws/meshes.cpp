// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any mesh, schedule, recompute and ZeRO stage trains what the single rank trains.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "laws/support/run.hpp"

using namespace laws;

namespace {

std::vector<belay::axes> meshes() {
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
  schedule_kind schedule;
  recompute_kind recompute;
  belay::zero_stage zero;
};

std::vector<variant> variants() {
  std::vector<variant> out;
  for (auto schedule : {schedule_kind::gpipe, schedule_kind::one_f_one_b}) {
    for (auto recompute : {recompute_kind::none, recompute_kind::full}) {
      for (auto zero : {belay::zero_stage::none, belay::zero_stage::optimizer_state})
        out.push_back({schedule, recompute, zero});
    }
  }
  return out;
}

options with(options run, const belay::axes& mesh, const variant& how) {
  run.mesh = mesh;
  run.schedule = how.schedule;
  run.recompute = how.recompute;
  run.zero = how.zero;
  return run;
}

std::string text(const options& run) {
  return run.mesh.text() + (run.schedule == schedule_kind::gpipe ? ", gpipe" : ", 1f1b") +
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

}  // namespace

TEST_CASE("every mesh, schedule, recompute and ZeRO stage trains as one rank does, in float") {
  every_mesh_equals_one_rank<float>(1e-6, 1e-5);
}

TEST_CASE("and in double to twelve digits") { every_mesh_equals_one_rank<double>(1e-12, 1e-12); }

TEST_CASE("two runs of one command are equal to the bit") {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.schedule = schedule_kind::one_f_one_b;
  run.zero = belay::zero_stage::optimizer_state;
  const uneven_text source(run.model.vocab);
  CHECK(compare(train<float>(run, source), train<float>(run, source)).worst == 0);
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
      trainer<float, std::remove_reference_t<decltype(rank)>, std::remove_reference_t<decltype(self)>> trained{
          run, rank, self, source};
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
