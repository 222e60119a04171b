// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A model, or a layer, lists its parameters: `model.for_each_parameter(visit)` calls `visit(parameter)` for each, in
// model order.
//
//   struct network {
//     linear first{{"first.weight", {32, 16}}}, second{{"second.weight", {4, 32}}};
//     void for_each_parameter(auto&& visit) { visit(first.weight); visit(second.weight); }
//   };
#pragma once

#include <cstddef>
#include <functional>
#include <map>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// A visitor for concepts.
struct any_visitor {
  /// Takes any parameter.
  template <class Parameter>
  void operator()(Parameter&) const noexcept {}
};
template <class M>
concept lists_parameters = requires(M& model, any_visitor visit) { model.for_each_parameter(visit); };
/// Whether a model lists its parameters, as a value, for a message without the list of what is missing.
template <class M>
inline constexpr bool is_listing_parameters = lists_parameters<M>;

/// The model of a rank that holds several stages of a pipeline: it calls `visit(number, part)` for each, by chunk, of
/// which the parts' parameters are the model's, in its order. The norm of gradients adds squares by stage, so that it
/// has the same bits wherever stages lie.
template <class M>
concept lists_stages = lists_parameters<M> && requires(M& model) { model.for_each_stage([](std::size_t, auto&) {}); };

/// Which layer of a model a parameter belongs to: what is divided among ranks is gathered and reduced layer by layer. A
/// model that offers its layers (`layers()`, `first()`, `last()`, as for a pipeline stage) says so by what each of them
/// lists; a parameter that none of them lists is a layer of its own, with those that follow it.
class parameter_layers {
 public:
  /// Asks `model`, or each stage of one that lists them. It may end afterwards.
  template <class Model>
  explicit parameter_layers(Model& model) {
    if constexpr (lists_stages<Model>)
      model.for_each_stage([this](std::size_t, auto& part) { this->add_layers(part); });
    else
      add_layers(model);
  }

  /// Its number, which no other layer's parameters have. Asked in the model's order.
  template <class Parameter>
  [[nodiscard]] std::size_t of(const Parameter& parameter) const {
    const auto found = layer_of_.find(&parameter);
    if (found != layer_of_.end())
      last_ = found->second;
    else if (parameter.spec().follows.empty())
      last_ = ++layers_;
    return last_;
  }

 private:
  template <class Model>
  void add_layers(Model& model) {
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
  template <class Layer>
  void add(Layer& layer) {
    ++layers_;
    if constexpr (lists_parameters<Layer>)
      layer.for_each_parameter([this](const auto& parameter) { layer_of_.emplace(&parameter, layers_); });
  }

  std::map<const void*, std::size_t, std::less<>> layer_of_;
  mutable std::size_t layers_ = 0, last_ = 0;
};

}  // namespace belay::inline BELAY_ABI
