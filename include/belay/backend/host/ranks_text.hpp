// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks as messages name them, for the headers of this backend.
#pragma once

#include "belay/comm/ranks_text.hpp"  // IWYU pragma: export
