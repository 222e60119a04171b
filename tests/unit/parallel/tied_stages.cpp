// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A weight that stages of a pipeline share: on any mesh and with any schedule it trains as on one rank.
#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "unit/parallel/support/tied_network.hpp"
#include "unit/train/support/directory.hpp"

namespace schedule = belay::schedule;

namespace {

template <int Stage>
void train(const char* table, std::size_t ranks, tied::trained& out, int data = 1) {
  tied::train<Stage>({schedule::named_table(table, ranks, tied::micro_batches), data}, out);
}

void expect_equal(const tied::trained& got, const tied::trained& expected) {
  CHECK(got.losses == expected.losses);
  CHECK(got.norms == expected.norms);
  CHECK(got.values.size() == expected.values.size());
  for (const auto& [name, copies] : got.values)
    for (const std::vector<float>& each : copies) CHECK(each == expected.values.at(name).front());
}
void expect_close(const tied::trained& got, const tied::trained& expected) {
  REQUIRE(got.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    CHECK(got.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-5));
    CHECK(got.norms[i] == doctest::Approx(expected.norms[i]).epsilon(1e-5));
  }
  for (const auto& [name, copies] : got.values)
    for (const std::vector<float>& each : copies) {
      CHECK(each == copies.front());
      for (std::size_t i = 0; i < each.size(); ++i)
        CHECK(each[i] == doctest::Approx(expected.values.at(name).front()[i]).epsilon(1e-4));
    }
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE(
    "a weight that the first and the last stage share trains as on one rank, with the same bits for any schedule") {
  tied::trained one_stage, in_order;
  train<1>("1f1b", 1, one_stage);  // its layers add to one sum, the head first
  train<1>("1f1b", 2, in_order);   // each stage has a sum of its own
  REQUIRE(in_order.values.at("shared.weight").size() == 2);
  REQUIRE(in_order.losses.size() == 3);
  CHECK(in_order.losses[0] == one_stage.losses[0]);
  expect_close(in_order, one_stage);
  for (const char* name : {"1f1b", "zb-h1"})
    for (const std::size_t ranks : {std::size_t{2}, std::size_t{3}}) {
      CAPTURE(name);
      CAPTURE(ranks);
      tied::trained got;
      train<1>(name, ranks, got);
      expect_equal(got, in_order);
    }
  for (const char* name : {"zb-h1", "zb-v"}) {
    tied::trained late;
    tied::train<1>({.table = schedule::named_table(name, 2, tied::micro_batches),
                    .launched = {.streams = {belay::stream_policy::adversarial, 7}}},
                   late);
    expect_equal(late, in_order);
  }
}

TEST_CASE("stages of one rank that share a weight have a sum each, which no schedule changes by a bit") {
  tied::trained in_order;
  train<1>("1f1b", 2, in_order);
  for (const auto& [name, ranks] : {std::pair{"zb-v", 1},
                                    {"dualpipe-v", 1},
                                    {"interleaved:2", 1},
                                    {"interleaved:3", 1},
                                    {"zb-v", 2},
                                    {"dualpipe-v", 2},
                                    {"interleaved:2", 2}}) {
    CAPTURE(name);
    CAPTURE(ranks);
    tied::trained got;
    train<1>(name, static_cast<std::size_t>(ranks), got);
    expect_equal(got, in_order);
  }
}

TEST_CASE("a shared weight trains alike whatever ranks divide of it") {
  tied::trained whole;
  train<0>("1f1b", 2, whole, 2);
  CHECK(whole.values.at("shared.weight").size() == 4);
  const auto compare = [&]<int Stage>(const char* name, std::size_t ranks) {
    CAPTURE(name);
    CAPTURE(ranks);
    CAPTURE(Stage);
    tied::trained got;
    train<Stage>(name, ranks, got, 2);
    expect_close(got, whole);
  };
  compare.template operator()<1>("zb-h1", 2);
  compare.template operator()<2>("1f1b", 2);
  compare.template operator()<3>("zb-h1", 2);
  compare.template operator()<3>("zb-v", 1);
  compare.template operator()<2>("interleaved:3", 1);
  const auto also = [&]<int Stage>(tied::training how) {
    tied::trained got;
    tied::train<Stage>(how, got);
    expect_close(got, whole);
  };
  const auto halves = schedule::named_table("zb-h1", 2, tied::micro_batches);
  also.template operator()<1>({.table = halves, .expert = 2});
  also.template operator()<3>(
      {.table = halves,
       .data = 2,
       .options = {.bucket_bytes = 64, .parameters = belay::tier::host, .gradients = belay::tier::host}});
  also.template operator()<2>({.table = halves, .data = 2, .options = {.reduce = belay::reduce_when::last}});
}

TEST_CASE("a shared weight is saved once, and loaded on another number of stages and ranks") {
  const train_bench::directory dir;
  tied::trained through, in_parts;
  tied::train<1>({.table = schedule::named_table("1f1b", 2, tied::micro_batches), .steps = 8}, through);
  auto from = belay::resume_from::nothing;
  for (const auto& [name, ranks] : {std::pair{"zb-v", 1}, {"1f1b", 2}, {"interleaved:2", 1}, {"zb-h1", 3}}) {
    CAPTURE(name);
    in_parts.values.clear();
    tied::train<1>({.table = schedule::named_table(name, static_cast<std::size_t>(ranks), tied::micro_batches),
                    .steps = 2,
                    .checkpoints = dir / "run",
                    .from = from,
                    .exported = dir.path},
                   in_parts);
    from = belay::resume_from::newest;
    const std::string file = text_of(dir / "model.safetensors"), name_in_it = "\"shared.weight\"";
    const std::size_t found = file.find(name_in_it);
    CHECK(found != std::string::npos);
    CHECK(file.find(name_in_it, found + 1) == std::string::npos);
  }
  CHECK(in_parts.losses == through.losses);
  expect_equal(in_parts, through);
  // All uses on one stage: its sum has another order.
  tied::trained one_stage;
  tied::train<1>({.table = schedule::named_table("1f1b", 1, tied::micro_batches),
                  .steps = 1,
                  .checkpoints = dir / "run",
                  .from = belay::resume_from::newest},
                 one_stage);
  CHECK(one_stage.losses.size() == 1);
  belay::launch(belay::host::world{1}, [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {}};
    tied::rank_network net(schedule::named_table("zb-v", 1, tied::micro_batches), 0);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::import_parameters(mesh, net, dir.path);
    tied::trained imported;
    imported.keep(store, net);
    for (const auto& [name, copies] : imported.values)
      for (const auto& each : copies) CHECK(each == through.values.at(name).front());
  });
}
