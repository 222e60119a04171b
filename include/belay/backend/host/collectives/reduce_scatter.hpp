// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// reduce_scatter and reduce_scatter_v: every rank gets its part of the reduction of all ranks' buffers.
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

/// Of what fits into no eager round; `out` has `print.bytes()`, `in` as much for each rank.
BELAY_DECL void reduce_scatter_by_rendezvous(collective_context call, const fingerprint& print, reduction_kernel kernel,
                                             const std::byte* in, std::byte* out, const where& at);
BELAY_DECL void reduce_scatter_v_by_rendezvous(collective_context call, const fingerprint& print,
                                               reduction_kernel kernel, std::byte* inout,
                                               std::span<const std::size_t> counts, const where& at);

template <reducible T, reduction_tag Op>
void reduce_scatter(collective_context call, std::span<const T> in, std::span<T> out, Op, const where& at) {
  const std::size_t own = out.size() * index_of(call.rank());
  check_length(in.size(), all_parts(out.size(), call.size()), "reduce_scatter: the input", at);
  check_overlap(out, in, in.data() + own, "reduce_scatter", at);
  const fingerprint print{operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0};
  const algorithm how = call.endpoint->eager_algorithm(in.size_bytes(), sizeof(T), eager_traffic::all_in_parts);
  if (how == algorithm::automatic) {
    return reduce_scatter_by_rendezvous(call, print, reduce_arrays<Op, T>, bytes_of(in), bytes_of(out), at);
  }
  call.endpoint->eager_round(how, print, in.data(), in.size_bytes(), call.limit, at);
  reduce_payloads<Op, T>(*call.endpoint, call.endpoint->payloads(), own, out);
}

template <reducible T, reduction_tag Op>
void reduce_scatter_v(collective_context call, std::span<T> inout, std::span<const std::size_t> counts, Op,
                      const where& at) {
  check_division(inout, counts, call.size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
  const fingerprint print{
      operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape_of(counts)};
  reduce_scatter_v_by_rendezvous(call, print, reduce_arrays<Op, T>, bytes_of(inout), counts, at);
}

inline void run_collective(operation_tag<operation::reduce_scatter>, const auto&... all) { reduce_scatter(all...); }
inline void run_collective(operation_tag<operation::reduce_scatter_v>, const auto&... all) { reduce_scatter_v(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/reduce_scatter.ipp"  // IWYU pragma: export
#endif
