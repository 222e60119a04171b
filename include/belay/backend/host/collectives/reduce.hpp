// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// reduce: the root gets the reduction of all ranks' buffers.
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

/// Of what fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void reduce_by_rendezvous(collective_context call, const fingerprint& print, reduction_kernel kernel,
                                     const std::byte* in, std::byte* out, const where& at);

template <reducible T, reduction_tag Op>
void reduce(collective_context call, std::span<const T> in, std::span<T> out, Op, int root, const where& at) {
  check_root(root, call.size(), "reduce", at);
  check_bytes(in, "reduce", at);
  const bool is_root = call.rank() == root;
  if (is_root) {  // the others have no output
    check_length(out.size(), in.size(), "reduce: the root's output", at);
    check_overlap(in, out, out.data(), "reduce", at);
  }
  const fingerprint print{operation::reduce, Op::code, element_code_of<T>(), root, in.size(), 0};
  const algorithm how = call.endpoint->eager_algorithm(in.size_bytes(), sizeof(T), eager_traffic::root);
  if (how == algorithm::automatic) {
    return reduce_by_rendezvous(call, print, reduce_arrays<Op, T>, bytes_of(in), is_root ? bytes_of(out) : nullptr, at);
  }
  call.endpoint->eager_round(how, print, in.data(), in.size_bytes(), call.limit, at);
  if (is_root) reduce_payloads<Op, T>(*call.endpoint, call.endpoint->payloads(), 0, out);
}

inline void run_collective(operation_tag<operation::reduce>, const auto&... all) { reduce(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/reduce.ipp"  // IWYU pragma: export
#endif
