// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Models written and read by all ranks of a mesh: the same bytes as of one rank, whatever is divided.
#include "belay/train/parameter_files.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "unit/train/support/parameter_files.hpp"

using namespace parameter_files_bench;

namespace {

struct wide {
  belay::parameter<float> large{{"large", {1000, 1001}}};
  belay::parameter<float> a{{"a", {7}}}, b{{"b", {7}}}, c{{"c", {7}}}, d{{"d", {7}}}, e{{"e", {7}}}, f{{"f", {7}}};
  void for_each_parameter(auto&& visit) { visit(large), visit(a), visit(b), visit(c), visit(d), visit(e), visit(f); }
};

constexpr belay::zero_stage stages[] = {belay::zero_stage::none, belay::zero_stage::optimizer_state,
                                        belay::zero_stage::gradients, belay::zero_stage::parameters};

const std::vector<axes>& meshes() {
  static const std::vector<axes> all{{.data = 2},
                                     {.data = 3},
                                     {.data = 4},
                                     {.data = 4, .shard_group = 1},
                                     {.data = 4, .shard_group = 2},
                                     {.data = 2, .expert = 2},
                                     {.expert = 3},
                                     {.pipeline = 2, .data = 2, .shard_group = 1},
                                     {.pipeline = 2, .data = 2, .expert = 2}};
  return all;
}

}  // namespace

TEST_CASE("what any mesh exports is what one rank exports, byte for byte, in one file or several") {
  for (const std::uint64_t largest : {one_file, std::uint64_t{150}}) {
    const auto one = exported(belay::host::world{1}, {{}, belay::zero_stage::none, largest});
    CHECK(one.size() == (largest == one_file ? 1 : 6));
    REQUIRE(one.contains("model.safetensors") == (largest == one_file));
    for (const axes& shape : meshes())
      for (const belay::zero_stage stage : stages) {
        INFO(shape.text() << ", stage " << static_cast<int>(stage));
        const belay::host::world world{static_cast<int>(shape.ranks())};
        CHECK(exported(world, {shape, stage, largest}) == one);
      }
    CHECK(exported(belay::host::world{3}, {{.data = 3}, belay::zero_stage::parameters, largest, 100}) == one);
    CHECK(exported(belay::host::world{1}, {{}, belay::zero_stage::none, largest}, 4) != one);
  }
}

TEST_CASE("ranks together write the bytes that one process writes") {
  for (const std::uint64_t largest : {one_file, std::uint64_t{1}}) {
    const directory alone, together;
    st::writer out(alone.path, st::file_division(tensors, largest));
    const std::vector<float> values(size, 5.0F);
    for (const st::declaration& each : tensors) out.write(each.name, 0, std::span(values));
    out.commit();
    belay::host::world{3}.run([&](auto& rank) {
      write_model<belay::posix_files>(rank, together.path, 5, largest);
      return 0;
    });
    CHECK(contents(alone.path).size() == (largest == one_file ? 1 : 3));
    CHECK(contents(alone.path) == contents(together.path));
  }
}

TEST_CASE("an export that is read on any mesh is exported as it was") {
  const directory dir;
  for (const std::uint64_t largest : {one_file, std::uint64_t{150}}) {
    belay::launch(belay::host::world{3}, body(dir.path, {{.data = 3}, belay::zero_stage::parameters, largest}, 3));
    const auto before = contents(dir.path);
    for (const axes& shape : meshes())
      for (const belay::zero_stage stage : {belay::zero_stage::none, belay::zero_stage::parameters}) {
        INFO(shape.text() << ", stage " << static_cast<int>(stage));
        const belay::host::world world{static_cast<int>(shape.ranks())};
        CHECK(exported(world, {shape, stage, largest}, 8, dir.path) == before);
      }
  }
}

TEST_CASE("what ranks hold alike is written by all of them: a large one in parts, small ones in turn") {
  belay::launch(belay::host::world{3}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 3}};
    wide net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    if (run.rehearsing()) return;
    std::vector<std::size_t> elements, small;
    belay::each_written(mesh, net, [&](const auto& parameter, std::size_t first, auto values) {
      if (parameter.name() == "large") {
        CHECK(first == belay::even_part(1'001'000, 3, static_cast<std::size_t>(rank.number())).first);
        elements.push_back(values.size());
      } else {
        small.push_back(values.size());
      }
    });
    CHECK(elements == std::vector<std::size_t>{rank.number() < 2 ? 333'667U : 333'666U});
    CHECK(small == std::vector<std::size_t>{7, 7});
  });
}

TEST_CASE("a large model in one file is replaced by several, and these by one") {
  const directory dir;
  for (const std::uint64_t largest : {one_file, std::uint64_t{150}, one_file, std::uint64_t{300}}) {
    for (const std::uint64_t seed : {1U, 2U}) {
      belay::launch(belay::host::world{2}, body(dir.path, {{.data = 2}, belay::zero_stage::parameters, largest}, seed));
      const st::folder in(dir.path);
      CHECK((in.files() == 1) == (largest == one_file));
      std::vector<float> found(49);
      in.read("a.dense", 0, std::span(found));
      const belay::counted_normal random(seed, "a.dense");
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == static_cast<float>(random(i)));
    }
  }
}
