// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the step room: the lifetimes of one step.
#pragma once

#include "belay/step/commit.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/recompute.hpp"
#include "belay/step/rehearsal_watch.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/step.hpp"
#include "belay/step/tape.hpp"
