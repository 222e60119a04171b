// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model in the format of Hugging Face's libraries: the numbers of its config.json, the names and shapes of its
// tensors, and the folder that holds both. A config that this trainer cannot compute exactly as transformers would is
// refused with the field's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/train/safetensors.hpp"
#include "whole_folder/temporary_folder.hpp"

namespace train_moe {

/// Bytes of a config.json that are read.
inline constexpr std::uint64_t largest_config = std::uint64_t{1} << 20;

/// The fields of config.json by their names there.
struct model_config {
  std::size_t vocab_size = 256;
  std::size_t hidden_size = 128;
  std::size_t intermediate_size = 256;
  std::size_t num_hidden_layers = 4;
  std::size_t num_attention_heads = 4;
  std::size_t num_key_value_heads = 4;
  std::size_t head_dim = 32;
  std::size_t num_local_experts = 8;
  std::size_t num_experts_per_tok = 2;
  std::size_t max_position_embeddings = 128;
  double rms_norm_eps = 1e-5;
  double rope_theta = 1e6;
  double router_aux_loss_coef = 0.01;
  double initializer_range = 0.02;

  friend bool operator==(const model_config&, const model_config&) = default;
};

/// A built-in model, "tiny" or "small", or the config.json at the path `model`, for sequences of `sequence` bytes. A
/// config that cannot be trained or stored in a file is a belay::input_error with the file and the field. A file that
/// cannot be read, or is no JSON, is a belay::file_error.
[[nodiscard]] model_config load_model(const std::string& model, std::size_t sequence);

/// Takes the text of a config.json; `source` names it in errors.
[[nodiscard]] model_config parse_model(const std::string& text, std::size_t sequence, const std::string& source);

/// config.json with max_position_embeddings = `sequence`, of tensors of `type`; the same config gives the same bytes.
[[nodiscard]] std::string config_json(const model_config& config, std::size_t sequence,
                                      belay::dtype type = belay::dtype::f32);

/// Fields in which the two differ as models ("hidden_size 128 and 256, ..."), empty when they agree. What
/// changes only the training (router_aux_loss_coef, initializer_range, the longest sequence) may differ.
[[nodiscard]] std::string differences(const model_config& a, const model_config& b);

/// How many tensors a model has.
[[nodiscard]] std::uint64_t tensor_count(const model_config& config) noexcept;

/// All tensors of a model in the order in which an export holds them.
[[nodiscard]] std::vector<belay::safetensors::declaration> tensors_of(const model_config& config,
                                                                      belay::dtype type = belay::dtype::f32);

/// A model folder to read from, of tensors in F32 or BF16, of which a rank opens what it needs.
class model_import {
 public:
  /// Reads DIR/config.json, and the names of the tensors: of DIR/model.safetensors, whose types and shapes are then
  /// checked too, or of DIR/model.safetensors.index.json, whose files the ranks check that open them. Missing,
  /// unexpected or misshapen tensors are a belay::file_error that names them.
  model_import(const std::string& folder, std::size_t sequence);

  [[nodiscard]] const model_config& config() const noexcept { return config_; }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  std::string folder_;
  model_config config_;
};

/// Throws belay::file_error unless all tensors of the open files are in F32 or BF16.
void check_types(const belay::safetensors::folder& in);

/// A model folder that is being written, with its config.json; its tensors, as `files` divides them, another writes
/// into `path()`. It lies beside its final path until commit() renames it.
class model_export {
 public:
  /// Refuses a `folder` that exists and is no export (belay::input_error) before anything is written. Removes the
  /// leftovers of killed exports to the same path.
  model_export(const std::string& folder, const model_config& config, std::size_t sequence, belay::dtype type,
               const belay::safetensors::file_division& files);

  [[nodiscard]] const std::string& path() const noexcept { return folder_.path(); }

  /// Gives the folder its final name. A folder that is not committed is removed by the destructor, and by signals that
  /// end the process (see temporary_folder).
  void commit();

 private:
  std::string target_;
  whole_folder::temporary_folder folder_;
};

/// Throws belay::input_error unless `folder` does not exist, is empty, or holds an export of this program.
void check_export_target(const std::string& folder);
/// Throws belay::input_error where no folder can be made beside it, as an export does.
void check_export_place(const std::string& folder);

}  // namespace train_moe
