// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/hugging_face.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "input/bounded_json.hpp"
#include "input/regular_file.hpp"

namespace train_moe {

namespace {

namespace files = std::filesystem;
namespace safetensors = belay::safetensors;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

bool is_read(safetensors::stored_type type) {
  return type == safetensors::stored_type::f32 || type == safetensors::stored_type::bf16;
}
std::string wrong_type(safetensors::stored_type type) {
  return " holds " + std::string(safetensors::name(type)) + ", F32 or BF16 is needed";
}

// Every tensor of the config must be among `names`, and nothing else; `wrong_with(declaration)` says what is wrong
// with one that is there.
template <class Wrong>
void check_tensors(const std::string& path, const std::vector<std::string>& names, const model_config& config,
                   Wrong&& wrong_with) {
  const std::uint64_t wanted = tensor_count(config);
  const std::string counts = "config.json gives " + std::to_string(wanted) + " tensors (num_hidden_layers " +
                             std::to_string(config.num_hidden_layers) + ", num_local_experts " +
                             std::to_string(config.num_local_experts) + "), here are " + std::to_string(names.size());
  // Names are only made for a config that may have been meant for this file.
  constexpr std::uint64_t most_missing = 4096;
  if (wanted > names.size() + most_missing) throw belay::file_error(path, 0, counts);
  constexpr std::size_t most_told = 8;
  std::string wrong;
  std::size_t count = 0;
  const auto complain = [&](const std::string& text) {
    if (++count <= most_told) wrong += (wrong.empty() ? "" : "; ") + text;
  };
  std::map<std::string_view, bool> expected;
  for (const std::string& name : names) expected.emplace(name, false);
  for (const safetensors::declaration& each : tensors_of(config)) {
    const auto found = expected.find(each.name);
    if (found == expected.end()) {
      complain("missing " + each.name);
      continue;
    }
    found->second = true;
    if (const std::string text = wrong_with(each); !text.empty()) complain(each.name + text);
  }
  for (const std::string& name : names) {
    if (!expected[name]) complain("unexpected " + belay::printable_start(name, 100));
  }
  if (count > most_told) wrong += "; and " + std::to_string(count - most_told) + " more: " + counts;
  if (count != 0) throw belay::file_error(path, 0, wrong);
}

// The same of files that are open, as fp32 or bf16 in the config's shapes.
void check_tensors(const safetensors::folder& in, const model_config& config) {
  std::vector<std::string> names;
  for (const safetensors::tensor& each : in.tensors()) names.push_back(each.name);
  check_tensors(in.path(), names, config, [&](const safetensors::declaration& wanted) {
    const safetensors::tensor& found = *in.find(wanted.name);
    if (!is_read(found.type)) return wrong_type(found.type);
    if (found.shape == wanted.shape) return std::string();
    return " is " + shape_text(found.shape) + ", config.json gives " + shape_text(wanted.shape);
  });
}

void check_names(const std::string& index, const model_config& config) {
  std::vector<std::string> names;
  for (const auto& [name, lies_in] : safetensors::read_index(index)) names.push_back(name);
  check_tensors(index, names, config, [](const safetensors::declaration&) { return std::string(); });
}

bool is_mixtral_config(const std::string& path) {
  try {
    const auto values = input::json_parser<nlohmann::json>(path, input::content_of(path, largest_config)).parse();
    if (!values.is_object()) return false;
    const auto type = values.find("model_type");
    return type != values.end() && *type == "mixtral";
  } catch (const belay::file_error&) {
    return false;
  }
}

std::string checked_target(const std::string& folder) {
  check_export_target(folder);
  return without_slash(folder);
}

// All files of an export, also those of one that was divided otherwise.
std::vector<std::string> names_of(const safetensors::file_division& division) {
  std::vector<std::string> out = division.names();
  for (const std::string& other : {std::string("config.json"), std::string("model.safetensors")})
    if (std::find(out.begin(), out.end(), other) == out.end()) out.push_back(other);
  return out;
}

// "model.safetensors", "model-00001-of-00003.safetensors", and their index.
bool is_model_file(const std::string& name) {
  if (name == "model.safetensors" || name == safetensors::file_division::index_name()) return true;
  const std::string pattern = "model-00000-of-00000.safetensors";
  if (name.size() != pattern.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    if (pattern[i] == '0' ? !digit : name[i] != pattern[i]) return false;
  }
  return true;
}

void write_text(const std::string& path, const std::string& text) {
  const belay::where at = belay::where::current();
  const safetensors::file out = safetensors::file::create_new(path, at);
  if (!out.is_open()) throw belay::file_error(path, 0, "is in the way");
  out.write(0, std::as_bytes(std::span(text)), at);
  out.permit(0644, at);
  out.sync(at);
}

}  // namespace

void check_export_target(const std::string& folder) {
  const std::string refusal = "--export " + folder + ": ";
  std::error_code error;
  const files::file_status status = files::symlink_status(folder, error);
  if (status.type() == files::file_type::not_found) {
    const std::string missing = belay::missing_folder(without_slash(folder));
    if (!missing.empty()) throw belay::input_error(refusal + "cannot be made" + missing);
    return;
  }
  if (status.type() == files::file_type::none) throw belay::input_error(refusal + error.message());
  if (status.type() != files::file_type::directory) throw belay::input_error(refusal + "exists and is no folder");
  bool has_config = false;
  bool has_tensors = false;
  bool is_empty = true;
  files::directory_iterator entries(folder, error);
  if (error) throw belay::input_error(refusal + error.message());
  for (const files::directory_entry& entry : entries) {
    is_empty = false;
    const std::string name = entry.path().filename().string();
    const bool is_file = entry.symlink_status().type() == files::file_type::regular;
    if (name == "config.json" && is_file) {
      has_config = is_mixtral_config(entry.path().string());
    } else if (is_model_file(name) && is_file) {
      has_tensors = true;
    } else {
      throw belay::input_error(refusal + "holds " + name + ", so it is no export of this program; nothing is replaced");
    }
  }
  if (!is_empty && !(has_config && has_tensors)) {
    throw belay::input_error(refusal +
                             "is no export (config.json of a mixtral and model.safetensors); nothing is replaced");
  }
}

void check_export_place(const std::string& folder) {
  std::string beside = without_slash(folder) + ".tmp-belay-XXXXXX";
  if (::mkdtemp(beside.data()) == nullptr)
    throw belay::input_error("--export " + folder + ": no folder can be made beside it: " + safetensors::reason(errno));
  ::rmdir(beside.c_str());
}

void check_types(const safetensors::folder& in) {
  for (const safetensors::tensor& each : in.tensors()) {
    if (is_read(each.type)) continue;
    throw belay::file_error(in.path(), 0, each.name + wrong_type(each.type));
  }
}

model_import::model_import(const std::string& folder, std::size_t sequence)
    : folder_(without_slash(folder)), config_(load_model(folder_ + "/config.json", sequence)) {
  const std::string index = safetensors::index_of(folder_);
  if (index.empty())
    check_tensors(safetensors::folder(folder_), config_);
  else
    check_names(index, config_);
}

model_export::model_export(const std::string& folder, const model_config& config, std::size_t sequence,
                           belay::dtype type, const safetensors::file_division& files)
    : target_(checked_target(folder)), folder_(target_, names_of(files)) {
  write_text(folder_.path() + "/config.json", config_json(config, sequence, type));
}

void model_export::commit() {
  safetensors::sync_folder(folder_.path());
  check_export_target(target_);  // it may have changed during the run
  folder_.put_in_place();
}

}  // namespace train_moe
