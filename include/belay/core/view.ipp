// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Shapes in words.
#pragma once

#include <string>

#include "belay/core/view.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string shape_text(std::span<const std::size_t> shape) {
  std::string out;
  for (std::size_t extent : shape) {
    if (!out.empty()) out += 'x';
    out += std::to_string(extent);
  }
  return out;
}

[[gnu::cold]] BELAY_DECL void refuse_tensor(std::span<const std::size_t> shape, std::size_t element_bytes,
                                            function_ref<std::string()> owner, const where& at) {
  throw size_error(owner() + ": " + shape_text(shape) + " elements of " + std::to_string(element_bytes) + " bytes are",
                   at);
}

}  // namespace belay::inline BELAY_ABI
