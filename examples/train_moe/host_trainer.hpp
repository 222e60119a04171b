// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks of the host backend. In float it is compiled once, in host_trainer.cpp, for the program and
// for the tests of whole trainings. A test that needs double compiles its own.
#pragma once

#include "belay/backend/host.hpp"
#include "train_moe/evaluate.hpp"
#include "train_moe/rehearse.hpp"
#include "train_moe/trainer.hpp"

namespace train_moe {

template <class T>
using host_trainer = trainer<T, belay::host::rank>;
template <class T>
using host_machine = typename host_trainer<T>::machine_type;

extern template rank_rehearsal rehearse<float>(const options&, int, std::size_t);
extern template class trainer<float, belay::host::rank>;
extern template evaluation evaluate<float>(host_machine<float>&, std::span<const std::int32_t>, std::size_t);
extern template std::string sample<float>(host_machine<float>&, std::string_view, std::size_t, std::size_t, double,
                                          std::uint64_t);

}  // namespace train_moe
