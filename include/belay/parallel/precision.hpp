// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The element types of a store: what its parameters, gradients, master copies and moments are kept in, and what goes
// over the wire.
//
//   belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::precision<double>{}};
#pragma once

#include <concepts>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// By default everything is of the parameters' type. Master copies and moments are the optimizer's.
template <class Parameters = float, class Gradients = Parameters, class Master = Gradients, class Moments = Master,
          class Wire = Gradients>
struct precision {
  using parameters = Parameters;
  using gradients = Gradients;
  using master = Master;
  using moments = Moments;
  using wire = Wire;

  static_assert(std::same_as<Parameters, float> || std::same_as<Parameters, double>,
                "belay::precision: parameters are float or double");
  static_assert(std::same_as<Parameters, Gradients> && std::same_as<Parameters, Master> &&
                    std::same_as<Parameters, Moments> && std::same_as<Parameters, Wire>,
                "belay::precision: gradients, master copies, moments and wire are of the parameters' type");
};

template <class P>
inline constexpr bool is_precision = false;
template <class... Types>
inline constexpr bool is_precision<precision<Types...>> = true;

}  // namespace belay::inline BELAY_ABI
