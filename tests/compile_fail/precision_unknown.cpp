// expect: parameters are float, double or bf16
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "support/store.hpp"

#ifdef BELAY_BROKEN
belay::precision<int> types;
#else
belay::precision<double> types;
#endif
