// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/library_calls.hpp"

namespace bench {
template subject_maker<float> make_subject_of<float>;
}  // namespace bench
