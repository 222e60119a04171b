// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a group over NCCL queues a call. NCCL compares nothing of what ranks are given.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/backend/cuda/reduced_slots.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// How reductions are added. `any`: as NCCL does, whose order depends on the machine. `fixed_order`: by Belay, in rank
/// order, with the bits of every backend that sums so; each rank then moves and adds what it takes in that order.
enum class sums : std::uint8_t { any, fixed_order };

/// To say so where a world is made: `nccl::world(api, nccl, control, nccl::adds<nccl::sums::any>{})`.
template <sums>
struct adds {};

/// Throws usage_error for what NCCL or a device cannot be asked. Gives the bytes that messages name.
[[nodiscard]] inline std::size_t expect_queueable(const op_call& call, int rank) {
  cuda::expect_device_type(call);
  const auto own = static_cast<std::size_t>(rank);
  if (call.what() == operation::all_to_all_v && call.parts()[own] != call.received_parts()[own])
    throw usage_error("all_to_all_v: rank " + std::to_string(rank) + " of the group sends itself " +
                          std::to_string(call.parts()[own]) + " elements and expects " +
                          std::to_string(call.received_parts()[own]),
                      call.at);
  std::size_t bytes = greater_of(call.in_bytes(), call.out_bytes());
  if (call.what() == operation::gather) bytes = call.in_bytes();
  if (call.what() == operation::scatter) bytes = call.out_bytes();
  return bytes + total_bytes(call.exchanged());
}

/// Queues what was checked: `operations`, or `single_rank_operations` of one rank.
template <sums Sums, class Operations>
void queue_call(const Operations& on, const op_call& call) {
  if constexpr (requires { on.run(call); }) {
    on.run(call);
  } else {
    const bool ordered = Sums == sums::fixed_order || !reduced_by_nccl(static_cast<dtype>(call.type().kind));
    switch (call.what()) {
      case operation::barrier: return on.barrier();
      case operation::all_reduce: return ordered ? on.ordered_all_reduce(call) : on.all_reduce(call);
      case operation::reduce: return ordered ? on.ordered_reduce(call) : on.reduce(call);
      case operation::reduce_scatter: return ordered ? on.ordered_reduce_scatter(call) : on.reduce_scatter(call);
      case operation::reduce_scatter_v: return ordered ? on.ordered_reduce_scatter_v(call) : on.reduce_scatter_v(call);
      case operation::all_gather: return on.all_gather(call);
      case operation::all_gather_v: return on.all_gather_v(call);
      case operation::all_to_all: return on.all_to_all(call);
      case operation::all_to_all_v: return on.all_to_all_v(call);
      case operation::broadcast: return on.broadcast(call);
      case operation::gather: return on.gather(call);
      case operation::scatter: return on.scatter(call);
      case operation::exchange: return on.exchange(call.exchanged());
      case operation::none:
      case operation::make_symmetric: return;
    }
  }
}

}  // namespace belay::inline BELAY_ABI::nccl
