// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/library_calls.hpp"

namespace bench {
template subject_maker<belay::bf16> make_subject_of<belay::bf16>;
template subject_maker<belay::fp16> make_subject_of<belay::fp16>;
template subject_maker<belay::fp8_e4m3> make_subject_of<belay::fp8_e4m3>;
}  // namespace bench
