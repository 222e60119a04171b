// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The element types of a store: what its parameters, gradients, master copies and moments are kept in, and what goes
// over the wire.
//
//   belay::parameter_store store{run, mesh, net, belay::zero<1>{}, belay::precision<belay::bf16>{}};
#pragma once

#include <concepts>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI {

/// Of float or double parameters everything is of their type. Of bf16 parameters gradients, master copies and moments
/// are float, and the wire is bf16: every rank rounds what it sends once, and whoever owns a gradient adds in float, in
/// the order of the ranks. Master copies and moments are the optimizer's.
template <class Parameters = float, class Gradients = compute_type_t<Parameters>, class Master = Gradients,
          class Moments = Master, class Wire = Parameters>
struct precision {
  using parameters = Parameters;
  using gradients = Gradients;
  using master = Master;
  using moments = Moments;
  using wire = Wire;

  static_assert(std::same_as<Parameters, float> || std::same_as<Parameters, double> || std::same_as<Parameters, bf16>,
                "belay::precision: parameters are float, double or bf16");
  static_assert(std::same_as<Gradients, compute_type_t<Parameters>> && std::same_as<Gradients, Master> &&
                    std::same_as<Gradients, Moments> && std::same_as<Parameters, Wire>,
                "belay::precision: gradients, master copies and moments are of the parameters' type, or float where "
                "those are bf16; the wire is of the parameters' type");
};

/// Whether a type is a `belay::precision`.
template <class P>
inline constexpr bool is_precision = false;
template <class... Types>
inline constexpr bool is_precision<precision<Types...>> = true;

}  // namespace belay::inline BELAY_ABI
