// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include "belay/core/error.hpp"

namespace train_moe {

/// A program was built without the trainer that its flags ask for.
class missing_trainer final : public belay::input_error {
 public:
  /// `flag` asks for the trainer `name`, one of those that BELAY_TRAINERS lists; `built` are those of the program.
  missing_trainer(const std::string& flag, const std::string& name, const std::string& built)
      : input_error(flag + ": this program was built without the trainer " + name + "; examples/run " + flag +
                    " builds it, and so does -DBELAY_TRAINERS=\"" + built + ";" + name + "\"") {}
};

}  // namespace train_moe
