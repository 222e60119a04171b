// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The errors of a backward that has left parameters untouched, and of stores of handles.
#pragma once

#include "belay/step/owed.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void handle_refusals::no_slot(std::size_t slot_count, std::size_t index, where at) {
  throw usage_error(
      "a handle store of " + std::to_string(slot_count) + " slots was asked for slot " + std::to_string(index), at);
}

BELAY_DECL void handle_refusals::empty(std::size_t index, where at) {
  throw usage_error("slot " + std::to_string(index) + " of a handle store holds no handle", at);
}

BELAY_DECL void handle_refusals::owes(std::size_t index, const invocation* held, where at) {
  std::string text = "slot " + std::to_string(index) + " of a handle store holds a handle that still owes";
  if (held != nullptr)
    text += ": that of layer '" + printable(held->layer) + "' (micro-batch " + std::to_string(held->micro_batch) +
            ") opened at " + held->at.text();
  throw usage_error(text + "; take it first", at);
}

BELAY_DECL void owed::expect_added(where at) const {
  bool known = false;
  for (std::size_t i = 0; i < count_; ++i) {
    if (before_[i] == 0) continue;
    if (targets_[i]->content() != before_[i]) return;
    known = true;
  }
  if (known) refuse_untouched(at);
}

BELAY_DECL void owed::refuse_untouched(where at) const {
  std::string names;
  for (std::size_t i = 0; i < count_; ++i)
    names += (i == 0 ? " " : ", ") + printable(std::string(targets_[i]->parameter_name()));
  throw usage_error("the owed backward of layer " + std::to_string(call_.layer_index) + " '" + printable(call_.layer) +
                        "' (micro-batch " + std::to_string(call_.micro_batch) + ") opened at " + call_.at.text() +
                        " is discharged, and nothing was added since to the gradient of" + names +
                        ": discharge after the backward, or std::move(owed).backward(f), which runs it, also where "
                        "it adds nothing",
                    at);
}

}  // namespace belay::inline BELAY_ABI
