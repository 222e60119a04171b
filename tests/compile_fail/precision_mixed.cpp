// expect: gradients, master copies and moments are of the parameters' type
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

#ifdef BELAY_BROKEN
belay::precision<float, double> types;
#else
belay::precision<float, float> types;
#endif
