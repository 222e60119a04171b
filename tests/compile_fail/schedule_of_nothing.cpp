// expect: a schedule needs at least one stage and one micro-batch
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/schedule/rules.hpp"

#ifdef BELAY_BROKEN
static constexpr auto table = belay::schedule::one_f_one_b<0, 4>();
#else
static constexpr auto table = belay::schedule::one_f_one_b<1, 4>();
#endif
