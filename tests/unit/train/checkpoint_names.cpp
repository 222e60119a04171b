// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Names of checkpoints: what has the name of one and is none stays as it is, and ends no run; a name that is there
// twice, of a state, an optimizer or a tensor, is refused before anything is saved under it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unit/train/support/checkpoint.hpp"

using namespace checkpoint_bench;

namespace {

settings in(const directory& dir, int ranks, std::size_t steps) {
  settings out;
  out.ranks = ranks;
  out.steps = steps;
  out.saved = {.folder = dir / "run", .every = 3, .keep = 2};
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

namespace fs = std::filesystem;

// What was told of the path that ends so.
std::string told_of(const std::vector<belay::file_error>& all, const std::string& name) {
  std::string out;
  for (const belay::file_error& each : all)
    if (each.path().ends_with(name)) out += (out.empty() ? "" : " and ") + each.message();
  return out;
}

}  // namespace

TEST_CASE("what has a checkpoint's name and is none is told once and stays: the run is as without it") {
  const directory dir;
  const std::string folder = dir / "run";
  train(in(dir, 2, 13));
  fs::create_directory(dir / "elsewhere");
  fs::rename(folder + "/step-00000009", dir / "elsewhere/old");
  fs::create_directory_symlink("../elsewhere/old", folder + "/step-00000009");
  fs::create_directory_symlink("nowhere", folder + "/step-00000001");
  overwrite(folder + "/step-00000002", "a file");
  fs::create_directory_symlink("step-00000003", folder + "/step-00000003");  // a question without an answer
  const auto make_stubborn = [&](const std::string& step) {                  // for root too
    fs::create_directories(folder + "/" + step + "/optimizer-00009.safetensors/inner");
  };
  make_stubborn("step-00000004");
  overwrite(folder + "/step-00000004/manifest.json", "of an old one");
  // In the way of one that is still to be written.
  fs::create_directory(dir / "taken");
  overwrite(dir / "taken/parameters-00000.safetensors", "mine");
  fs::create_directory_symlink("../taken", folder + "/step-00000021");
  const std::vector<std::string> behind = names_in(dir / "elsewhere/old");
  REQUIRE(behind.size() > 2);

  settings again = in(dir, 2, 28);
  again.before_commit = [&](int rank, std::size_t step) {
    if (rank == 0 && step == 14) make_stubborn("step-00000012");
  };
  const record found = train(again);
  CHECK(found.from.step == 12);
  CHECK(found.losses.size() == 16);
  CHECK(found.from.left.size() == 5);
  CHECK(contains(told_of(found.from.left, "step-00000001"), "is no folder of a checkpoint"));
  CHECK(contains(told_of(found.from.left, "step-00000002"), "is no folder of a checkpoint"));
  CHECK(contains(told_of(found.from.left, "step-00000003/manifest.json"), "Too many levels of symbolic links"));
  CHECK(contains(told_of(found.from.left, "step-00000009"), "is a link"));
  CHECK(contains(told_of(found.from.left, "step-00000021"), "is no folder of a checkpoint"));
  REQUIRE(found.problems.size() == 3);  // although each rotation meets the first two
  CHECK(contains(found.problems[0], "step-00000004/optimizer-00009.safetensors: cannot be removed"));
  CHECK(contains(found.problems[1], "step-00000012/optimizer-00009.safetensors: cannot be removed"));
  CHECK(contains(found.problems[2], "step-00000021: is in the way"));
  CHECK(names_in(dir / "elsewhere/old") == behind);
  CHECK(text_of(dir / "taken/parameters-00000.safetensors") == "mine");
  CHECK(names_in(dir / "taken").size() == 1);
  CHECK(names_in(folder) == std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003", "step-00000004",
                                                     "step-00000009", "step-00000012", "step-00000021", "step-00000024",
                                                     "step-00000027"});
  CHECK(train(in(dir, 3, 28)).from.step == 27);
}

TEST_CASE("a checkpoint under another step's name is refused, and nothing is removed") {
  const directory dir;
  train(in(dir, 2, 7));
  const std::vector<std::string> before = names_in(dir / "run");
  REQUIRE(before == std::vector<std::string>{"step-00000003", "step-00000006"});
  fs::copy(dir / "run/step-00000003", dir / "run/step-00000040");
  std::string said;
  try {
    train(in(dir, 2, 50));
  } catch (const belay::file_error& problem) {
    said = problem.what();
  }
  CHECK(contains(said, "step-00000040"));
  CHECK(contains(said, "holds the checkpoint of step 3, which its name does not say"));
  CHECK(names_in(dir / "run") == std::vector<std::string>{"step-00000003", "step-00000006", "step-00000040"});
  fs::remove_all(dir / "run/step-00000040");
  CHECK(train(in(dir, 2, 10)).from.step == 6);
}

TEST_CASE("a link to the newest checkpoint is read through") {
  const directory dir;
  train(in(dir, 2, 4));
  fs::rename(dir / "run/step-00000003", dir / "moved");
  fs::create_directory_symlink("../moved", dir / "run/step-00000003");
  const record found = train(in(dir, 2, 10));
  CHECK(found.from.step == 3);
  CHECK(found.losses.size() == 7);
  CHECK(fs::exists(dir / "moved/manifest.json"));
  CHECK(names_in(dir / "run") == std::vector<std::string>{"step-00000003", "step-00000006", "step-00000009"});
}

namespace {

// What each rank heard of `body(rank, run, mesh)`.
template <class Body>
std::vector<std::string> said_by_ranks(int ranks, const belay::axes& shape, Body body) {
  std::vector<std::string> out(static_cast<std::size_t>(ranks));
  belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    std::string said;
    try {
      body(rank, run, mesh);
    } catch (const belay::usage_error& problem) {
      said = problem.what();
    }
    if (!run.rehearsing()) out[static_cast<std::size_t>(rank.number())] = said;
  });
  return out;
}
void check_said(const std::vector<std::string>& all, std::initializer_list<std::string> parts) {
  for (const std::string& each : all)
    for (const std::string& part : parts) CHECK_MESSAGE(contains(each, part), each);
}

// One tensor of a name that all stages have.
template <class Learning>
struct one_name {
  belay::parameter<float, belay::replicate, Learning> weight{{"layers.0.weight", {5}, belay::initial::constant(1)}};
  void for_each_parameter(auto&& visit) { visit(weight); }
};

}  // namespace

TEST_CASE("a state whose text is none is refused when it would be saved") {
  struct generator {
    std::string bytes;
    [[nodiscard]] std::string save() const { return bytes; }
    void load(std::string_view text) { bytes = text; }
  };
  const directory dir;
  const auto with = [&](const std::string& folder, const std::string& bytes) {
    return said_by_ranks(1, {}, [&](auto&, auto& run, auto& mesh) {
      one_name<belay::trainable> net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      generator state{bytes};
      belay::checkpoints saved{run, mesh, {.folder = dir / folder, .every = 1}};
      saved.add(store);
      saved.add("generator", state);
      static_cast<void>(saved.open());
      if (run.rehearsing()) return;
      static_cast<void>(saved.after(1));
      saved.close();
      state.bytes.clear();
      static_cast<void>(saved.load(dir / folder + "/step-00000001", belay::state_kinds::all));
      CHECK(state.bytes == bytes);
    });
  };
  check_said(with("a", std::string("ab\xff", 3)),
             {"state generator: save() gives bytes that are no text, the first at 2"});
  check_said(with("b", "\xc3"), {"the first at 0"});
  const std::string text("\0\x01\"\\\n\xc3\xa9", 7);
  CHECK(with("c", text) == std::vector<std::string>{""});
}

TEST_CASE("states and optimizers that are not the same on all ranks, or twice, are refused before anything is saved") {
  const directory dir;
  const auto with = [&](auto body) {
    return said_by_ranks(2, {.data = 2}, [&](auto& rank, auto& run, auto& mesh) {
      one_name<belay::trainable> net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      cursor one, two;
      belay::checkpoints saved{run, mesh, {.folder = dir / "run", .every = 1}};
      body(rank.number(), saved, store, optimizer, one, two);
      static_cast<void>(saved.open());
      if (!run.rehearsing()) static_cast<void>(saved.after(1));
      saved.close();
    });
  };
  check_said(with([](int, auto& saved, auto& store, auto& optimizer, auto& one, auto& two) {
               saved.add(store, optimizer);
               saved.add("data", one);
               saved.add("data", two);
             }),
             {"state data is added twice"});
  check_said(with([](int rank, auto& saved, auto& store, auto& optimizer, auto& one, auto&) {
               saved.add(store, optimizer);
               saved.add(rank == 0 ? "data" : "Data", one);
             }),
             {"rank 0 has state data;", "rank 1 has state Data;"});
  check_said(with([](int rank, auto& saved, auto& store, auto& optimizer, auto& one, auto& two) {
               saved.add(store, optimizer);
               saved.add("data", one);
               if (rank == 1) saved.add("generator", two);
             }),
             {"rank 0 has state data;", "rank 1 has states data, generator;"});
  check_said(with([](int rank, auto& saved, auto& store, auto& optimizer, auto&, auto&) {
               rank == 0 ? saved.add(store, optimizer) : saved.add(store);
             }),
             {"rank 0 has no state; optimizer 0 after 0 steps", "rank 1 has no state"});
  // One name twice on a rank.
  check_said(with([](int, auto& saved, auto& store, auto& optimizer, auto&, auto&) {
               saved.add(store, optimizer);
               saved.add(store, optimizer);
             }),
             {"tensor layers.0.weight"});
  CHECK((!fs::exists(dir / "run") || names_in(dir / "run").empty()));
  check_said(with([](int, auto& saved, auto& store, auto& optimizer, auto& one, auto& two) {
               saved.add(store, optimizer);
               saved.add("data", one);
               saved.add("generator", two);
               static_cast<void>(saved.open());
             }),
             {""});
}

TEST_CASE("two stages that train a tensor of one name are refused when their stores are made") {
  const auto said = said_by_ranks(4, {.pipeline = 2, .data = 2}, [&](auto&, auto& run, auto& mesh) {
    one_name<belay::trainable> net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  });
  check_said(said, {"stage 0 (ranks 0, 1) and stage 1 (ranks 2, 3)", "layers.0.weight", "number layers"});
}

TEST_CASE("constants of one name on two stages are saved where they are equal, and refused where they are not") {
  const directory dir;
  int number = 0;
  for (const bool alike : {true, false})
    for (const auto zero : {belay::zero_stage::none, belay::zero_stage::parameters}) {
      const std::string folder = dir / std::to_string(++number);
      fs::create_directory(folder);
      const auto said = said_by_ranks(4, {.pipeline = 2, .data = 2}, [&](auto&, auto& run, auto& mesh) {
        one_name<belay::frozen> net;
        belay::parameter_store store{run, mesh, net, zero};
        const auto set = [&](float value) {
          net.weight.fill([&](std::size_t, std::span<float> to) { std::fill(to.begin(), to.end(), value); }, {});
        };
        belay::checkpoints saved{run, mesh, {.folder = folder + "/runs", .every = 1}};
        saved.add(store);
        static_cast<void>(saved.open());
        if (run.rehearsing()) return;
        const float value = 10.0F + (alike ? 0.0F : static_cast<float>(mesh.layout_coordinate().pipeline));
        set(value);
        if (!alike) CHECK_THROWS_AS(belay::export_parameters(mesh, net, folder), belay::usage_error);
        static_cast<void>(saved.after(1));
        saved.close();
        belay::export_parameters(mesh, net, folder);
        for (const bool from_export : {false, true}) {
          set(0);
          if (from_export)
            belay::import_parameters(mesh, net, folder);
          else
            static_cast<void>(saved.load(folder + "/runs/step-00000001", belay::state_kinds::all));
          net.weight.each_held([&](std::size_t, auto values) {
            for (const float each : values) CHECK(each == value);
          });
        }
      });
      if (alike)
        CHECK(said == std::vector<std::string>(4));
      else
        check_said(said, {"stage 0 (ranks 0, 1) and stage 1 (ranks 2, 3)", "layers.0.weight", "a file keeps one"});
      CHECK(fs::exists(folder + "/model.safetensors") == alike);
      CHECK(fs::exists(folder + "/runs/step-00000001") == alike);
    }
}
