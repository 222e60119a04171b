// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which layer of a model a parameter belongs to: what is divided among ranks is gathered and reduced layer by layer. A
// model that offers its layers (`layers()`, `first()`, `last()`, as for a pipeline stage) says so by what each of them
// lists; a parameter that none of them lists is a layer of its own.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <functional>
#include <map>

#include "belay/core/config.hpp"
#include "belay/parallel/lists_parameters.hpp"

namespace belay::inline BELAY_ABI {

class parameter_layers {
 public:
  template <class Model>
  explicit parameter_layers(Model& model) {
    if constexpr (requires { model.first(); }) {
      if constexpr (requires { model.has_embedding(); }) {
        if (model.has_embedding()) add(model.first());
      } else {
        add(model.first());
      }
    }
    if constexpr (requires { model.layers().begin(); })
      for (auto& layer : model.layers()) add(layer);
    if constexpr (requires { model.last(); }) {
      if constexpr (requires { model.has_head(); }) {
        if (model.has_head()) add(model.last());
      } else {
        add(model.last());
      }
    }
  }

  /// Its number, which no other layer's parameters have.
  template <class Parameter>
  [[nodiscard]] std::size_t of(const Parameter& parameter) const {
    const auto found = layer_of_.find(&parameter);
    return found != layer_of_.end() ? found->second : (layers_ += 1);
  }

 private:
  template <class Layer>
  void add(Layer& layer) {
    ++layers_;
    if constexpr (lists_parameters<Layer>)
      layer.for_each_parameter([this](const auto& parameter) { layer_of_.emplace(&parameter, layers_); });
  }

  std::map<const void*, std::size_t, std::less<>> layer_of_;
  mutable std::size_t layers_ = 0;
};

}  // namespace belay::inline BELAY_ABI
