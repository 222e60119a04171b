// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>

#include "belay/comm/rehearsal.hpp"
#include "belay/train.hpp"

using rank_type = belay::rehearsal::rank;
using run_type = belay::run;
using mesh_type = belay::mesh;
using store_type = belay::parameter_store<run_type>;
using optimizer_type = belay::adamw<float, belay::group>;

struct network {
  belay::parameter<float> weight{"weight", {2, 2}};
  void for_each_parameter(auto&& visit) { visit(weight); }
};
