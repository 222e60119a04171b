// expect: only a trainable parameter
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/bucket.hpp"

void collect(belay::parameter<float>& learning, belay::parameter<float, belay::replicate, belay::frozen>& base) {
#ifdef BELAY_BROKEN
  static_cast<void>(belay::bucket_member<float>{base, 0});
#else
  static_cast<void>(base.value());
#endif
  static_cast<void>(belay::bucket_member<float>{learning, 0});
}
