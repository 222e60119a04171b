// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// all_reduce: every rank gets the reduction of all ranks' buffers.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/collectives/reduction_kernel.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_reduce_by_rendezvous(collective_context call, const fingerprint& print, reduction_kernel kernel,
                                         const std::byte* in, std::byte* out, const where& at);

/// Of what does. A template, so that a benchmark can run it without checks.
template <class Op, class T, class Endpoint>
[[gnu::always_inline]] inline void all_reduce_eagerly(Endpoint& me, world_status::clock::duration limit, algorithm how,
                                                      const fingerprint& print, std::span<const T> in, std::span<T> out,
                                                      const where& at) {
  me.eager_round(how, print, in.data(), in.size_bytes(), limit, at);
  reduce_payloads<Op, T>(me, me.payloads(), 0, out);
}

template <reducible T, reduction_tag Op>
void all_reduce(collective_context call, std::span<const T> in, std::span<T> out, Op, const where& at) {
  check_length(out.size(), in.size(), "all_reduce: the output", at);
  check_overlap(in, out, out.data(), "all_reduce", at);
  const fingerprint print{operation::all_reduce, Op::code, element_code_of<T>(), -1, out.size(), 0};
  const algorithm how = call.endpoint->eager_algorithm(out.size_bytes(), sizeof(T));
  if (how != algorithm::automatic) {
    return all_reduce_eagerly<Op, T>(*call.endpoint, call.limit, how, print, in, out, at);
  }
  all_reduce_by_rendezvous(call, print, reduce_arrays<Op, T>, bytes_of(in), bytes_of(out), at);
}

inline void run_collective(operation_tag<operation::all_reduce>, const auto&... all) { all_reduce(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/all_reduce.ipp"  // IWYU pragma: export
#endif
