// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Mixture-of-experts dispatch. A layer routes its tokens, dispatches them, runs its own experts over rows grouped by
// expert, and combines the outputs. The backward does the same in reverse. A layer names no rank: on one rank the same
// code runs without synchronisation.
//
//   auto routed = belay::route<T>(frame, logits, 2);
//   auto sent = exchange.dispatch(frame, x, routed);              // owes a combine
//   frame.run([&] { /* outputs of each expert's rows */ });
//   auto merged = std::move(sent).combine(frame, y);              // owes a backward
//   ...
//   auto back = std::move(merged).backward(frame, dy, dweights);  // owes a finish
//   frame.run([&] { /* row gradients and weight gradients of each expert */ });
//   std::move(back).finish(frame, dx);
//   belay::route_backward(frame, routed, dweights, balance_scale, dlogits);
#pragma once

#include "belay/parallel/experts/core.hpp"         // IWYU pragma: export
#include "belay/parallel/experts/exchange.hpp"     // IWYU pragma: export
#include "belay/parallel/experts/handles.hpp"      // IWYU pragma: export
#include "belay/parallel/experts/layout.hpp"       // IWYU pragma: export
#include "belay/parallel/experts/row_kernels.hpp"  // IWYU pragma: export
#include "belay/parallel/experts/statistics.hpp"   // IWYU pragma: export
#include "belay/parallel/routing.hpp"              // IWYU pragma: export
