// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A checkpoint's values as a folder for others: of train_moe, the same bytes as its --export writes; otherwise tensors
// by their own names. Only values are read, some MiB at a time.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/view.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/safetensors.hpp"
#include "tools/belay_checkpoint/checkpoint_list.hpp"
#include "train_moe/hugging_face.hpp"
#include "train_moe/run_state.hpp"
#include "train_moe/weights.hpp"
#include "whole_folder/temporary_folder.hpp"

namespace belay_checkpoint {

/// Throws belay::input_error unless `folder` can be made, or is empty.
inline void expect_free(const std::string& folder) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(folder, error).type();
  if (type == std::filesystem::file_type::not_found) {
    std::string beside = folder + ".tmp-belay-XXXXXX";
    if (::mkdtemp(beside.data()) == nullptr)
      throw belay::input_error(folder + ": cannot be made: " + belay::error_text(errno) +
                               belay::missing_folder(folder) + "; name a folder in one that can be written");
    ::rmdir(beside.c_str());
    return;
  }
  if (type == std::filesystem::file_type::none) throw belay::input_error(folder + ": " + error.message());
  if (type != std::filesystem::file_type::directory) throw belay::input_error(folder + ": exists and is no folder");
  const bool empty = std::filesystem::is_empty(folder, error);
  if (error) throw belay::input_error(folder + ": " + error.message());
  if (!empty) throw belay::input_error(folder + ": holds files already; nothing is replaced");
}

/// The files that were written.
struct exported {
  std::string folder;
  std::size_t tensors = 0;
  std::uint64_t bytes_read = 0;
};

class checkpoint_export {
 public:
  /// Writes the values of the checkpoint at `from` as `folder`, which appears in full or not at all. Throws
  /// belay::input_error where the folder holds something, belay::file_error with file, byte and tensor for a checkpoint
  /// that cannot be read.
  [[nodiscard]] static exported to(std::string folder, const std::string& from) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    expect_free(folder);
    checkpoint_export work(from);
    const std::string* const state = work.state_of("train_moe");
    if (state != nullptr)
      work.write_model(folder, *state);
    else
      work.write_plain(folder);
    return {folder, work.count_, work.in_.bytes_read()};
  }

 private:
  using declaration = belay::safetensors::declaration;
  using stored_type = belay::safetensors::stored_type;

  // Where the elements of an exported tensor lie.
  struct tensor_source {
    const belay::manifest_tensor* from;
    std::uint64_t first;
    std::vector<std::uint64_t> shape;
  };

  explicit checkpoint_export(const std::string& from) : in_(from) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw belay::file_error(manifest_of(in_.folder()), 0, what);
  }
  [[nodiscard]] const std::string* state_of(std::string_view wanted) const {
    for (const auto& [name, text] : in_.content().states)
      if (name == wanted) return &text;
    return nullptr;
  }
  [[nodiscard]] stored_type type_of(const belay::manifest_tensor& tensor) const {
    std::optional<stored_type> out;
    for (const belay::manifest_piece& each : tensor.pieces) {
      if (each.part != belay::value_part) continue;
      if (out && *out != each.type) refuse("tensor " + belay::printable(tensor.name) + " has values of two dtypes");
      out = each.type;
    }
    if (!out) refuse("has no values of tensor " + belay::printable(tensor.name));
    return *out;
  }

  void write_plain(const std::string& folder) {
    std::vector<declaration> tensors;
    for (const belay::manifest_tensor& each : in_.content().tensors) {
      if (!places_.emplace(each.name, tensor_source{&each, 0, each.shape}).second)
        refuse("lists tensor " + belay::printable(each.name) + " twice");
      tensors.push_back({each.name, type_of(each), each.shape});
    }
    const belay::safetensors::file_division files(tensors, belay::safetensors::largest_file);
    whole_folder::temporary_folder target(folder, files.names());
    write(target.path(), tensors, files);
    expect_free(folder);  // it may have changed meanwhile
    target.put_in_place();
  }

  void write_model(const std::string& folder, const std::string& state) {
    const train_moe::described_model model = described(state);
    const train_moe::model_config& config = model.config;
    if (train_moe::tensor_count(config) > belay::safetensors::most_tensors)
      refuse("describes a model of " + std::to_string(train_moe::tensor_count(config)) + " tensors");
    std::optional<belay::dtype> type;
    for (const belay::manifest_tensor& each : in_.content().tensors) {
      const stored_type stored = type_of(each);
      if (stored != stored_type::f32 && stored != stored_type::bf16)
        refuse("tensor " + belay::printable(each.name) + " holds " + std::string(belay::safetensors::name(stored)) +
               ", F32 or BF16 is needed");
      const belay::dtype own = stored == stored_type::bf16 ? belay::dtype::bf16 : belay::dtype::f32;
      if (type && *type != own) refuse("has tensors in F32 and in BF16");
      type = own;
      place_parameter(each, config.num_local_experts);
    }
    const std::vector<declaration> tensors = train_moe::tensors_of(config, type.value_or(belay::dtype::f32));
    for (const declaration& each : tensors) {
      const auto found = places_.find(each.name);
      if (found == places_.end()) refuse("has no tensor " + each.name + " of the model that it describes");
      if (found->second.shape != each.shape)
        refuse("tensor " + each.name + " is " + belay::shape_text(found->second.shape) + ", the model's is " +
               belay::shape_text(each.shape));
    }
    if (places_.size() != tensors.size()) refuse("has tensors that the model it describes has not");
    const belay::safetensors::file_division files(tensors, belay::safetensors::largest_file);
    train_moe::model_export target(folder, config, model.sequence, type.value_or(belay::dtype::f32), files);
    write(target.path(), tensors, files);
    expect_free(folder);
    target.commit();
  }
  [[nodiscard]] train_moe::described_model described(const std::string& state) const {
    try {
      return train_moe::model_of_state(state, in_.folder());
    } catch (const belay::input_error& problem) {
      refuse(belay::printable_what(problem));
    }
  }
  // A stack of experts is a tensor for each expert and matrix: w1 and w3 of an expert lie side by side in w13.
  void place_parameter(const belay::manifest_tensor& from, std::size_t experts) {
    const std::string_view name = from.name;
    const std::size_t dot = name.rfind('.');
    if (!name.ends_with(".experts.w13") && !name.ends_with(".experts.w2"))
      return static_cast<void>(places_.emplace(from.name, tensor_source{&from, 0, from.shape}));
    const std::string stem(name.substr(0, dot));
    std::vector<std::string> matrices{std::string(name)};
    if (name.ends_with(".w13")) matrices = {stem + ".w1", stem + ".w3"};
    if (from.shape.size() != 3 || from.shape[0] != experts || from.shape[1] % matrices.size() != 0)
      refuse("tensor " + belay::printable(from.name) + " is " + belay::shape_text(from.shape) +
             ", no stack of the model's " + std::to_string(experts) + " experts");
    const std::vector<std::uint64_t> shape{from.shape[1] / matrices.size(), from.shape[2]};
    std::uint64_t first = 0;
    for (std::size_t expert = 0; expert < experts; ++expert)
      for (const std::string& matrix : matrices) {
        places_.emplace(train_moe::expert_tensor(matrix, expert), tensor_source{&from, first, shape});
        first += shape[0] * shape[1];
      }
  }

  void write(const std::string& folder, const std::vector<declaration>& tensors,
             const belay::safetensors::file_division& files) {
    belay::safetensors::writer out(folder, files);
    for (const declaration& each : tensors) switch (each.type) {
        case stored_type::f64: write_as<double>(out, each); break;
        case stored_type::f32: write_as<float>(out, each); break;
        case stored_type::f16: write_as<belay::fp16>(out, each); break;
        case stored_type::bf16: write_as<belay::bf16>(out, each); break;
        default:
          refuse("tensor " + belay::printable(each.name) + " holds " +
                 std::string(belay::safetensors::name(each.type)) + ", which is not read as numbers");
      }
    out.commit();
    count_ = tensors.size();
  }
  template <class T>
  void write_as(belay::safetensors::writer& out, const declaration& to) {
    constexpr std::uint64_t at_once = (std::uint64_t{4} << 20U) / sizeof(T);
    const tensor_source& from = places_.find(to.name)->second;
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : to.shape) elements *= extent;
    std::vector<T> some(static_cast<std::size_t>(std::min(at_once, elements)));
    for (std::uint64_t done = 0; done < elements; done += at_once) {
      const auto part = std::span(some).first(static_cast<std::size_t>(std::min(at_once, elements - done)));
      in_.read(*from.from, belay::value_part, from.first + done, part);
      out.write(to.name, done, std::span<const T>(part));
    }
  }

  belay::checkpoint_reader<> in_;
  std::map<std::string, tensor_source, std::less<>> places_;
  std::size_t count_ = 0;
};

}  // namespace belay_checkpoint
