// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks of the host backend. It is compiled once for each choice of type and frozen parts, in
// host_trainer*.cpp, for the program and for the tests of whole trainings. A test that needs double compiles its own.
#pragma once

#include "belay/train/host_types.hpp"
#include "train_moe/host_ranks.hpp"
#include "train_moe/rank_session.hpp"

namespace train_moe {

template <class T>
using host_trainer = trainer<T, belay::run>;

extern template class trainer<float, belay::run>;
extern template class trainer<belay::bf16, belay::run>;
extern template class trainer<float, belay::run, model::freezes_attention>;
extern template class trainer<float, belay::run, model::freezes_experts>;
extern template class trainer<float, belay::run, model::freezes_parts>;
extern template void run_rank_as<float>(prepared_run&, belay::rank&, belay::run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, belay::rank&, belay::run&);
extern template void run_rank_as<float, model::freezes_attention>(prepared_run&, belay::rank&, belay::run&);
extern template void run_rank_as<float, model::freezes_experts>(prepared_run&, belay::rank&, belay::run&);
extern template void run_rank_as<float, model::freezes_parts>(prepared_run&, belay::rank&, belay::run&);

}  // namespace train_moe
