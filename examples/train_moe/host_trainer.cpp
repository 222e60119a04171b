// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/host_trainer.hpp"

namespace train_moe {

template rank_rehearsal rehearse<float>(const options&, int, std::size_t);
template class trainer<float, belay::host::rank>;
template evaluation evaluate<float>(host_machine<float>&, std::span<const std::int32_t>, std::size_t);
template std::string sample<float>(host_machine<float>&, std::string_view, std::size_t, std::size_t, double,
                                   std::uint64_t);

}  // namespace train_moe
