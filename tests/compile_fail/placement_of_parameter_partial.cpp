// expect: a parameter cannot be partial
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/reduction.hpp"
#include "belay/parallel/parameter.hpp"

#ifdef BELAY_BROKEN
float read(const belay::parameter<float, belay::partial<belay::sum>>& p) { return *p.value(); }
#else
float read(const belay::parameter<float, belay::replicate>& p) { return *p.value(); }
#endif
