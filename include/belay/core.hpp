// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the core room: the types that all other rooms use.
#pragma once

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/missing_folder.hpp"
#include "belay/core/obligation.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
