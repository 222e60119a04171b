// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a call of a layer says where it is refused, or fails.
#pragma once

#include "belay/step/frame.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void invocation::refuse_output(invocation call, const char* when, const char* file, int line) {
  throw usage_error("the output of layer " + std::to_string(call.layer_index) + " '" + printable(call.layer) +
                        "' (micro-batch " + std::to_string(call.micro_batch) + ") opened at " + call.at.text() +
                        " is asked for " + when,
                    {file, "", line});
}

BELAY_DECL void invocation::rethrow(const char* what) const {
  rethrow_from("layer " + std::to_string(layer_index) + " '" + layer + "' (micro-batch " + std::to_string(micro_batch) +
                   "), " + what,
               at);
}

}  // namespace belay::inline BELAY_ABI
