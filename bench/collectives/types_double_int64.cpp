// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/library_calls.hpp"

namespace bench {
template subject_maker<double> make_subject_of<double>;
template subject_maker<std::int64_t> make_subject_of<std::int64_t>;
}  // namespace bench
