// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Parameters that are cut over two axes: any mesh trains them alike, and reads what any other has written, bit for bit.
#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "belay/train/parameter_files.hpp"
#include "test_length.hpp"
#include "unit/train/support/boxed_network.hpp"
#include "unit/train/support/directory.hpp"

using namespace boxed_bench;
using belay::resume_from;
using belay::zero_stage;
using train_bench::directory;

namespace {

const std::vector<axes>& meshes() {
  static const std::vector<axes> all{{},
                                     {.tensor = 3},
                                     {.expert = 3},
                                     {.expert = 2, .tensor = 2},
                                     {.data = 2, .tensor = 3},
                                     {.data = 2, .expert = 2, .tensor = 2},
                                     {.data = 2, .expert = 2, .tensor = 2, .shard_group = 1},
                                     {.expert = 3, .tensor = 2}};
  return all;
}
constexpr zero_stage stages[] = {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients,
                                 zero_stage::parameters};

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The first values of `seed`, or what is read from `from`, as a file.
std::string exported(const axes& shape, zero_stage stage, std::uint64_t shapes, std::uint64_t seed,
                     const std::string& from = "") {
  const directory dir;
  belay::launch(belay::host::world{static_cast<int>(shape.ranks())}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    layer<float> net(mesh, shapes);
    belay::parameter_store store{run, mesh, net, stage, {.seed = seed, .bucket_bytes = 128}};
    if (!from.empty()) belay::import_parameters(mesh, net, from);
    belay::export_parameters(mesh, net, dir.path);
  });
  return text_of(dir / "model.safetensors");
}

void check_norms(const record& expected, const record& found) {
  REQUIRE(found.norms.size() == expected.norms.size());
  for (std::size_t step = 0; step < expected.norms.size(); ++step)
    CHECK(found.norms[step] == doctest::Approx(expected.norms[step]).epsilon(1e-12));
}

}  // namespace

TEST_CASE("what any mesh exports is what one rank exports, and what any reads it exports as it was") {
  drawn draw(7);
  for (std::uint64_t shapes = 1; shapes <= (only_a_sample() ? 3U : 12U); ++shapes) {
    const std::string one = exported({}, zero_stage::none, shapes, 3);
    REQUIRE(one.size() > 100);
    const directory dir;
    std::ofstream(dir / "model.safetensors", std::ios::binary) << one;
    for (const axes& shape : meshes()) {
      const zero_stage stage = stages[draw.below(4)];
      INFO("shapes " << shapes << ", " << shape.text() << ", stage " << static_cast<int>(stage));
      CHECK(exported(shape, stage, shapes, 3) == one);
      CHECK(exported(shape, stages[draw.below(4)], shapes, 8, dir.path) == one);
    }
    CHECK(exported({}, zero_stage::none, shapes, 4) != one);
  }
}

TEST_CASE("any mesh trains boxes with the bits of one rank, and its norm and loss count each once") {
  drawn draw(11);
  for (const std::uint64_t shapes : {1U, 2U, 5U}) {
    const record one = train({{}, shapes});
    REQUIRE(one.losses == std::vector<double>{2, 2});
    for (const axes& shape : meshes()) {
      const zero_stage stage = stages[draw.below(4)];
      INFO("shapes " << shapes << ", " << shape.text() << ", stage " << static_cast<int>(stage));
      const record found = train({shape, shapes, stage});
      CHECK(found.state == one.state);
      CHECK(found.losses == one.losses);
      check_norms(one, found);
    }
  }
}

TEST_CASE("all ranks divide the same parameters, however uneven their parts are") {
  const axes shape{.data = 2, .expert = 3};
  std::size_t both = 0;
  for (std::uint64_t shapes = 1; shapes <= 6; ++shapes) {
    for (const std::size_t whole_below : {40U, 80U, 160U}) {
      INFO("shapes " << shapes << ", whole below " << whole_below);
      std::vector<std::vector<std::string>> divided(shape.ranks());
      belay::launch(belay::host::world{static_cast<int>(shape.ranks())}, [&](auto& rank, auto& run) {
        belay::mesh mesh{rank, shape};
        layer<float> net(mesh, shapes);
        belay::parameter_store store{
            run, mesh, net, zero_stage::parameters, {.bucket_bytes = 128, .whole_below = whole_below}};
        if (run.rehearsing()) return;
        net.for_each_parameter([&](const auto& each) {
          if (each.divided()) divided[static_cast<std::size_t>(rank.number())].push_back(each.name());
        });
      });
      for (const auto& of_rank : divided) CHECK(of_rank == divided[0]);
      both += divided[0].empty() || divided[0].size() == 8 ? 0 : 1;
    }
    CHECK(train({shape, shapes, zero_stage::parameters, "", 2, resume_from::nothing, 80}).state ==
          train({{}, shapes}).state);
  }
  CHECK(both > 6);  // runs that divide some and keep others
}

TEST_CASE("any mesh goes on from the checkpoint of any other, bit for bit") {
  drawn draw(13);
  for (std::uint64_t shapes = 1; shapes <= (only_a_sample() ? 2U : 8U); ++shapes) {
    const record whole = train({{}, shapes, zero_stage::none, "", 4});
    for (std::size_t pair = 0; pair < 3; ++pair) {
      const axes &saves = meshes()[draw.below(meshes().size())], &loads = meshes()[draw.below(meshes().size())];
      const zero_stage before = stages[draw.below(4)], after = stages[draw.below(4)];
      INFO("shapes " << shapes << ", " << saves.text() << ", stage " << static_cast<int>(before) << ", then "
                     << loads.text() << ", stage " << static_cast<int>(after));
      const directory dir;
      const record half = train({saves, shapes, before, dir.path, 2});
      CHECK(train({loads, shapes, after, dir.path, 2, resume_from::newest}).state == half.state);
      CHECK(train({loads, shapes, after, dir.path, 4, resume_from::newest}).state == whole.state);
    }
  }
}

TEST_CASE("also in bf16, with masters in float") {
  const directory dir;
  const record half = train<belay::bf16>({{.data = 2, .expert = 2, .tensor = 2}, 1, zero_stage::parameters, dir.path});
  CHECK(half.state.contains("master up"));
  CHECK(train<belay::bf16>({{.tensor = 3}, 1, zero_stage::optimizer_state, dir.path, 2, resume_from::newest}).state ==
        half.state);
}
