// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Layers whose parameters are divided among ranks (ZeRO-3), and gathered while a call of theirs runs.
//
//   belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
//   belay::gathers block{net.layers[0], store};           // a layer
//   belay::gathering_network whole{net, store};           // a network for a pipeline stage
#pragma once

#include "belay/parallel/gathers/gathered_bucket.hpp"    // IWYU pragma: export
#include "belay/parallel/gathers/layer.hpp"              // IWYU pragma: export
#include "belay/parallel/gathers/network.hpp"            // IWYU pragma: export
#include "belay/parallel/gathers/order.hpp"              // IWYU pragma: export
#include "belay/parallel/gathers/parameter_gathers.hpp"  // IWYU pragma: export
