// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the step room: the lifetimes of one step.
#pragma once

#include "belay/step/arithmetic.hpp"             // IWYU pragma: export
#include "belay/step/commit.hpp"                 // IWYU pragma: export
#include "belay/step/engine.hpp"                 // IWYU pragma: export
#include "belay/step/flow_pair.hpp"              // IWYU pragma: export
#include "belay/step/forward_only.hpp"           // IWYU pragma: export
#include "belay/step/frame.hpp"                  // IWYU pragma: export
#include "belay/step/gradient.hpp"               // IWYU pragma: export
#include "belay/step/handle_store.hpp"           // IWYU pragma: export
#include "belay/step/layer.hpp"                  // IWYU pragma: export
#include "belay/step/observed.hpp"               // IWYU pragma: export
#include "belay/step/offloaded_activations.hpp"  // IWYU pragma: export
#include "belay/step/owed.hpp"                   // IWYU pragma: export
#include "belay/step/participant.hpp"            // IWYU pragma: export
#include "belay/step/phase.hpp"                  // IWYU pragma: export
#include "belay/step/recompute.hpp"              // IWYU pragma: export
#include "belay/step/rehearsal_watch.hpp"        // IWYU pragma: export
#include "belay/step/saved.hpp"                  // IWYU pragma: export
#include "belay/step/step.hpp"                   // IWYU pragma: export
