// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The built program over checkpoints that the example and the trainer wrote, and over ones that somebody spoilt.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "belay/train/checkpoint.hpp"
#include "belay/train/safetensors.hpp"
#include "unit/tools/program_output.hpp"

using namespace program_output;

namespace {

namespace files = std::filesystem;
using nlohmann::json;

outcome belay_checkpoint(const std::string& arguments) {
  return run(std::string("'") + BELAY_CHECKPOINT + "' " + arguments);
}

std::string content_of(const std::string& path) {
  std::stringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}
void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// Checkpoints of the example, of steps 10 and so on; the folder of the newest.
std::string example_in(const std::string& folder, int ranks, int steps) {
  const outcome told =
      run(std::string("'") + BELAY_EXAMPLE + "' " + folder + " " + std::to_string(ranks) + " " + std::to_string(steps));
  CAPTURE(told.out);
  REQUIRE(told.code == 0);
  return folder + "/" + belay::checkpoint_name(static_cast<std::uint64_t>(steps));
}

// Changes the manifest, and gives it the checksum that it then has.
void edit(const std::string& checkpoint, const std::function<void(belay::manifest&)>& change) {
  const std::string path = checkpoint + "/manifest.json";
  belay::manifest content = belay::parse_manifest(content_of(path), path);
  change(content);
  write(path, belay::manifest_text::of(content));
}

json faults_of(const std::string& checkpoint) {
  const outcome told = belay_checkpoint("verify --json " + checkpoint);
  CAPTURE(told.out);
  REQUIRE(told.code == 1);
  const json all = json::parse(told.out);
  CHECK(all["sound"] == false);
  return all["checkpoints"][0]["faults"];
}
bool tells(const json& faults, const std::string& file, const std::string& what) {
  return std::any_of(faults.begin(), faults.end(), [&](const json& each) {
    return each["file"].get<std::string>().ends_with("/" + file) &&
           each["what"].get<std::string>().find(what) != std::string::npos;
  });
}

// 4 x 6 elements, 0, 1, 2 and so on but for element 15, cut by columns among the files of so many ranks.
std::string small_checkpoint(const std::string& folder, std::uint64_t ranks = 2, float at_15 = 15) {
  namespace safetensors = belay::safetensors;
  belay::manifest content;
  content.id = "0123456789abcdef";
  content.step = 7;
  content.mesh.tensor = static_cast<int>(ranks);
  content.tensors.push_back({"w", {4, 6}, {}});
  files::create_directories(folder);
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const std::string name = belay::checkpoint_file_name("parameters", static_cast<int>(rank));
    const std::uint64_t width = 6 / ranks, first = rank * width;
    const std::vector<safetensors::declaration> tensors{{"w", safetensors::stored_type::f32, {4, width}}};
    safetensors::writer out(folder + "/" + name, tensors,
                            {{"checkpoint", content.id}, {"step", belay::padded_step(7)}, {"file", name}});
    std::vector<float> values;
    for (std::uint64_t row = 0; row < 4; ++row)
      for (std::uint64_t i = row * 6 + first; i < row * 6 + first + width; ++i)
        values.push_back(i == 15 ? at_15 : static_cast<float>(i));
    out.write("w", 0, std::span<const float>(values));
    out.commit();
    const std::string bytes = content_of(folder + "/" + name);
    content.files.push_back({name, bytes.size(), {belay::crc32c_of(std::as_bytes(std::span<const char>(bytes)))}});
    content.tensors[0].pieces.push_back({"value",
                                         safetensors::stored_type::f32,
                                         static_cast<std::size_t>(rank),
                                         bytes.size() - 16 * width,
                                         {{{0, 4}, {first, first + width}}},
                                         0,
                                         4 * width});
  }
  write(folder + "/manifest.json", belay::manifest_text::of(content));
  return folder;
}

}  // namespace

TEST_CASE("show: the list, then all that the newest holds, as text and as JSON") {
  const scratch folder;
  const std::string newest = example_in(folder / "a", 2, 20);
  const outcome told = belay_checkpoint("show " + (folder / "a"));
  CAPTURE(told.out);
  CHECK(told.code == 0);
  CHECK(told.out.starts_with("step  bytes"));
  CHECK(has(told, "10    11"));
  CHECK(has(told, newest + ": step 20 of run "));
  CHECK(has(told, "mesh:       pipeline 1 x data 2 x expert 1 x tensor 1"));
  CHECK(has(told, "optimizer:  20 steps, learning_rate 0.001, beta1 0.9"));
  CHECK(has(told, "state:      data, 3 bytes: 240\n"));
  CHECK(has(told, "value 36864, first_moment 36864, second_moment 36864"));
  CHECK(has(told, "weight  96x96  value          F32    [0:96, 0:96]  0:9216"));
  const json all = json::parse(belay_checkpoint("show --json " + (folder / "a")).out);
  CHECK(all["checkpoints"].size() == 2);
  CHECK(all["newest"]["step"] == 20);
  CHECK(all["newest"]["tensors"][0]["pieces"][0]["count"] == 9216);
  CHECK(json::parse(belay_checkpoint("show --json " + newest).out)["newest"] == all["newest"]);
}

TEST_CASE("verify: a sound checkpoint, and each thing that can be wrong with its files") {
  const scratch folder;
  const std::string at = example_in(folder / "a", 4, 10);
  const std::string other = example_in(folder / "b", 4, 10);
  CHECK(belay_checkpoint("verify " + at).code == 0);
  CHECK(has(belay_checkpoint("verify " + (folder / "a")), at + ": sound, 1 tensor in "));
  const std::string values = at + "/parameters-00000.safetensors", state = at + "/optimizer-00000.safetensors";
  SUBCASE("a byte") {
    std::string bytes = content_of(values);
    bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
    write(values, bytes);
    std::string shorter = content_of(state);
    write(state, shorter.substr(0, shorter.size() - 100));
    const json faults = faults_of(at);
    CHECK(faults.size() == 2);  // all are listed
    CHECK(tells(faults, "parameters-00000.safetensors", "do not match their checksums"));
    CHECK(faults[0]["touches"] == json::parse(R"([{"tensor":"weight","part":"value"}])"));
    CHECK(tells(faults, "optimizer-00000.safetensors", "its checkpoint says " + std::to_string(shorter.size())));
    CHECK(faults[1]["byte"] == shorter.size() - 100);
    CHECK(faults[1]["touches"][0]["part"] == "second_moment");
    CHECK(has(belay_checkpoint("verify " + at), ": 2 faults, "));
  }
  SUBCASE("a file that is missing") {
    files::remove(state);
    CHECK(tells(faults_of(at), "optimizer-00000.safetensors", "cannot be opened"));
  }
  SUBCASE("two files in each other's place") {
    const std::string next = at + "/optimizer-00002.safetensors";
    files::rename(state, at + "/x");
    files::rename(next, state);
    files::rename(at + "/x", next);
    const json faults = faults_of(at);
    CHECK(faults.size() == 2);
    CHECK(tells(faults, "optimizer-00000.safetensors", "is file optimizer-00002.safetensors of step 000000000010"));
    CHECK(tells(faults, "optimizer-00002.safetensors", "is file optimizer-00000.safetensors of step"));
  }
  SUBCASE("a file of another run") {
    files::copy_file(other + "/parameters-00000.safetensors", values, files::copy_options::overwrite_existing);
    const json faults = faults_of(at);
    CHECK(faults.size() == 1);
    CHECK(tells(faults, "parameters-00000.safetensors", "it belongs to another place"));
  }
  SUBCASE("a file of another step") {
    std::string bytes = content_of(values);
    const std::size_t step = bytes.find("000000000010");
    REQUIRE(step != std::string::npos);
    bytes.replace(step, 12, "000000000020");
    write(values, bytes);
    CHECK(tells(faults_of(at), "parameters-00000.safetensors", "of step 000000000020"));
  }
  SUBCASE("an edited manifest") {
    std::string text = content_of(at + "/manifest.json");
    text.replace(text.find("\"step\":10"), 9, "\"step\":11");
    write(at + "/manifest.json", text);
    CHECK(tells(faults_of(at), "manifest.json", "does not match its checksum"));
    CHECK(belay_checkpoint("show " + at).code == 1);
    CHECK(belay_checkpoint("diff " + at + " " + other).code == 1);
  }
  SUBCASE("a checkpoint in another step's folder") {
    files::rename(at, folder / "a/step-00000099");
    CHECK(tells(faults_of(folder / "a/step-00000099"), "manifest.json", "is the manifest of step 10"));
  }
}

TEST_CASE("verify: elements in no piece, in two, and pieces that are not where the file says") {
  const scratch folder;
  const std::string at = small_checkpoint(folder / "c");
  REQUIRE(belay_checkpoint("verify " + at).code == 0);
  SUBCASE("a gap of columns, as one box") {
    edit(at, [](belay::manifest& content) { content.tensors[0].pieces.pop_back(); });
    const json faults = faults_of(at);
    CHECK(tells(faults, "manifest.json", "elements [0:4, 3:6], the first of which is element 3, are in no piece"));
    CHECK(tells(faults, "parameters-00001.safetensors", "which the manifest does not place there"));
    CHECK(faults.size() == 2);
  }
  SUBCASE("an overlap") {
    edit(at, [](belay::manifest& content) { content.tensors[0].pieces[1].box.sides[1] = {2, 5}; });
    const json faults = faults_of(at);
    CHECK(tells(faults, "parameters-00001.safetensors",
                "elements [0:4, 2:3], the first of which is element 2, are in 2 pieces: parameters-00000.safetensors"));
    CHECK(tells(faults, "manifest.json", "elements [0:4, 5:6], the first of which is element 5, are in no piece"));
    CHECK(faults.size() == 2);
  }
  SUBCASE("a range that ends within a row") {
    edit(at, [](belay::manifest& content) { content.tensors[0].pieces[0].count = 7; });
    const json faults = faults_of(at);
    CHECK(tells(faults, "manifest.json", "elements [2:3, 1:3], the first of which is element 13, are in no piece"));
    CHECK(tells(faults, "manifest.json", "elements [3:4, 0:3], the first of which is element 18, are in no piece"));
    CHECK(tells(faults, "parameters-00000.safetensors", "the file's header says bytes "));
  }
  SUBCASE("another place, another dtype, another name") {
    edit(at, [](belay::manifest& content) {
      content.tensors[0].pieces[0].begin -= 4;
      content.tensors[0].pieces[1].type = belay::safetensors::stored_type::i32;
    });
    const json faults = faults_of(at);
    CHECK(tells(faults, "parameters-00000.safetensors", "the file's header says bytes "));
    CHECK(tells(faults, "parameters-00001.safetensors", "the file's header says F32, the manifest I32"));
    edit(at, [](belay::manifest& content) { content.tensors.push_back(content.tensors[0]); });
    CHECK(tells(faults_of(at), "manifest.json", "lists tensor w twice"));
  }
  SUBCASE("pieces, and no files") {
    edit(at, [](belay::manifest& content) { content.files.clear(); });
    CHECK(tells(faults_of(at), "manifest.json", "lies in file number 0"));
    CHECK(belay_checkpoint("show " + at).code == 1);
    CHECK(belay_checkpoint("export " + at + " " + (folder / "out")).code == 1);
  }
}

TEST_CASE("names that a terminal would obey are shown, and never obeyed") {
  const scratch folder;
  const std::string at = small_checkpoint(folder / "c");
  edit(at, [](belay::manifest& content) {
    content.tensors[0].name = "\x1b[31mw\n";
    content.states.emplace_back("\x1b]0;x\x07", "\x1b[2J");
  });
  for (const char* command : {"show ", "verify ", "show --json ", "verify --json "}) {
    const outcome told = belay_checkpoint(command + at);
    CAPTURE(told.out);
    CHECK(told.code == (std::string(command).starts_with("show") ? 0 : 1));
    CHECK(std::all_of(told.out.begin(), told.out.end(), [](char c) { return c == '\n' || (c >= ' ' && c != 0x7f); }));
  }
}

TEST_CASE("diff: the same run on two meshes, one element, and what only one side has") {
  const scratch folder;
  const std::string four = example_in(folder / "four", 4, 10);
  const std::string again = example_in(folder / "again", 4, 10);
  const outcome same = belay_checkpoint("diff " + four + " " + again);
  CAPTURE(same.out);
  CHECK(same.code == 0);
  CHECK(has(same, "equal: 27648 numbers were compared"));
  const std::string columns = small_checkpoint(folder / "columns");
  SUBCASE("another mesh") {
    CHECK(belay_checkpoint("diff " + columns + " " + small_checkpoint(folder / "three", 3)).code == 0);
    const std::string whole = small_checkpoint(folder / "whole", 1, 99);
    REQUIRE(belay_checkpoint("verify " + whole).code == 0);
    const outcome told = belay_checkpoint("diff " + columns + " " + whole);
    CHECK(told.code == 1);
    CHECK(told.out == "w, value  1 of 24 differ, by 84 at element 15 [2, 3]: 15 and 99\n");
    const json found = json::parse(belay_checkpoint("diff --json " + columns + " " + whole).out);
    CHECK(found["equal"] == false);
    CHECK(found["others"].empty());
    REQUIRE(found["tensors"].size() == 1);
    CHECK(found["tensors"][0]["differing"] == 1);
    CHECK(found["tensors"][0]["largest"] ==
          json::parse(R"({"amount":84.0,"element":15,"coordinates":[2,3],"a":15.0,"b":99.0})"));
  }
  SUBCASE("names, optimizers and states") {
    const std::string changed = small_checkpoint(folder / "changed");
    edit(changed, [](belay::manifest& content) {
      content.tensors[0].name = "v";
      content.optimizers.push_back({3, {{"beta1", 0.5}}});
      content.states.emplace_back("data", "9");
    });
    const outcome told = belay_checkpoint("diff " + columns + " " + changed);
    CAPTURE(told.out);
    CHECK(told.code == 1);
    CHECK(has(told, "optimizers: 0 and 1\n"));
    CHECK(has(told, "state data: none and 9\n"));
    CHECK(has(told, "w  is in the first alone\n"));
    CHECK(has(told, "v  is in the second alone\n"));
  }
}

TEST_CASE("export: tensors by their own names, and nothing is replaced") {
  const scratch folder;
  const std::string at = small_checkpoint(folder / "c"), out = folder / "out";
  CHECK(belay_checkpoint("export " + at + " " + out).code == 0);
  CHECK(!files::exists(out + "/config.json"));
  const belay::safetensors::reader in(out + "/model.safetensors");
  std::vector<float> values(24);
  in.read("w", 0, std::span(values));
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == static_cast<float>(i));
  const outcome again = belay_checkpoint("export " + at + " " + out);
  CHECK(again.code == 2);
  CHECK(has(again, "belay-checkpoint: " + out + ": holds files already; nothing is replaced"));
  for (const std::string& place : {folder / "no/out", std::string("/proc/out"), std::string("/dev/null/out")}) {
    const outcome refused = belay_checkpoint("export " + at + " " + place);
    CHECK(refused.code == 2);
    CHECK(has(refused, "belay-checkpoint: " + place + ": "));
  }
  CHECK(has(belay_checkpoint("export " + at + " " + (folder / "no/out")), "(there is no folder "));
  files::remove(at + "/parameters-00001.safetensors");
  CHECK(belay_checkpoint("export " + at + " " + (folder / "none")).code == 1);
  CHECK(!files::exists(folder / "none"));
}

TEST_CASE("export of the trainer's checkpoint is, byte for byte, what the trainer exports") {
  const scratch folder;
  write(folder / "text", std::string(4000, 'a') + std::string(4000, 'b'));
  write(folder / "model.json",
        R"({"model_type":"mixtral","vocab_size":256,"hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,)"
        R"("num_attention_heads":2,"num_key_value_heads":2,"head_dim":16,"num_local_experts":4,)"
        R"("num_experts_per_tok":2,"max_position_embeddings":16})");
  for (const std::string kind : {"--mesh pp=2,ep=2", "--mesh dp=2 --zero 3 --dtype bf16"}) {
    const outcome trained =
        run(std::string("'") + BELAY_TRAIN_MOE + "' --model " + (folder / "model.json") + " --data " +
            (folder / "text") + " --steps 2 --sequence 16 --micro-batches 2 --micro-batch-size 2 " + kind +
            " --checkpoint " + (folder / "run") + " --checkpoint-every 2 --export " + (folder / "theirs"));
    CAPTURE(trained.out);
    REQUIRE(trained.code == 0);
    const outcome told = belay_checkpoint("export " + (folder / "run") + " " + (folder / "ours"));
    CAPTURE(told.out);
    CHECK(told.code == 0);
    for (const char* name : {"config.json", "model.safetensors"})
      CHECK(content_of((folder / "ours/") + name) == content_of((folder / "theirs/") + name));
    CHECK(belay_checkpoint("verify " + (folder / "run")).code == 0);
    for (const char* each : {"run", "ours", "theirs"}) files::remove_all(folder / each);
  }
}

TEST_CASE("what makes no sense has exit code 2") {
  const scratch folder;
  for (const std::string& arguments : {std::string(), std::string("show"), std::string("verify --what x"),
                                       "show " + (folder / "none"), "diff " + (folder / "") + " " + (folder / "")})
    CHECK(belay_checkpoint(arguments).code == 2);
  CHECK(has(belay_checkpoint("verify " + (folder / "none")), "is no checkpoint"));
  CHECK(belay_checkpoint("--help").code == 0);
}
