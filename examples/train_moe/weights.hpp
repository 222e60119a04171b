// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Between the parameters of a mesh and the tensors of a file: a dense parameter is a tensor, a stack of experts is
// one tensor for every expert. Each rank reads and writes its own parts only.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/parallel/parameter.hpp"
#include "train_moe/hugging_face.hpp"
#include "train_moe/parameters.hpp"

namespace train_moe {

/// "...experts.w1" and expert 3: "...experts.3.w1.weight".
[[nodiscard]] inline std::string expert_tensor(const std::string& stack, std::size_t expert) {
  const std::size_t dot = stack.rfind('.');
  return stack.substr(0, dot + 1) + std::to_string(expert) + stack.substr(dot) + ".weight";
}

/// Calls `visit(tensor name, values, family)` for every tensor that the machine's rank holds a copy of.
template <class Machine, class Visit>
void each_tensor(Machine& machine, Visit&& visit) {
  machine.model().for_each_parameter([&](auto& parameter) {
    const std::size_t size = parameter.local_size();
    if (family_of(parameter) == dense_family) {
      visit(parameter.name(), std::span(parameter.value(), size), dense_family);
      return;
    }
    const auto part = parameter.part();
    const std::size_t each = size / part.count;
    for (std::size_t e = 0; e < part.count; ++e) {
      visit(expert_tensor(parameter.name(), part.first + e), std::span(parameter.value() + e * each, each),
            expert_family);
    }
  });
}

/// Reads every tensor this rank holds.
template <class Machine>
void import_weights(Machine& machine, const model_import& from) {
  each_tensor(machine, [&](const std::string& name, auto values, family) { from.tensors().read(name, 0, values); });
}

/// Writes what no rank before this one writes: dense tensors come from the first replica, experts from the first
/// data rank.
template <class Machine>
void export_weights(Machine& machine, model_export& to) {
  const auto& place = machine.mesh().coordinate();
  if (place.data != 0) return;
  each_tensor(machine, [&]<class T>(const std::string& name, std::span<T> values, family of) {
    if (of == expert_family || place.expert == 0) to.tensors().write(name, 0, std::span<const T>(values));
  });
}

}  // namespace train_moe
