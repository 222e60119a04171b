// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter that two layers share, over any number of ranks and micro-batches, trains as on one rank whose single
// backward adds both parts. Gradients are whole numbers here, so that no order of addition changes a bit.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/step.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"

namespace {

using group = belay::host::group;

enum class tying { tied, untied };

struct settings {
  tying how = tying::untied;
  int ranks = 1;
  belay::zero_stage stage = belay::zero_stage::none;
  std::size_t bucket_bytes = std::size_t{1} << 20;
};

constexpr std::size_t steps = 4;
constexpr std::size_t all_micro_batches = 6;
constexpr std::size_t embedding = 9001;
constexpr std::size_t inner = 4097;

// What one layer's backward adds to an element: a small whole number.
float gradient_part(std::size_t layer, std::size_t step, std::size_t micro_batch, std::size_t element) {
  return static_cast<float>((layer * 7 + step * 5 + micro_batch * 3 + element * 13) % 17) - 8.0F;
}

void add(belay::trainable_parameter<float>& p, std::size_t layer, std::size_t step, std::size_t micro_batch) {
  for (std::size_t i = 0; i < p.local_size(); ++i) p.gradient()[i] += gradient_part(layer, step, micro_batch, i);
}

struct outcome {
  std::vector<float> values;
  std::vector<double> norms;
  bool operator==(const outcome&) const = default;
};

outcome train(const settings& run) {
  outcome out;
  belay::host::world{run.ranks}.run([&](belay::host::rank& rank) {
    const std::size_t uses = run.how == tying::tied ? 2 : 1;
    belay::parameter<float> wte{
        {.name = "wte", .shape = {embedding}, .first_values = belay::initial::normal(0.1), .uses = uses}};
    belay::parameter<float> mlp{{.name = "mlp", .shape = {inner}, .first_values = belay::initial::normal(0.1)}};
    belay::gradient_buckets<float, group> buckets{
        {{wte, 0}, {mlp, 0}}, {{rank.world(), run.stage}}, run.bucket_bytes, all_micro_batches};
    std::vector<float> values(buckets.layout().elements());
    std::vector<float> gradients(buckets.layout().gradient_elements());
    buckets.bind(values, gradients);
    wte.initialise(5);
    mlp.initialise(5);
    std::vector<float> moments(belay::adamw<float, group>::state_elements(buckets));
    belay::adamw<float, group> optimizer{{.learning_rate = 0.01}, buckets, moments};
    belay::norm_table table;  // the tied parameter once
    const std::vector<belay::norm_place> places{{table.add(embedding), 0}, {table.add(inner), 0}};
    std::vector<double> squares(table.entries());
    belay::gradient_norm<float> norm_of{table, places, squares};
    belay::tier_meter meter;
    belay::host_engine engine{belay::host_pages{4096}, meter};

    const auto number = static_cast<std::size_t>(rank.number());
    const belay::local_part mine = belay::even_part(all_micro_batches, static_cast<std::size_t>(run.ranks), number);
    for (std::size_t s = 0; s < steps; ++s) {
      belay::step step{engine};
      buckets.begin(mine.count);
      for (std::size_t m = 0; m < mine.count; ++m) {
        add(wte, 2, s, mine.first + m);  // the head
        if (run.how == tying::tied) buckets.contributed(0, 1, m);
        add(mlp, 1, s, mine.first + m);
        buckets.contributed(1, 1, m);
        add(wte, 0, s, mine.first + m);  // the embedding
        buckets.contributed(0, 1, m);
      }
      auto reduced = buckets.finish(belay::local_targets{mine.count * 10}, rank.world());
      const auto norm = norm_of(reduced, rank.world());
      auto ended = std::move(step).commit();
      optimizer.apply(*belay::committed(ended), std::move(reduced), norm.clip(1.0));
      if (number == 0) out.norms.push_back(norm.value());
    }
    if (rank.number() + 1 != run.ranks) return;  // any rank has the whole
    out.values.assign(wte.value(), wte.value() + embedding);
    out.values.insert(out.values.end(), mlp.value(), mlp.value() + inner);
  });
  return out;
}

}  // namespace

TEST_CASE("a tied parameter over any ranks, ZeRO stage and buckets trains as the untied single rank, to the bit") {
  const outcome single = train({});
  REQUIRE(single.norms.size() == steps);
  for (int ranks : {1, 2, 3, 4, 7})
    for (belay::zero_stage stage : {belay::zero_stage::none, belay::zero_stage::optimizer_state})
      for (std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        CAPTURE(ranks);
        CAPTURE(bucket_bytes);
        CHECK(train({tying::tied, ranks, stage, bucket_bytes}) == single);
      }
}

TEST_CASE("the norm of a tied parameter counts it once") {
  double squares = 0;
  for (std::size_t size : {embedding, inner})
    for (std::size_t i = 0; i < size; ++i) {
      double gradient = 0;
      for (std::size_t m = 0; m < all_micro_batches; ++m)
        gradient +=
            size == embedding ? gradient_part(2, 0, m, i) + gradient_part(0, 0, m, i) : gradient_part(1, 0, m, i);
      squares += gradient * gradient;
    }
  const double expected = __builtin_sqrt(squares) / (all_micro_batches * 10);
  CHECK(train({tying::tied, 3, belay::zero_stage::optimizer_state}).norms[0] == doctest::Approx(expected));
}
