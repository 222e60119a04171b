// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Models in several files: what is written is found, by other libraries too, and an index that lies is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "belay/train/safetensors.hpp"

namespace {

namespace st = belay::safetensors;

struct directory {
  std::string path = [] {
    char name[] = "/tmp/belay_folder_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~directory() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path + "/" + name; }
  [[nodiscard]] std::vector<std::string> entries() const {
    std::vector<std::string> out;
    for (const auto& each : std::filesystem::directory_iterator(path)) out.push_back(each.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

const std::vector<st::declaration> tensors{{"wte", st::stored_type::f32, {5, 3}},
                                           {"a", st::stored_type::f32, {4}},
                                           {"empty", st::stored_type::f32, {0, 7}},
                                           {"b", st::stored_type::f32, {6}},
                                           {"head", st::stored_type::f32, {2, 2}}};

float value_of(std::size_t tensor, std::size_t i) { return static_cast<float>(100 * tensor + i); }

void write(const std::string& path, std::uint64_t largest) {
  st::writer out(path, st::file_division(tensors, largest));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::size_t size = 1;
    for (const auto extent : tensors[t].shape) size *= extent;
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = value_of(t, i);
    const std::size_t half = size / 2;  // in two parts, the second one first
    out.write(tensors[t].name, half, std::span<const float>(values).subspan(half));
    out.write(tensors[t].name, 0, std::span<const float>(values).first(half));
  }
  out.commit();
}

void check(const std::string& path) {
  const st::folder in(path);
  REQUIRE(in.tensors().size() == tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const st::tensor* const found = in.find(tensors[t].name);
    REQUIRE(found != nullptr);
    CHECK(found->shape == tensors[t].shape);
    for (std::size_t first = 0; first <= found->elements(); ++first) {
      std::vector<double> part(found->elements() - first);
      in.read_converted(tensors[t].name, first, std::span(part));
      for (std::size_t i = 0; i < part.size(); ++i) CHECK(part[i] == static_cast<double>(value_of(t, first + i)));
    }
  }
  CHECK(in.find("none") == nullptr);
}

std::string refusal(const std::string& path) {
  try {
    const st::folder in(path);
  } catch (const belay::file_error& error) {
    return error.what();
  }
  return "";
}

void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a folder of any number of files is read as one") {
  const std::map<std::uint64_t, std::size_t> files{{1000, 1}, {76, 2}, {40, 3}, {24, 4}, {1, 5}};
  for (const auto& [largest, count] : files) {
    CAPTURE(largest);
    const directory dir;
    write(dir.path, largest);
    check(dir.path);
    check(dir.path + "/");
    CHECK(st::folder(dir.path).files() == count);
    CHECK(dir.entries().size() == (count == 1 ? 1 : count + 1));
    if (count == 1) {
      check(dir / "model.safetensors");
      continue;
    }
    std::ifstream text(dir / "model.safetensors.index.json");
    const auto index = nlohmann::json::parse(text);
    CHECK(index["metadata"]["total_size"] == 4 * (15 + 4 + 6 + 4));
    CHECK(index["weight_map"].size() == tensors.size());
    CHECK(index["weight_map"]["wte"] == "model-00001-of-0000" + std::to_string(count) + ".safetensors");
  }
}

TEST_CASE("an index of another writer is read: other fields, any order, any space") {
  const directory dir;
  write(dir.path, 40);
  put(dir / "model.safetensors.index.json",
      "{ \"weight_map\" :\n {\"head\":\"model-00003-of-00003.safetensors\",\"b\":\"model-00002-of-00003.safetensors\","
      "\"wte\":\"model-00001-of-00003.safetensors\",\"empty\":\"model-00002-of-00003.safetensors\","
      "\"a\":\"model-00002-of-00003.safetensors\"},\"metadata\":{\"total_size\":1.16e2,\"by\":[null,true,{\"x\":-1}]}}"
      "\n");
  check(dir.path);
}

TEST_CASE("an index that lies, or leaves its folder, is refused with its names") {
  const directory dir;
  write(dir.path, 40);
  const std::string index = dir / "model.safetensors.index.json";
  const auto with = [&](const std::string& map) {
    put(index, "{\"metadata\":{},\"weight_map\":" + map + "}");
    return refusal(dir.path);
  };
  const std::string first = "\"model-00001-of-00003.safetensors\"";
  CHECK(contains(with("{\"wte\":\"../other\"}"), "lies in ../other, which is no file beside it"));
  CHECK(contains(with("{\"wte\":\"..\"}"), "which is no file beside it"));
  // The system would open what is before the NUL.
  CHECK(contains(with("{\"wte\":\"model-00001-of-00003.safetensors\\u0000.x\"}"), "which is no file beside it"));
  CHECK(contains(with("{\"wte\":\"none.safetensors\"}"), "none.safetensors: cannot be opened"));
  CHECK(contains(with("{\"a\":" + first + "}"), "has no tensor a, as "));
  CHECK(contains(with("{\"wte\":" + first + ",\"wte\":" + first + "}"), "tensor wte is there twice"));
  CHECK(contains(with("[]"), "expected {"));
  put(index, "{\"metadata\":{}}");
  CHECK(contains(refusal(dir.path), "has no weight_map"));
  put(index, "{\"weight_map\":{},\"weight_map\":{}}");
  CHECK(contains(refusal(dir.path), "weight_map is there twice"));
  put(index, std::string(20, '[') + std::string(20, ']'));
  CHECK(contains(refusal(dir.path), "expected {"));
  put(index, "{\"metadata\":" + std::string(20, '[') + std::string(20, ']') + "}");
  CHECK(contains(refusal(dir.path), "nested too deep"));
  // What two files have, and what the index leaves out.
  std::filesystem::copy_file(dir / "model-00001-of-00003.safetensors", dir / "copy.safetensors");
  CHECK(contains(with("{\"wte\":" + first + ",\"a\":\"copy.safetensors\"}"), "and so has"));
  CHECK(contains(with("{\"a\":\"model-00002-of-00003.safetensors\"}"), "which " + index + " does not have"));
}

TEST_CASE("a file that is cut short is named, when it is opened or while it is read") {
  const directory dir;
  write(dir.path, 40);
  const std::string second = dir / "model-00002-of-00003.safetensors";
  const st::folder in(dir.path);
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 4);
  CHECK(contains(refusal(dir.path), "model-00002-of-00003.safetensors"));
  std::vector<float> b(6);
  CHECK_THROWS_WITH_AS(in.read("b", 0, std::span(b)), doctest::Contains("model-00002-of-00003.safetensors"),
                       belay::file_error);
}

TEST_CASE("without all bytes nothing gets its name") {
  const directory dir;
  {
    st::writer out(dir.path, st::file_division(tensors, 40));
    CHECK_THROWS_AS(out.commit(), belay::usage_error);
    CHECK_THROWS_AS(out.write("none", 0, std::span<const float>()), belay::usage_error);
  }
  CHECK(dir.entries().empty());
}

TEST_CASE("a tensor that is declared for two files is refused before there is one") {
  const directory dir;
  const auto twice = [&] { st::writer(dir.path, st::file_division({tensors[0], tensors[1], tensors[0]}, 1)); };
  CHECK_THROWS_WITH_AS(twice(), doctest::Contains("tensor wte is declared twice"), belay::usage_error);
  CHECK(dir.entries().empty());
}

TEST_CASE("a commit that is refused may be tried again, and what was there is whole until then") {
  const directory dir;
  std::filesystem::create_directories(dir / "model-00002-of-00003.safetensors/taken");
  {
    st::writer out(dir.path, st::file_division(tensors, 40));
    for (const st::declaration& each : tensors) {
      std::uint64_t bytes = 0;
      REQUIRE(st::size_in_bytes(each.type, each.shape, bytes));
      out.write_bytes(each.name, 0, std::vector<std::byte>(bytes));
    }
    CHECK_THROWS_WITH_AS(out.commit(), doctest::Contains("cannot be replaced"), belay::file_error);
    CHECK(!std::filesystem::exists(dir / "model.safetensors.index.json"));
    std::filesystem::remove_all(dir / "model-00002-of-00003.safetensors");
    out.commit();
    CHECK_THROWS_WITH_AS(out.commit(), doctest::Contains("has been committed"), belay::usage_error);
  }
  CHECK(st::folder(dir.path).files() == 3);
  CHECK(dir.entries().size() == 4);
}

TEST_CASE("several files take the place of one, which would be read in theirs") {
  const directory dir;
  write(dir.path, 1000);
  write(dir.path, 40);
  check(dir.path);
  CHECK(st::folder(dir.path).files() == 3);
  CHECK(dir.entries().size() == 4);
}

TEST_CASE("for some tensors the files that have them are opened, and the others may be anything") {
  const directory dir;
  write(dir.path, 40);
  put(dir / "model-00002-of-00003.safetensors", "no model");
  const auto refused = [&](const std::vector<std::string>& needed) -> std::string {
    try {
      const st::folder in(dir.path, needed);
      CHECK(in.find("a") == nullptr);
      CHECK_THROWS_WITH_AS(in.expect_shape("a", std::vector<std::uint64_t>{4}), doctest::Contains("has no tensor a"),
                           belay::file_error);
      return std::to_string(in.files());
    } catch (const belay::file_error& error) {
      return error.what();
    }
  };
  CHECK(refused({}) == "0");
  CHECK(refused({"wte"}) == "1");
  CHECK(refused({"wte", "head", "wte"}) == "2");
  CHECK(contains(refused({"wte", "a"}), "model-00002-of-00003.safetensors"));
  CHECK(contains(refused({"none"}), "model.safetensors.index.json: has no tensor none"));
  const st::folder in(dir.path, std::vector<std::string>{"head"});
  in.expect_shape("head", std::vector<std::uint64_t>{2, 2});
  CHECK_THROWS_WITH_AS(in.expect_shape("head", std::vector<std::uint64_t>{4}),
                       doctest::Contains("model-00003-of-00003.safetensors: tensor head is 2x2, 4 is needed"),
                       belay::file_error);
}
