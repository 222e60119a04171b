// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How this model makes its parameters: every matrix and the embedding begin as N(0, 0.02) and decay, norms
// begin at one and do not. The names are those of Hugging Face's Mixtral.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/parameter.hpp"

namespace model {

[[nodiscard]] inline belay::parameter_spec matrix_spec(std::string name, belay::parameter_shape shape) {
  return {std::move(name), shape, belay::initial::normal(0.02), belay::weight_decay::yes};
}

/// Matrices of equal shape, one behind the other in every entry of a stack, that keep their names in files and their
/// first values.
[[nodiscard]] inline belay::parameter_spec joined_spec(std::string name, belay::parameter_shape shape,
                                                       std::vector<std::string> joins) {
  belay::parameter_spec spec = matrix_spec(std::move(name), shape);
  spec.joins = std::move(joins);
  return spec;
}

/// A matrix whose rows lie behind those of parameter `follows`, so that both can be multiplied by at once.
[[nodiscard]] inline belay::parameter_spec following_spec(std::string name, belay::parameter_shape shape,
                                                          std::string follows) {
  belay::parameter_spec spec = matrix_spec(std::move(name), shape);
  spec.follows = std::move(follows);
  return spec;
}

[[nodiscard]] inline belay::parameter_spec norm_spec(std::string name, std::size_t width) {
  return {std::move(name), {width}, belay::initial::constant(1), belay::weight_decay::no};
}

}  // namespace model
