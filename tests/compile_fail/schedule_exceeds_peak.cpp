// expect: keeps more micro-batches between forward and backward than the limit
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/rules.hpp"

#ifdef BELAY_BROKEN
static constexpr auto table = belay::schedule::gpipe<4, 16>();
#else
static constexpr auto table = belay::schedule::one_f_one_b<4, 16>();
#endif
static_assert(belay::require_proven<table, 4>());
