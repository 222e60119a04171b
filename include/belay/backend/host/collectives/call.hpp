// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of this backend: how one that fits into an eager round is done at once, and what the others are.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/collectives/reduction_kernel.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Runs a collective that was checked, all but an exchange. Throws comm_error.
BELAY_DECL void run_collective(collective_context call, const op_call& what);

inline void barrier(collective_context call, const where& at) {
  call.endpoint->eager_round(algorithm::flag_line, {operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, 0,
                             call.limit, at);
}
/// Runs an all_reduce that fits into an eager round. A template, so that a benchmark can run it without what makes it
/// safe.
template <class Endpoint>
[[gnu::always_inline]] inline void all_reduce_eagerly(Endpoint& me, world_status::clock::duration limit, algorithm how,
                                                      const op_call& what) {
  me.eager_round(how, what.print(what.out_count), what.in, what.in_bytes(), limit, what.at);
  reduce_payloads(me, *what.arithmetic, me.payloads(), 0, what.out, what.out_count);
}

// Operations that fit into no eager round, each in its own file.

/// Runs an all_reduce that fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_reduce_by_rendezvous(collective_context call, const fingerprint& print,
                                         const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                         const where& at);
/// Runs a reduce_scatter that fits into no eager round; `out` has `print.bytes()`, `in` as much for each rank.
BELAY_DECL void reduce_scatter_by_rendezvous(collective_context call, const fingerprint& print,
                                             const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                             const where& at);
BELAY_DECL void reduce_scatter_v_by_rendezvous(collective_context call, const fingerprint& print,
                                               const reduction_arithmetic& how, std::byte* inout,
                                               std::span<const std::size_t> counts, const where& at);
/// Runs an all_gather that fits into no eager round; `in` has `print.bytes()`, `out` as much for each rank.
BELAY_DECL void all_gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
BELAY_DECL void all_gather_v_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                           std::span<const std::size_t> counts, const where& at);
/// Runs an all_to_all that fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_to_all_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
/// Runs an all_to_all_v that fits into no eager round; buffers have as many elements as their counts are together.
BELAY_DECL void all_to_all_v_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                           std::span<const std::size_t> send_counts, std::byte* out,
                                           std::span<const std::size_t> receive_counts, const where& at);
/// Runs a broadcast that fits into no eager round; `inout` has `print.bytes()`.
BELAY_DECL void broadcast_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                        const where& at);
/// Runs a reduce that fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void reduce_by_rendezvous(collective_context call, const fingerprint& print, const reduction_arithmetic& how,
                                     const std::byte* in, std::byte* out, const where& at);
/// Runs a gather that fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                     std::byte* out, const where& at);
/// Runs a scatter that fits into no eager round; `out` has `print.bytes()`, and only the root has an `in`.
BELAY_DECL void scatter_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                      std::byte* out, const where& at);

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/all_gather.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_reduce.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_to_all.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/broadcast.ipp"       // IWYU pragma: export
#include "belay/backend/host/collectives/call.ipp"            // IWYU pragma: export
#include "belay/backend/host/collectives/gather.ipp"          // IWYU pragma: export
#include "belay/backend/host/collectives/reduce.ipp"          // IWYU pragma: export
#include "belay/backend/host/collectives/reduce_scatter.ipp"  // IWYU pragma: export
#include "belay/backend/host/collectives/scatter.ipp"         // IWYU pragma: export
#endif
