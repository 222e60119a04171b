// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a call of a layer says where it is refused, or fails.
#pragma once

#include <string>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/step/frame.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void invocation::refuse_output(invocation call, const char* when, const char* file, int line) {
  throw usage_error("the output of layer " + std::to_string(call.layer_index) + " '" + printable(call.layer) +
                        "' (micro-batch " + std::to_string(call.micro_batch) + ") opened at " + call.at.text() +
                        " is asked for " + when,
                    {file, "", line});
}

BELAY_DECL void invocation::refuse_unbound(const std::string& parameter, const char* what, bool divided) const {
  const char* const why =
      divided
          ? "and is divided among ranks: wrap the layer in belay::gathers{layer, store}"
          : "and has no memory: it is in no parameter_store and no gradient_buckets, or missing in for_each_parameter";
  throw usage_error("parameter " + parameter + " is " + what + " in layer '" + printable(layer) + "', " + why, at);
}

BELAY_DECL void invocation::refuse_adding(const std::string& parameter) const {
  throw usage_error("parameter " + parameter + " is added to in a forward of layer '" + printable(layer) +
                        "': gradients are added to in its backward",
                    at);
}

BELAY_DECL std::string invocation::owner_text(const char* what) const {
  return std::string(what) + " of layer '" + layer + "' (micro-batch " + std::to_string(micro_batch) + ")";
}

BELAY_DECL void invocation::rethrow(const char* what) const {
  rethrow_from("layer " + std::to_string(layer_index) + " '" + layer + "' (micro-batch " + std::to_string(micro_batch) +
                   "), " + what,
               at);
}

}  // namespace belay::inline BELAY_ABI
