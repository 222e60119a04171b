// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The same layers over the blocked loop, whatever the build found.
#undef BELAY_HAS_CBLAS
#define BELAY_HAS_CBLAS 0
#include "gradients.cpp"
