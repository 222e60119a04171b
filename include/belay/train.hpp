// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the train room: what a training run needs around the step. Optimizer, gradient norm, plan and checkpoint
// files.
#pragma once

#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/safetensors.hpp"
