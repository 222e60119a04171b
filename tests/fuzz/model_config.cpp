// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any bytes as the config.json of a model that is imported: refused with the field, or written again as the same and
// compared with the tensors of a small model without listing more than there are.
#include <fstream>

#include "fuzz/support/target.hpp"
#include "train_moe/hugging_face.cpp"
#include "train_moe/model_config.cpp"

namespace {

constexpr std::size_t sequence = 16;

train_moe::model_config small_model() {
  train_moe::model_config config;
  config.hidden_size = config.intermediate_size = 2;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 1;
  config.head_dim = config.num_local_experts = 2;
  return config;
}

// A folder to import from: a small model's tensors, and the config that is tried.
class model_folder {
 public:
  model_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "belay-fuzz-XXXXXX").string();
    fuzz::expect(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
    path_ = pattern;
    belay::safetensors::writer out(path_ + "/model.safetensors", train_moe::tensors_of(small_model()));
    for (const auto& each : train_moe::tensors_of(small_model())) {
      std::uint64_t elements = 1;
      for (const std::uint64_t extent : each.shape) elements *= extent;
      out.write(each.name, 0, std::span<const float>(std::vector<float>(elements)));
    }
    out.commit();
  }
  model_folder(const model_folder&) = delete;
  model_folder& operator=(const model_folder&) = delete;
  ~model_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& with(std::string_view config) const {
    std::ofstream(path_ + "/config.json", std::ios::binary) << config;
    return path_;
  }

 private:
  std::string path_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const model_folder folder;
  const std::string& path = folder.with(fuzz::text_of(data, size));
  fuzz::refuses_with<belay::input_error, belay::file_error>([&] {
    const train_moe::model_config config = train_moe::load_model(path + "/config.json", sequence);
    const std::string text = train_moe::config_json(config, sequence);
    const train_moe::model_config back = train_moe::parse_model(text, sequence, "written again");
    fuzz::expect(train_moe::differences(config, back).empty(), "a config is written as it was read");
    fuzz::expect(train_moe::tensor_count(config) <= belay::safetensors::most_tensors, "a file holds the tensors");
    const train_moe::model_import imported(path, sequence);
    const belay::safetensors::folder files(imported.folder());
    fuzz::expect(files.tensors().size() == train_moe::tensor_count(config), "all tensors are there");
  });
  return 0;
}
