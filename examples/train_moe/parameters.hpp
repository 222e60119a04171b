// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model's parameters for the optimizer: the ranks that replicate each of them (its family), and its position in the
// list of the whole model.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "belay/parallel/bucket.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/train/clip.hpp"
#include "train_moe/machine.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// Dense parameters are replicated over data x expert, experts over data.
enum family : std::size_t { dense_family, expert_family, family_count };

template <class Parameter>
[[nodiscard]] constexpr family family_of(const Parameter& parameter) noexcept {
  return belay::sharded_over<belay::axis::expert>(parameter) ? expert_family : dense_family;
}

[[nodiscard]] inline std::array<belay::family_shape, family_count> family_shapes(const options& run) {
  const auto data = static_cast<std::size_t>(run.mesh.data);
  const auto expert = static_cast<std::size_t>(run.mesh.expert);
  return {{{data * expert, run.zero}, {data, run.zero}}};
}

template <class Mesh>
[[nodiscard]] std::array<std::size_t, family_count> ranks_in_families(const Mesh& mesh) {
  return {static_cast<std::size_t>(mesh.replicas().rank()), static_cast<std::size_t>(mesh.data().rank())};
}

template <class Mesh>
[[nodiscard]] auto families_of(const options& run, const Mesh& mesh) {
  using group = typename Mesh::group_type;
  return std::vector<belay::bucket_family<group>>{{mesh.replicas(), run.zero}, {mesh.data(), run.zero}};
}

/// The parameters of this rank's part of the model, in model order.
template <class T, class Model>
[[nodiscard]] std::vector<belay::bucket_member<T>> bucket_members(Model& model) {
  std::vector<belay::bucket_member<T>> members;
  model.for_each_parameter([&](auto& parameter) { members.emplace_back(parameter, family_of(parameter)); });
  return members;
}

/// Calls `visit(parameter)` for every parameter of the whole model in its order, on a description of the model
/// that has no memory: expert parameters are whole.
template <class T, class Visit>
void each_parameter_of_model(const options& run, Visit&& visit) {
  struct nothing {};
  nothing exchange;
  model::mixtral<T, nothing> whole{run.model, model::model_part::whole(run.model), {0, run.model.experts}, exchange};
  whole.for_each_parameter(visit);
}

/// The table of the gradient norm: every parameter of the whole model once, experts in one part a rank.
template <class T>
[[nodiscard]] belay::norm_table make_norm_table(const options& run) {
  belay::norm_table table;
  const auto parts = static_cast<std::size_t>(run.mesh.expert);
  each_parameter_of_model<T>(run, [&](auto& parameter) {
    const std::size_t elements = parameter.global_size();
    if (family_of(parameter) == expert_family) {
      const std::vector<std::size_t> sizes(parts, elements / parts);
      static_cast<void>(table.add(sizes));
    } else {
      static_cast<void>(table.add(elements));
    }
  });
  return table;
}

/// The places of this rank's parameters in that table.
template <class T, class Machine>
[[nodiscard]] std::vector<belay::norm_place> norm_places(Machine& machine) {
  std::vector<std::string> names;
  each_parameter_of_model<T>(machine.run(), [&](auto& parameter) { names.push_back(parameter.name()); });
  std::vector<belay::norm_place> places;
  machine.model().for_each_parameter([&](auto& parameter) {
    belay::norm_place place;
    while (names[place.parameter] != parameter.name()) ++place.parameter;
    if (family_of(parameter) == expert_family) place.part = static_cast<std::size_t>(machine.mesh().expert().rank());
    places.push_back(place);
  });
  return places;
}

/// Bytes of one rank's tokens, or of its targets.
[[nodiscard]] inline std::size_t batch_bytes(const options& run) {
  const batch_shape shape(run);
  const belay::extents<3> tokens{shape.micro_batches, shape.sequences, shape.length};
  return belay::leased_size(belay::tensor_bytes<std::int32_t>(tokens, [] { return std::string("a batch"); }, {}));
}

}  // namespace train_moe
