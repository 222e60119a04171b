// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parameters of a mesh as tensors of a file: a dense parameter is one tensor, a stack of experts is one tensor for
// each expert and matrix. A rank reads and writes only its own parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "train_moe/hugging_face.hpp"

namespace train_moe {

/// "...experts.w1" and expert 3: "...experts.3.w1.weight".
[[nodiscard]] inline std::string expert_tensor(const std::string& stack, std::size_t expert) {
  const std::size_t dot = stack.rfind('.');
  return stack.substr(0, dot + 1) + std::to_string(expert) + stack.substr(dot) + ".weight";
}

/// Calls `visit(tensor name, first element in it, values)` for the parts of tensors that `values` are: those of
/// `parameter` from element `first` on.
template <class Parameter, class T, class Visit>
void each_tensor(const Parameter& parameter, std::size_t first, std::span<T> values, Visit&& visit) {
  if (!belay::sharded_over<belay::axis::expert>(parameter)) return visit(parameter.name(), first, values);
  auto stacks = parameter.spec().joins;
  if (stacks.empty()) stacks.push_back(parameter.name());
  const std::size_t each = parameter.global_size() / parameter.shape()[0] / stacks.size();
  while (!values.empty()) {
    const std::size_t block = first / each, begin = first % each;
    const std::span<T> part = values.first(std::min(each - begin, values.size()));
    visit(expert_tensor(stacks[block % stacks.size()], block / stacks.size()), begin, part);
    first += part.size();
    values = values.subspan(part.size());
  }
}

/// Reads what this rank keeps of every tensor, rounded where the file's are wider.
template <class Model>
void import_weights(Model& model, const model_import& from) {
  model.for_each_parameter([&]<class Parameter>(Parameter& parameter) {
    parameter.fill([&](std::size_t first, std::span<typename Parameter::value_type> values) {
      each_tensor(parameter, first, values, [&](const std::string& name, std::size_t begin, auto part) {
        from.tensors().read_converted(name, begin, part);
      });
    });
  });
}

/// Sends every tensor to rank 0, which writes: what is whole on several ranks from the first of them, and of what is
/// divided every rank's part. Collective over the world; `to` is that of rank 0.
template <class T, class Mesh, class Model>
void export_weights(const Mesh& mesh, Model& model, model_export* to) {
  const auto& world = mesh.world();
  const auto& place = mesh.coordinate();
  // A part is sent as three numbers, its name and its values. A name of length 0 ends the parts of a rank.
  const auto send = [&](const std::string& name, std::size_t begin, std::span<const T> values) {
    const std::uint64_t numbers[] = {name.size(), begin, values.size()};
    world.send(0, std::span<const std::uint64_t>(numbers));
    if (name.empty()) return;
    world.send(0, std::span<const char>(name));
    world.send(0, values);
  };
  // A piece at a time, so that rank 0 needs room for one piece, whatever the model.
  constexpr std::size_t piece = std::size_t{1} << 20;
  const auto each_own = [&](auto visit) {
    model.for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      const bool first_copy =
          place.data == 0 && (place.expert == 0 || belay::sharded_over<belay::axis::expert>(parameter));
      const bool first_share = place.data < mesh.shape().shards();  // shard groups hold the same shares
      if (parameter.divided() ? !first_share : !first_copy) return;
      const auto by_pieces = [&](const std::string& name, std::size_t begin, std::span<const T> part) {
        for (std::size_t done = 0; done < part.size(); done += piece)
          visit(name, begin + done, part.subspan(done, std::min(piece, part.size() - done)));
      };
      parameter.each_held([&](std::size_t first, auto values) {
        each_tensor(parameter, first, std::span<const T>(values), by_pieces);
      });
    });
  };
  if (world.rank() != 0) {
    each_own(send);
    send("", 0, {});
    return;
  }
  each_own([&](const std::string& name, std::size_t begin, std::span<const T> values) {
    to->tensors().write(name, begin, values);
  });
  std::string name;
  std::vector<T> values;
  for (int from = 1; from < world.size(); ++from) {
    while (true) {
      std::uint64_t numbers[3] = {};
      world.receive(from, std::span<std::uint64_t>(numbers));
      if (numbers[0] == 0) break;
      name.resize(numbers[0]);
      values.resize(numbers[2]);
      world.receive(from, std::span<char>(name));
      world.receive(from, std::span<T>(values));
      to->tensors().write(name, numbers[1], std::span<const T>(values));
    }
  }
}

}  // namespace train_moe
