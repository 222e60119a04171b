// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of a tensor axis must agree on, compared once: the list of parameters, and the first values of those
// that the axis does not cut. Otherwise copies drift apart, and the loss is merely worse.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/rank_comparison.hpp"

namespace belay::inline BELAY_ABI {

/// The parameters of one rank of a tensor axis.
template <class T>
class tensor_copies {
 public:
  void add(const parameter_base<T>& parameter) {
    parameters_.push_back(&parameter);
    kinds_.push_back(content_hash().add_text(parameter.name()).add(parameter.global_size()).value());
    // Of what is cut or divided each rank has others.
    const bool whole = !parameter.cut_directions().has(axis::tensor) && !parameter.divided();
    content_hash values;
    if (whole)
      parameter.each_kept(
          [&](std::size_t, std::span<const T> kept) { values.add_bytes(kept.data(), kept.size_bytes()); });
    values_.push_back(whole ? values.value() : rank_comparison::abstains);
  }

  /// Throws usage_error on all ranks of `along`, a tensor axis, where they differ. Collective.
  template <can_all_gather<std::uint64_t> Group>
  void expect_equal(const Group& along, where at) const {
    rank_comparison compared;
    const std::uint64_t count[] = {parameters_.size()};
    if (compared.differ(along, count, at))
      throw usage_error(
          "along the tensor axis ranks list different numbers of parameters (" + compared.text(along) + ")", at);
    if (compared.differ(along, kinds_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis list different parameters: their number " +
                            std::to_string(compared.first()) + " is " + name_of(compared) + " here",
                        at);
    if (compared.differ(along, values_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis begin with different values of parameter " +
                            name_of(compared) +
                            ", which it does not cut: initialise it with one seed, or fill it from "
                            "one source",
                        at);
  }

 private:
  [[nodiscard]] std::string name_of(const rank_comparison& compared) const {
    return printable(parameters_[compared.first()]->name());
  }

  std::vector<const parameter_base<T>*> parameters_;
  std::vector<std::uint64_t> kinds_, values_;
};

}  // namespace belay::inline BELAY_ABI
