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

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// A visitor for concepts.
struct any_visitor {
  /// Takes any parameter.
  template <class Parameter>
  void operator()(Parameter&) const noexcept {}
};
template <class M>
concept lists_parameters = requires(M& model, any_visitor visit) {
  model.for_each_parameter(visit);
};
/// Whether a model lists its parameters, as a value, for a message without the list of what is missing.
template <class M>
inline constexpr bool is_listing_parameters = lists_parameters<M>;

}  // namespace belay::inline BELAY_ABI
