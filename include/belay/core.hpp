// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the core room: the types that all other rooms use.
#pragma once

#include "belay/core/box.hpp"           // IWYU pragma: export
#include "belay/core/checked_size.hpp"  // IWYU pragma: export
#include "belay/core/config.hpp"        // IWYU pragma: export
#include "belay/core/dtype.hpp"         // IWYU pragma: export
#include "belay/core/error.hpp"         // IWYU pragma: export
#include "belay/core/finite.hpp"        // IWYU pragma: export
#include "belay/core/ledger.hpp"        // IWYU pragma: export
#include "belay/core/operand.hpp"       // IWYU pragma: export
#include "belay/core/policies.hpp"      // IWYU pragma: export
#include "belay/core/span_log.hpp"      // IWYU pragma: export
#include "belay/core/view.hpp"          // IWYU pragma: export
#include "belay/core/where.hpp"         // IWYU pragma: export
#include "belay/core/wire_format.hpp"   // IWYU pragma: export
