// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a scenario's body on ranks of the host.
#pragma once

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"

namespace failures {

struct on_host {
  int ranks = 1;
  belay::stream_choice streams = {};
  void operator()(const auto& body, belay::launch_options options = {}) const {
    options.streams = streams;
    belay::launch<belay::host_kit<>>(belay::host::world{ranks}, body, options);
  }
};

}  // namespace failures
