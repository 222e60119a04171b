// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The sentence of a product whose shapes do not fit.
#pragma once

#include <string>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/step/arithmetic.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void refused_product::refuse(where at) const {
  const auto words = [](const operand_shape& x) {
    return "[" + std::to_string(x.rows) + ", " + std::to_string(x.columns) + "]" +
           (x.as == reading::as_is ? "" : " transposed");
  };
  throw usage_error("layer " + std::to_string(layer_index) + " '" + printable(layer) + "', " + what + ": " + words(c) +
                        " cannot be " + words(a) + " times " + words(b),
                    at);
}

}  // namespace belay::inline BELAY_ABI
