// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/library_calls.hpp"

namespace bench {
template subject_maker<std::int8_t> make_subject_of<std::int8_t>;
template subject_maker<std::uint8_t> make_subject_of<std::uint8_t>;
template subject_maker<std::int32_t> make_subject_of<std::int32_t>;
}  // namespace bench
