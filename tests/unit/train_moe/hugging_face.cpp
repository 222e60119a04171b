// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/hugging_face.cpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "train_moe/model_config.cpp"

namespace {

using train_moe::model_config;

struct folder {
  std::string path = [] {
    char name[] = "/tmp/belay_export_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const char* name) const { return path + "/" + name; }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
  }
};

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

model_config little() {
  model_config config;
  config.hidden_size = 4;
  config.head_dim = 2;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.intermediate_size = 3;
  config.num_hidden_layers = 1;
  config.num_local_experts = 2;
  return config;
}

// An export of one process.
struct whole_export {
  whole_export(const std::string& path, const model_config& config, std::uint64_t largest)
      : files(train_moe::tensors_of(config), largest),
        folder(path, config, 16, belay::dtype::f32, files),
        tensors(folder.path(), files) {}
  explicit whole_export(const std::string& path) : whole_export(path, little(), belay::safetensors::largest_file) {}
  void fill(const model_config& config, float value) {
    for (const auto& each : train_moe::tensors_of(config)) {
      std::size_t count = 1;
      for (std::uint64_t extent : each.shape) count *= extent;
      const std::vector<float> values(count, value);
      tensors.write<float>(each.name, 0, values);
    }
  }
  void commit() {
    tensors.commit();
    folder.commit();
  }

  belay::safetensors::file_division files;
  train_moe::model_export folder;
  belay::safetensors::writer tensors;
};

void export_to(const std::string& path, const model_config& config, float value) {
  whole_export out(path, config, belay::safetensors::largest_file);
  out.fill(config, value);
  out.commit();
}

float first_of(const std::string& path) {
  const belay::safetensors::folder in(train_moe::model_import(path, 16).folder());
  float value = 0;
  in.read<float>("model.norm.weight", 3, std::span(&value, 1));
  return value;
}

}  // namespace

TEST_CASE("an export is imported again, and replaced by the next one, and nothing else is left") {
  const folder dir;
  export_to(dir / "out", little(), 1.0F);
  CHECK(dir.entries() == 1);
  CHECK(first_of(dir / "out") == 1.0F);
  CHECK(train_moe::differences(train_moe::model_import(dir / "out/", 16).config(), little()).empty());
  const std::string before = text_of(dir / "out/model.safetensors");
  export_to(dir / "out/", little(), 2.0F);
  CHECK(first_of(dir / "out") == 2.0F);
  export_to(dir / "out", little(), 1.0F);
  CHECK(text_of(dir / "out/model.safetensors") == before);
  CHECK(dir.entries() == 1);
  std::filesystem::create_directory(dir / "empty");
  export_to(dir / "empty", little(), 3.0F);
  CHECK(first_of(dir / "empty") == 3.0F);
}

TEST_CASE("an export that is not committed leaves the old one and nothing beside it") {
  const folder dir;
  export_to(dir / "out", little(), 1.0F);
  {
    whole_export out(dir / "out");
    out.fill(little(), 2.0F);
    CHECK(dir.entries() == 2);
    CHECK(first_of(dir / "out") == 1.0F);
  }
  CHECK(first_of(dir / "out") == 1.0F);
  CHECK(dir.entries() == 1);
}

TEST_CASE("a folder that is no export is refused before anything is written") {
  const folder dir;
  const std::string target = dir / "out";
  const auto refused = [&](const char* why) {
    const std::size_t before = dir.entries();
    CHECK_THROWS_WITH_AS(whole_export{target}, doctest::Contains(why), belay::input_error);
    CHECK(dir.entries() == before);
  };
  std::ofstream(target) << "a file";
  refused("exists and is no folder");
  std::filesystem::remove(target);
  export_to(target, little(), 1.0F);
  std::ofstream(target + "/notes.txt") << "mine";
  refused("holds notes.txt");
  std::filesystem::remove(target + "/notes.txt");
  std::ofstream(target + "/config.json") << R"({"model_type": "llama"})";
  refused("is no export");
  std::filesystem::remove(target + "/config.json");
  refused("is no export");
  std::filesystem::remove_all(target);
  std::filesystem::create_directory_symlink(dir.path, target);
  refused("exists and is no folder");
  const std::string missing = "cannot be made (there is no folder " + dir.path + "/none)";
  CHECK_THROWS_WITH_AS(whole_export{dir / "none/out/"}, doctest::Contains(missing.c_str()), belay::input_error);
  train_moe::check_export_target(dir / "fresh/");
}

TEST_CASE("a large model is several files and their index, read and replaced like one") {
  const folder dir;
  for (const std::uint64_t largest :
       {std::uint64_t{4096}, std::uint64_t{1}, belay::safetensors::largest_file, std::uint64_t{4096}}) {
    CAPTURE(largest);
    whole_export out(dir / "out", little(), largest);
    out.fill(little(), 2.0F);
    const std::size_t files = out.tensors.files();
    CHECK((files == 1) == (largest > 4096));
    out.commit();
    CHECK(first_of(dir / "out") == 2.0F);
    CHECK(dir.entries() == 1);
    std::size_t found = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(dir / "out")) ++found;
    CHECK(found == (files == 1 ? 2 : files + 2));
  }
}

TEST_CASE("a folder that gets something else during the run is not replaced") {
  const folder dir;
  whole_export out(dir / "out");
  out.fill(little(), 1.0F);
  std::filesystem::create_directory(dir / "out");
  std::ofstream(dir / "out/notes.txt") << "mine";
  CHECK_THROWS_AS(out.commit(), belay::input_error);
  CHECK(text_of(dir / "out/notes.txt") == "mine");
}

TEST_CASE("missing, unexpected and misshapen tensors are named") {
  const folder dir;
  const auto import_with = [&](auto&& change) {
    std::filesystem::remove_all(dir / "out");
    export_to(dir / "out", little(), 1.0F);
    auto tensors = train_moe::tensors_of(little());
    change(tensors);
    belay::safetensors::writer out(dir / "out/model.safetensors", tensors);
    for (const auto& each : tensors) {
      std::uint64_t bytes = 0;
      REQUIRE(belay::safetensors::size_in_bytes(each.type, each.shape, bytes));
      const std::vector<std::byte> values(bytes);
      out.write_bytes(each.name, 0, values);
    }
    out.commit();
    try {
      const train_moe::model_import in(dir / "out", 16);
      return std::string("accepted");
    } catch (const belay::file_error& error) {
      return std::string(error.what());
    }
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(import_with([](auto&) {}) == "accepted");
  CHECK(import_with([](auto& all) { std::swap(all[0], all[5]); }) == "accepted");
  CHECK(has(import_with([](auto& all) { all.pop_back(); }), "missing lm_head.weight"));
  CHECK(has(import_with([](auto& all) { all.push_back({"model.extra", {}, {1}}); }), "unexpected model.extra"));
  CHECK(has(import_with([](auto& all) {
              all[0].shape = {4, 256};
            }),
            "model.embed_tokens.weight is [4, 256], config.json gives [256, 4]"));
  CHECK(import_with([](auto& all) { all[0].type = belay::safetensors::stored_type::bf16; }) == "accepted");
  CHECK(has(import_with([](auto& all) { all[0].type = belay::safetensors::stored_type::f16; }), "holds F16"));
  CHECK(has(import_with([](auto& all) { all.clear(); }),
            "and 8 more: config.json gives 16 tensors (num_hidden_layers 1, num_local_experts 2), here are 0"));
  CHECK(has(import_with([](auto& all) { all.push_back({"\x1b[31m\n", {}, {1}}); }), "unexpected \\x1b[31m\\n"));
  std::filesystem::remove(dir / "out/config.json");
  CHECK_THROWS_WITH_AS(train_moe::model_import(dir / "out", 16), doctest::Contains("config.json: cannot be opened"),
                       belay::file_error);
}

TEST_CASE("of several files the index is compared with the config, and a rank checks what it opens") {
  const folder dir;
  whole_export out(dir / "out", little(), 1);
  out.fill(little(), 1.0F);
  out.commit();
  const std::string index = dir / "out/model.safetensors.index.json";
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(train_moe::model_import(dir / "out", 16), doctest::Contains(why), belay::file_error);
  };
  std::filesystem::remove(dir / "out/model-00001-of-00016.safetensors");  // whoever needs it says so
  CHECK(train_moe::model_import(dir / "out", 16).folder() == dir / "out");
  const std::string text = text_of(index);
  const auto with = [&](const std::string& was, const std::string& is) {
    std::string changed = text;
    changed.replace(changed.find(was), was.size(), is);
    std::ofstream(index, std::ios::trunc) << changed;
  };
  with("lm_head.weight", "lm_head.height");
  refused("model.safetensors.index.json: missing lm_head.weight; unexpected lm_head.height");
  with("\"lm_head.weight\":", "\"a\":\"b\",\"lm_head.weight\":");
  refused("unexpected a");
  {
    auto tensors = train_moe::tensors_of(little());
    tensors[1].type = belay::safetensors::stored_type::f16;
    std::filesystem::create_directory(dir / "half");
    const belay::safetensors::file_division one({tensors[1]}, belay::safetensors::largest_file);
    belay::safetensors::writer half(dir / "half", one);
    std::uint64_t bytes = 0;
    REQUIRE(belay::safetensors::size_in_bytes(tensors[1].type, tensors[1].shape, bytes));
    half.write(tensors[1].name, 0, std::span<const belay::fp16>(std::vector<belay::fp16>(bytes / 2)));
    half.commit();
  }
  CHECK_THROWS_WITH_AS(train_moe::check_types(belay::safetensors::folder(dir / "half")),
                       doctest::Contains("holds F16, F32 or BF16 is needed"), belay::file_error);
}

TEST_CASE("a config that gives far more tensors than the file has is refused by the two numbers") {
  const folder dir;
  export_to(dir / "out", little(), 1.0F);
  model_config large = little();
  large.num_hidden_layers = 70'000;
  std::ofstream(dir / "out/config.json") << train_moe::config_json(large, 16);
  CHECK_THROWS_WITH_AS(
      train_moe::model_import(dir / "out", 16),
      doctest::Contains("model.safetensors: config.json gives 910003 tensors (num_hidden_layers 70000, "
                        "num_local_experts 2), here are 16"),
      belay::file_error);
}

TEST_CASE("what is no regular file, and what is too large, is refused at once") {
  const folder dir;
  export_to(dir / "out", little(), 1.0F);
  const std::string config = dir / "out/config.json";
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(train_moe::model_import(dir / "out", 16), doctest::Contains(why), belay::file_error);
  };
  std::filesystem::remove(config);
  REQUIRE(::mkfifo(config.c_str(), 0600) == 0);
  refused("config.json: is not a regular file");
  CHECK_THROWS_AS(train_moe::check_export_target(dir / "out"), belay::input_error);
  std::filesystem::remove(config);
  std::filesystem::create_symlink("/dev/zero", config);
  refused("config.json: is not a regular file");
  std::filesystem::remove(config);
  std::ofstream(config) << "{}";
  std::filesystem::resize_file(config, train_moe::largest_config + 1);
  refused("config.json: has 1048577 bytes, at most 1048576 are read");
  std::ofstream(config, std::ios::trunc) << train_moe::config_json(little(), 16);
  const std::string tensors = dir / "out/model.safetensors";
  std::filesystem::remove(tensors);
  REQUIRE(::mkfifo(tensors.c_str(), 0600) == 0);
  refused("model.safetensors: is not a regular file");
}
