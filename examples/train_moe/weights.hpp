// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parameters of a mesh as tensors of a file: a dense parameter is one tensor, a stack of experts is one tensor for
// each expert and matrix. A rank reads and writes only its own parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/parallel/placement.hpp"
#include "belay/train/parameter_files.hpp"
#include "train_moe/hugging_face.hpp"

namespace train_moe {

/// "...experts.w1" and expert 3: "...experts.3.w1.weight".
[[nodiscard]] inline std::string expert_tensor(const std::string& stack, std::size_t expert) {
  const std::size_t dot = stack.rfind('.');
  return stack.substr(0, dot + 1) + std::to_string(expert) + stack.substr(dot) + ".weight";
}

/// The tensors of a parameter, in the order of its elements.
struct hugging_face_tensors {
  template <class Parameter>
  [[nodiscard]] std::vector<belay::safetensors::declaration> operator()(const Parameter& parameter) const {
    if (!belay::sharded_over<belay::axis::expert>(parameter)) return belay::one_tensor_each()(parameter);
    std::vector<std::string> stacks = parameter.spec().joins;
    if (stacks.empty()) stacks.push_back(parameter.name());
    std::vector<std::uint64_t> shape(parameter.shape().begin() + 1, parameter.shape().end());
    shape[0] /= stacks.size();
    std::vector<belay::safetensors::declaration> out;
    for (std::size_t expert = 0; expert < parameter.shape()[0]; ++expert)
      for (const std::string& stack : stacks)
        out.push_back(
            {expert_tensor(stack, expert), belay::safetensors::stored_as<typename Parameter::value_type>, shape});
    return out;
  }
};

/// Reads what this rank keeps of every tensor, rounded where the file's are wider. Collective over the mesh.
template <class Mesh, class Model>
void import_weights(const Mesh& mesh, Model& model, const model_import& from) {
  belay::safetensors::file_agreement problems;
  problems.attempt([&] {
    const belay::safetensors::folder in(from.folder(), belay::needed_tensors(model, hugging_face_tensors()));
    check_types(in);
    belay::fill_parameters(model, in, hugging_face_tensors());
  });
  problems.agree(mesh.control());
}

/// Writes the model as `folder` with its config: rank 0 makes the folder, every rank writes its own parts. Collective
/// over the mesh.
template <class T, class Mesh, class Model>
void export_weights(const Mesh& mesh, Model& model, const std::string& folder, const model_config& config,
                    std::size_t sequence) {
  const auto& control = mesh.control();
  const belay::safetensors::file_division files(tensors_of(config, belay::dtype_of<T>),
                                                belay::safetensors::largest_file);
  belay::safetensors::file_agreement problems;
  std::optional<model_export> target;
  problems.attempt([&] {
    if (control.rank() == 0) target.emplace(folder, config, sequence, belay::dtype_of<T>, files);
  });
  problems.agree(control);
  belay::safetensors::writer out(belay::safetensors::written_by(control), target ? target->path() : "", files);
  belay::write_parameters(mesh, model, out, hugging_face_tensors());
  out.commit();
  problems.attempt([&] {
    if (target) target->commit();
  });
  problems.agree(control);
}

}  // namespace train_moe
