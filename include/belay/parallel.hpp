// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the parallel room: sharded parameters and tensors, gradient buckets, pipelines and expert dispatch.
#pragma once

#include "belay/parallel/bucket.hpp"          // IWYU pragma: export
#include "belay/parallel/divisor.hpp"         // IWYU pragma: export
#include "belay/parallel/experts.hpp"         // IWYU pragma: export
#include "belay/parallel/local_box.hpp"       // IWYU pragma: export
#include "belay/parallel/parameter.hpp"       // IWYU pragma: export
#include "belay/parallel/pipeline.hpp"        // IWYU pragma: export
#include "belay/parallel/pipeline_stage.hpp"  // IWYU pragma: export
#include "belay/parallel/placement.hpp"       // IWYU pragma: export
#include "belay/parallel/precision.hpp"       // IWYU pragma: export
#include "belay/parallel/proof.hpp"           // IWYU pragma: export
#include "belay/parallel/redistribute.hpp"    // IWYU pragma: export
#include "belay/parallel/routing.hpp"         // IWYU pragma: export
#include "belay/parallel/schedule.hpp"        // IWYU pragma: export
#include "belay/parallel/sharded.hpp"         // IWYU pragma: export
#include "belay/parallel/vote.hpp"            // IWYU pragma: export
