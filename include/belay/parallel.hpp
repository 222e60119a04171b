// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the parallel room: sharded parameters and tensors, gradient buckets, pipelines and expert dispatch.
#pragma once

#include "belay/parallel/bucket.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/redistribute.hpp"
#include "belay/parallel/routing.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/parallel/sharded.hpp"
#include "belay/parallel/vote.hpp"
