// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What scenarios of failures train on any world: layers of products and kernels, and batches that kernels make in
// memory of the device. Includes no backend.
#pragma once

#include <cstddef>

#include "belay/core/view.hpp"
#include "belay/device/tier.hpp"
#include "unit/train/support/device_trainer.hpp"

namespace failures {

using device_trainer::matrix, device_trainer::rows, device_trainer::width;

/// y = f(x w), of one weight.
using layer = device_trainer::bent<float>;
using two_layers = device_trainer::network<float>;

struct descent {
  float* value;
  const float* gradient;
  BELAY_HD void operator()(std::size_t i) const { value[i] -= 0.1F * gradient[i]; }
};

/// Batches of inputs and targets, the same on all ranks. For kernels alone.
class batches {
 public:
  batches(auto& run, std::size_t count) {
    const auto memory = run.template lease<float>(belay::tier::device, count * elements, "batches");
    first_ = memory.data();
    for (std::size_t i = 0; i < count; ++i)
      run.engine().kit().each(elements, device_trainer::batch_of{first_ + i * elements, i + 1});
  }
  [[nodiscard]] matrix inputs(std::size_t number = 0) const { return {first_ + number * elements, {rows, width}}; }
  [[nodiscard]] matrix targets(std::size_t number = 0) const {
    return {first_ + number * elements + elements / 2, {rows, width}};
  }

 private:
  static constexpr std::size_t elements = 2 * rows * width;
  float* first_;
};

}  // namespace failures
