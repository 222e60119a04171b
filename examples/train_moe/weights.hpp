// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parameters of a mesh as tensors of a file: a dense parameter is one tensor, a stack of experts is one tensor for
// each expert and matrix. A rank reads and writes only its own parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "train_moe/hugging_face.hpp"

namespace train_moe {

enum class copies { no, yes };

/// "...experts.w1" and expert 3: "...experts.3.w1.weight".
[[nodiscard]] inline std::string expert_tensor(const std::string& stack, std::size_t expert) {
  const std::size_t dot = stack.rfind('.');
  return stack.substr(0, dot + 1) + std::to_string(expert) + stack.substr(dot) + ".weight";
}

/// Calls `visit(tensor name, values, has copies)` for every tensor that this rank holds; all ranks of an expert group
/// hold a copy of those that have some.
template <class Model, class Visit>
void each_tensor(Model& model, Visit&& visit) {
  model.for_each_parameter([&](auto& parameter) {
    const std::size_t size = parameter.local_size();
    if (!belay::sharded_over<belay::axis::expert>(parameter))
      return visit(parameter.name(), std::span(parameter.value(), size), copies::yes);
    const auto part = parameter.part();
    auto stacks = parameter.spec().joins;
    if (stacks.empty()) stacks.push_back(parameter.name());
    const std::size_t each = size / part.count / stacks.size();
    auto* values = parameter.value();
    for (std::size_t e = 0; e < part.count; ++e)
      for (const std::string& stack : stacks) {
        visit(expert_tensor(stack, part.first + e), std::span(values, each), copies::no);
        values += each;
      }
  });
}

/// Reads every tensor that this rank holds, rounded where the file's are wider.
template <class Model>
void import_weights(Model& model, const model_import& from) {
  each_tensor(model,
              [&](const std::string& name, auto values, copies) { from.tensors().read_converted(name, 0, values); });
}

/// Sends every tensor to rank 0, which writes: dense tensors from the first replica, experts from the first data rank.
/// Collective over the world; `to` is that of rank 0.
template <class T, class Mesh, class Model>
void export_weights(const Mesh& mesh, Model& model, model_export* to) {
  const auto& world = mesh.world();
  const auto& place = mesh.coordinate();
  // A tensor is sent as two lengths, its name and its values. A name of length 0 ends the tensors of a rank.
  const auto send = [&](const std::string& name, std::span<const T> values) {
    const std::uint64_t lengths[] = {name.size(), values.size()};
    world.send(0, std::span<const std::uint64_t>(lengths));
    if (name.empty()) return;
    world.send(0, std::span<const char>(name));
    world.send(0, values);
  };
  const auto each_own = [&](auto visit) {
    if (place.data != 0) return;
    each_tensor(model, [&](const std::string& name, std::span<T> values, copies has) {
      if (has == copies::no || place.expert == 0) visit(name, std::span<const T>(values));
    });
  };
  if (world.rank() != 0) {
    each_own(send);
    send("", {});
    return;
  }
  each_own([&](const std::string& name, std::span<const T> values) { to->tensors().write(name, 0, values); });
  std::string name;
  std::vector<T> values;
  for (int from = 1; from < world.size(); ++from) {
    while (true) {
      std::uint64_t lengths[2] = {};
      world.receive(from, std::span<std::uint64_t>(lengths));
      if (lengths[0] == 0) break;
      name.resize(lengths[0]);
      values.resize(lengths[1]);
      world.receive(from, std::span<char>(name));
      world.receive(from, std::span<T>(values));
      to->tensors().write(name, 0, std::span<const T>(values));
    }
  }
}

}  // namespace train_moe
