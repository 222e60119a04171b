// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A checkpoint that version 0.2 has written: two steps of two ranks with ZeRO 1. Manifests, files and their names stay,
// so that runs of later versions go on from it, on any ranks.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/train.hpp"
#include "unit/train/support/directory.hpp"

namespace {

constexpr const char* manifest = R"({"format":"belay-checkpoint-1",
"id":"d1e656d412713a52","step":2,
"mesh":{"pipeline":1,"data":2,"expert":1,"tensor":1,"shard_group":2},
"optimizers":[{"steps":2,"settings":{"learning_rate":0.01,
"beta1":0.9,
"beta2":0.95,
"epsilon":1e-08,
"decay":0.1}}],
"state":{"data":"next=4"},
"files":[{"name":"parameters-00000.safetensors","bytes":292,"crc32c":"5fd566b8"},
{"name":"optimizer-00000.safetensors","bytes":296,"crc32c":"847364a1"},
{"name":"parameters-00001.safetensors","bytes":200,"crc32c":"4b9a8d58"},
{"name":"optimizer-00001.safetensors","bytes":336,"crc32c":"c3cfa034"}],
"tensors":[{"name":"weight","shape":[3,2],)"
    R"("pieces":[{"part":"value","dtype":"F32","box":[[0,3],[0,2]],"first":0,"count":6,"file":0,"begin":256},
{"part":"first_moment","dtype":"F32","box":[[0,3],[0,2]],"first":0,"count":6,"file":3,"begin":288},
{"part":"second_moment","dtype":"F32","box":[[0,3],[0,2]],"first":0,"count":6,"file":3,"begin":312}]},
{"name":"base","shape":[3],)"
    R"("pieces":[{"part":"value","dtype":"F32","box":[[0,3]],"first":0,"count":3,"file":0,"begin":280}]},
{"name":"bias","shape":[2],)"
    R"("pieces":[{"part":"first_moment","dtype":"F32","box":[[0,2]],"first":0,"count":2,"file":1,"begin":280},
{"part":"second_moment","dtype":"F32","box":[[0,2]],"first":0,"count":2,"file":1,"begin":288},
{"part":"value","dtype":"F32","box":[[0,2]],"first":0,"count":2,"file":2,"begin":192}]}],
"crc32c":"cced1e0b"}
)";

// A header is written without line breaks, and filled with blanks up to `header_bytes`.
struct stored_file {
  const char* name;
  std::string header;
  std::size_t header_bytes;
  std::vector<float> values;
};
std::string start_of(const std::string& name) {
  return R"({"__metadata__":{"format":"belay","checkpoint":"d1e656d412713a52","step":"000000000002","file":")" + name +
         R"("},)";
}
std::vector<stored_file> files() {
  return {
      {"parameters-00000.safetensors",
       R"("weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
       R"("base":{"dtype":"F32","shape":[3],"data_offsets":[24,36]}})",
       248,
       {0.850474119F, 0.0651105121F, -0.217401728F, -0.116348401F, -0.734016299F, -0.285093069F, -0.645315051F,
        -1.0204289F, 0.0414045565F}},
      {"parameters-00001.safetensors",
       R"("bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       184,
       {0.980950892F, 0.980950892F}},
      {"optimizer-00000.safetensors",
       R"("first_moment.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("second_moment.bias":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       272,
       {2.16089153F, 2.16089153F, 15.4009714F, 15.4009714F}},
      {"optimizer-00001.safetensors",
       R"("first_moment.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
       R"("second_moment.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]}})",
       280,
       {2.16089153F, 4.32178307F, 6.4826746F, 8.64356613F, 10.8044577F, 12.9653492F, 15.4009714F, 61.6038857F,
        138.608734F, 246.415543F, 385.024231F, 554.434937F}},
  };
}
void write(const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const stored_file& each : files()) {
    std::string header = start_of(each.name) + each.header;
    header.resize(each.header_bytes, ' ');
    std::ofstream out(folder + "/" + each.name, std::ios::binary);
    const std::uint64_t bytes = header.size();
    out.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    out << header;
    out.write(reinterpret_cast<const char*>(each.values.data()),
              static_cast<std::streamsize>(each.values.size() * sizeof(float)));
  }
  std::ofstream(folder + "/manifest.json", std::ios::binary) << manifest;
}

struct network {
  belay::parameter<float> weight{{"weight", {3, 2}, belay::initial::normal(0.5)}};
  belay::parameter<float> bias{{"bias", {2}, belay::initial::constant(1), belay::weight_decay::no}};
  belay::parameter<float, belay::replicate, belay::frozen> base{{"base", {3}, belay::initial::normal(1)}};
  void for_each_parameter(auto&& visit) { visit(weight), visit(bias), visit(base); }
};
struct cursor {
  std::string text;
  [[nodiscard]] std::string save() const { return text; }
  void load(std::string_view saved) { text = saved; }
};

// Values and the state of the optimizer, whichever rank has them, by part and tensor.
using whole_state = std::map<std::string, std::vector<float>>;
whole_state loaded(const std::string& folder, int ranks, belay::zero_stage zero) {
  whole_state out;
  std::mutex lock;
  belay::launch(belay::host::world{ranks}, [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store<belay::run, belay::precision<float>> store{run, mesh, net, zero};
    belay::adamw optimizer{store};
    cursor data;
    belay::checkpoints saved{run, mesh, {.folder = folder, .every = 10}};
    saved.add(store, optimizer);
    saved.add("data", data);
    const belay::resumed_run from = saved.open(belay::resume_from::newest);
    if (!run.rehearsing()) {
      const std::lock_guard held(lock);
      CHECK(from.step == 2);
      CHECK(data.text == "next=4");
      const auto put = [&](std::string_view part, const auto& parameter, std::size_t first, auto values) {
        std::vector<float>& all = out[std::string(part) + " " + parameter.name()];
        all.resize(parameter.global_size());
        for (std::size_t i = 0; i < values.size(); ++i) all[first + i] = static_cast<float>(values[i]);
      };
      net.for_each_parameter([&](auto& parameter) {
        parameter.each_held([&](std::size_t first, auto values) { put("value", parameter, first, values); });
      });
      optimizer.each_state([&](std::string_view part, const auto& range, auto values) {
        put(part, store.buckets().parameter(range.parameter), range.offset, values);
      });
    }
    saved.close();
  });
  return out;
}

}  // namespace

TEST_CASE("a checkpoint of 0.2 is loaded to the bit, on its ranks and stage and on others") {
  for (const int ranks : {1, 2, 3}) {
    for (const auto zero : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
      CAPTURE(ranks);
      const train_bench::directory dir;
      write(dir / "run/step-00000002");
      const whole_state got = loaded(dir / "run", ranks, zero);
      REQUIRE(got.size() == 7);
      const auto [first, second, third, fourth] = [] {
        const std::vector<stored_file> all = files();
        return std::array{all[0].values, all[1].values, all[2].values, all[3].values};
      }();
      std::vector<float> weights = got.at("value weight"), moments = got.at("first_moment weight");
      const std::vector<float> &base = got.at("value base"), &squares = got.at("second_moment weight");
      weights.insert(weights.end(), base.begin(), base.end());
      moments.insert(moments.end(), squares.begin(), squares.end());
      CHECK(weights == first);
      CHECK(got.at("value bias") == second);
      CHECK(got.at("first_moment bias") == std::vector(2, third[0]));
      CHECK(got.at("second_moment bias") == std::vector(2, third[2]));
      CHECK(moments == fourth);
    }
  }
}
