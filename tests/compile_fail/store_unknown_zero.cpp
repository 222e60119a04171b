// expect: belay::zero<0> (nothing is divided), <1> (optimizer state), <2> (gradients too) or <3>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/store.hpp"

#ifdef BELAY_BROKEN
constexpr int stage = 4;
#else
constexpr int stage = 3;
#endif

constexpr auto divided = belay::zero<stage>::stage;
