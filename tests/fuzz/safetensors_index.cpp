// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any bytes as model.safetensors.index.json: refused with the byte, or a map of which every file lies beside the index,
// and a folder that is read by it, or is refused with the file that is missing or lacks a tensor.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <vector>

#include "belay/core/printable.hpp"
#include "belay/train/safetensors.hpp"
#include "fuzz/support/target.hpp"

namespace safetensors = belay::safetensors;

namespace {

// A folder of two files, and the index that is tried.
class model_folder {
 public:
  model_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "belay-fuzz-XXXXXX").string();
    fuzz::expect(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
    path_ = pattern;
    const std::vector<safetensors::declaration> tensors{{"a", safetensors::stored_type::f32, {2}},
                                                        {"b", safetensors::stored_type::f32, {3}}};
    safetensors::writer out(path_, safetensors::file_division(tensors, 1));
    for (const auto& each : tensors)
      out.write(each.name, 0, std::span<const float>(std::vector<float>(each.shape[0], 1.0F)));
    out.commit();
  }
  model_folder(const model_folder&) = delete;
  model_folder& operator=(const model_folder&) = delete;
  ~model_folder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }

  void hold(std::string_view index) const { std::ofstream(name(), std::ios::binary | std::ios::trunc) << index; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string name() const { return path_ + "/" + safetensors::file_division::index_name(); }

 private:
  std::string path_;
};

void check_map(const safetensors::weight_map& map) {
  std::set<std::string_view> names;
  std::string again = "{\"weight_map\":{";
  for (const auto& [name, file] : map) {
    fuzz::expect(names.insert(name).second, "a tensor is there once");
    fuzz::expect(!file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos &&
                     file.find('\0') == std::string::npos,
                 "a file lies beside the index");
    if (names.size() > 1) again += ',';
    belay::append_json(again, name);
    again += ':';
    belay::append_json(again, file);
  }
  again += "}}";
  fuzz::expect(safetensors::parse_index(again, "again", belay::where{}) == map, "an index is read as it is written");
}

void read_all(const safetensors::folder& in) {
  for (const safetensors::tensor& each : in.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(each.elements()));
    in.read(each.name, 0, std::span(values));
    fuzz::expect(values.front() == 1.0F, "a tensor is read from its file");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const model_folder folder;
  safetensors::weight_map map;
  const bool is_index = fuzz::refuses_with<belay::file_error>([&] {
    map = safetensors::parse_index(fuzz::text_of(data, size), "index.json", belay::where{});
    check_map(map);
  });
  folder.hold(fuzz::text_of(data, size));
  fuzz::expect(
      !fuzz::refuses_with<belay::file_error>([&] { read_all(safetensors::folder(folder.path())); }) || is_index,
      "what is no index is refused");
  const std::vector<std::string> needed{"a"};
  fuzz::refuses_with<belay::file_error>([&] {
    const safetensors::folder in(folder.path(), needed);
    fuzz::expect(in.files() == 1, "one file is opened for one tensor");
    read_all(in);
  });
  return 0;
}
