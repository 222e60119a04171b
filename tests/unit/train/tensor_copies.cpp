// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks of a tensor axis must have alike, and which of them is told what.
#include "belay/train/store.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/store.hpp"

namespace {

using belay::axis;
using columns = belay::shard<1, axis::tensor>;

std::string heard(const auto& body) {
  try {
    body();
  } catch (const belay::usage_error& problem) {
    return problem.what();
  }
  return "";
}

// What both ranks hear where each lists parameters of these names.
std::string of_lists(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  std::string out[2];
  static_cast<void>(belay::host::world{2}.run([&](belay::host::rank& rank) {
    std::vector<belay::parameter<float>> listed;
    std::vector<float> values(2, 1);
    for (const std::string& name : rank.number() == 0 ? first : second)
      listed.emplace_back(belay::parameter_spec{name, {2}}).bind(values.data(), nullptr);
    belay::tensor_copies<float> own;
    for (const auto& each : listed) own.add(each);
    out[rank.number()] = heard([&] { own.expect_equal(rank.world(), belay::where::current()); });
    return 0;
  }));
  CHECK(out[0].empty() == out[1].empty());
  return out[1];
}

struct cut_network {
  belay::parameter<float, columns> weight;
  explicit cut_network(belay::local_part part) : weight({"weight", {3, 4}}, part) {}
  void for_each_parameter(auto&& visit) { visit(weight); }
};

}  // namespace

TEST_CASE("equal lists with equal values are one, other names and numbers are named") {
  CHECK(of_lists({"a", "b"}, {"a", "b"}).empty());
  CHECK(of_lists({}, {}).empty());
  CHECK(of_lists({"a", "b"}, {"a", "c"}).find("list different parameters: their number 1 is c here") !=
        std::string::npos);
  CHECK(of_lists({"a", "b"}, {"a"}).find("list different numbers of parameters (rank 0: 2; rank 1: 1)") !=
        std::string::npos);
}

TEST_CASE("a store refuses a parameter that was cut by hand otherwise than its placement says") {
  const auto of_part = [](belay::local_part part) {
    return heard([&] {
      belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
        belay::mesh mesh{rank, {}};
        cut_network net(part);
        belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
      });
    });
  };
  CHECK(of_part({0, 4}).empty());
  CHECK(of_part({1, 2}).find(
            "parameter weight: box [0:3, 1:3] has 6 elements, even cuts give this rank of the mesh 12") !=
        std::string::npos);
}
