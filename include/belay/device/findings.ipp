// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The findings of kernels, in words.
#pragma once

#include "belay/core/printable.hpp"
#include "belay/device/findings.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string text(const kernel::finding& found) {
  const kernel::finding_site& of = found.site;
  std::string out;
  if (of.layer_index != kernel::finding_site::no_layer) out = "layer " + std::to_string(of.layer_index) + " ";
  if (*of.layer != '\0') out += "'" + printable(of.layer) + "' ";
  out += "(micro-batch " + std::to_string(of.micro_batch) + "): ";
  if (found.kind == kernel::finding_kind::index_outside)
    out += "index " + std::to_string(found.value) + " at position " + std::to_string(found.number) + " is not below " +
           std::to_string(found.limit);
  else if (found.kind == kernel::finding_kind::rows_outside)
    out += "the rows of expert " + std::to_string(found.number) + " end at " + std::to_string(found.value) +
           ", after " + std::to_string(found.first) + " and of " + std::to_string(found.limit) +
           ": were they read before they were written?";
  else if (found.kind == kernel::finding_kind::row_not_finite)
    out += "row " + std::to_string(found.number) + " has an infinity or a NaN where it is rounded to 8 bits";
  else
    out += "the loss is not finite";
  return out;
}

}  // namespace belay::inline BELAY_ABI
