// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Models that ranks write and read together, and what they hear when one of them cannot.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/parameter_files.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/directory.hpp"

namespace parameter_files_bench {

namespace st = belay::safetensors;
using belay::axes;

using train_bench::directory;

inline std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& each : std::filesystem::directory_iterator(path)) {
    std::ifstream in(each.path(), std::ios::binary);
    out[each.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return out;
}

// Two stages, or both on one: dense, of experts, frozen, with fewer rows than ranks, without elements.
struct network {
  using stack = belay::shard<0, belay::axis::expert>;
  static constexpr std::size_t experts = 5;

  bool first_stage, last_stage;
  belay::parameter<float> dense{{"a.dense", {7, 7}, belay::initial::normal(1)}};
  belay::parameter<float, stack> expert;
  belay::parameter<float, belay::replicate, belay::frozen> base{{"b.base", {11, 3}, belay::initial::normal(1)}};
  belay::parameter<float, belay::replicate, belay::frozen> shared{{"b.shared", {3, 5, 2}, belay::initial::normal(1)}};
  belay::parameter<float> one{{"b.one", {1}, belay::initial::normal(1)}};
  belay::parameter<float> none{{"b.none", {0, 4}}};

  template <class Mesh>
  explicit network(const Mesh& mesh)
      : first_stage(mesh.coordinate().pipeline == 0),
        last_stage(mesh.coordinate().pipeline == mesh.shape().pipeline - 1),
        expert({"a.expert", {experts, 4, 3}, belay::initial::normal(1)},
               belay::even_part(experts, static_cast<std::size_t>(mesh.shape().expert),
                                static_cast<std::size_t>(int(mesh.coordinate().expert)))) {}

  void for_each_parameter(auto&& visit) {
    if (first_stage) visit(dense), visit(expert), visit(shared);
    if (last_stage && !first_stage) visit(shared);  // each stage has a copy
    if (last_stage) visit(base), visit(one), visit(none);
  }
};

// One tensor for each expert.
struct expert_tensors {
  template <class Parameter>
  [[nodiscard]] std::vector<st::declaration> operator()(const Parameter& parameter) const {
    if (!belay::sharded_over<belay::axis::expert>(parameter)) return belay::one_tensor_each()(parameter);
    std::vector<st::declaration> out;
    for (std::size_t e = 0; e < parameter.shape()[0]; ++e)
      out.push_back({"expert." + std::to_string(e), st::stored_type::f32, {4, 3}});
    return out;
  }
};

inline constexpr std::uint64_t one_file = st::largest_file;

struct layout {
  axes shape;
  belay::zero_stage stage = belay::zero_stage::none;
  std::uint64_t largest = one_file;
  std::size_t whole_below = 0;
};

// Exports the first values of `seed`, or what is read from `from`.
auto body(const std::string& folder, const layout& how, std::uint64_t seed, const std::string& from = "") {
  return [=](auto& rank, auto& run) {
    belay::mesh mesh{rank, how.shape};
    network net(mesh);
    belay::parameter_store store{
        run, mesh, net, how.stage, {.seed = seed, .bucket_bytes = 128, .whole_below = how.whole_below}};
    if (!from.empty()) belay::import_parameters(mesh, net, from, expert_tensors());
    belay::export_parameters(mesh, net, folder, {.largest = how.largest}, expert_tensors());
  };
}

template <class World>
std::map<std::string, std::string> exported(World&& world, const layout& how, std::uint64_t seed = 3,
                                            const std::string& from = "") {
  const directory dir;
  belay::launch(world, body(dir.path, how, seed, from));
  return contents(dir.path);
}

// Two tensors of which every rank writes a part.
inline constexpr std::size_t size = 3000;
inline const std::vector<st::declaration> tensors{{"first", st::stored_type::f32, {size}},
                                                  {"second", st::stored_type::f32, {size}}};

// What a rank heard: "file 1 PATH OFFSET: message", or of which kind and what.
template <class Body>
std::string heard(Body&& body) {
  try {
    body();
  } catch (const belay::file_error& problem) {
    return "file " + std::to_string(problem.rank()) + " " + std::filesystem::path(problem.path()).filename().string() +
           " " + std::to_string(problem.offset()) + ": " + problem.message();
  } catch (const belay::usage_error& problem) {
    return std::string("usage ") + problem.what();
  } catch (const belay::comm_error& problem) {
    std::string out = std::string("comm ") + name(problem.fault());
    for (int culprit : problem.about().culprits) out += " " + std::to_string(culprit);
    return out;
  }
  return "";
}

// Every rank writes its part of both tensors, all of them `value`.
template <class Files, class Rank>
void write_model(Rank& rank, const std::string& folder, float value, std::uint64_t largest = st::largest_file) {
  st::basic_writer<Files> out(st::written_by(rank.world()), folder, st::file_division(tensors, largest));
  const auto mine =
      belay::even_part(size, static_cast<std::size_t>(rank.size()), static_cast<std::size_t>(rank.number()));
  const std::vector<float> values(mine.count, value);
  for (const st::declaration& each : tensors) out.write(each.name, mine.first, std::span<const float>(values));
  out.commit();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// All ranks heard the same, which begins and ends so; the folder is as it was.
template <class Ends>
void check_alike(const Ends& ends, const std::string& begins, const std::string& ends_in) {
  for (const auto& end : ends) {
    CAPTURE(end);
    CHECK(end == ends[0]);
    CHECK(end.find(begins) == 0);
    CHECK(contains(end, ends_in));
  }
}

inline constexpr std::size_t rows = 300, columns = 50;

// Three stages of one parameter each; `between` is called before a stage lists its own.
struct staged_network {
  std::size_t stage, stages;
  std::function<void()> between = [] {};
  belay::parameter<float> first{{"first", {rows, columns}, belay::initial::normal(1)}};
  belay::parameter<float> second{{"second", {rows, columns}, belay::initial::normal(1)}};
  belay::parameter<float> third{{"third", {rows, columns}, belay::initial::normal(1)}};

  template <class Mesh>
  explicit staged_network(const Mesh& mesh)
      : stage(static_cast<std::size_t>(int(mesh.coordinate().pipeline))),
        stages(static_cast<std::size_t>(mesh.shape().pipeline)) {}

  void for_each_parameter(auto&& visit) {
    if (stages == 1 || stage == 0) visit(first);
    if (stages == 1 || stage == 1) visit(second);
    if (stages == 1 || stage == 2) between(), visit(third);
  }
};

inline constexpr const char* file_of[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors"};

inline void export_to(const std::string& folder) {
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    staged_network net(mesh);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}, {.seed = 5}};
    belay::export_parameters(mesh, net, folder, {.largest = 1});
  });
}

// Calls `body(rank, mesh, net)` on ranks that divide their parameters.
template <class World, class Body>
void on_ranks(World&& world, const belay::axes& shape, Body body) {
  belay::launch(world, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    staged_network net(mesh);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.seed = 1, .bucket_bytes = 4096}};
    if (!run.rehearsing()) body(rank, mesh, net);
  });
}

template <class Mesh>
belay::file_error refusal(const Mesh& mesh, staged_network& net, const std::string& path) {
  try {
    belay::import_parameters(mesh, net, path);
  } catch (const belay::file_error& problem) {
    return problem;
  }
  return belay::file_error("none", 0, "nothing was refused");
}

// In a rank of a process, where no test case runs.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("this does not hold: " + what);
}

// A file is cut when both ranks have opened it: both say so, and read the next one.
template <class World>
void cut_while_it_fills(World&& world) {
  const directory dir;
  export_to(dir.path);
  const std::string third = dir / file_of[2];
  const std::uintmax_t left = std::filesystem::file_size(third) / 2;
  on_ranks(world, {.data = 2}, [&](auto& rank, auto& mesh, staged_network& net) {
    int listed = 0;
    // The names of what is needed are listed first, then the files are open.
    net.between = [&] {
      if (++listed != 2) return;
      mesh.world().barrier();
      if (rank.number() == 1) std::filesystem::resize_file(third, left);
      mesh.world().barrier();
    };
    const belay::file_error said = refusal(mesh, net, dir.path);
    expect(said.path() == third, said.what());
    expect(said.rank() == 1 || said.rank() == 0, said.what());
    expect(said.offset() >= left, said.what());
    expect(said.message().find("bytes too early") != std::string::npos, said.what());
    net.between = [] {};
    mesh.world().barrier();
    if (rank.number() == 0) export_to(dir.path);
    mesh.world().barrier();
    belay::import_parameters(mesh, net, dir.path);
  });
}

}  // namespace parameter_files_bench
