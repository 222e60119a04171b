// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// scatter: every rank gets its part of the root's buffer.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; `out` has `print.bytes()`, and only the root has an `in`.
BELAY_DECL void scatter_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                      std::byte* out, const where& at);

template <transferable T>
void scatter(collective_context call, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, call.size(), "scatter", at);
  check_bytes(out, "scatter", at);
  const bool is_root = call.rank() == root;
  if (is_root) {  // the others have no input
    check_length(in.size(), all_parts(out.size(), call.size()), "scatter: the root's input", at);
    check_overlap(out, in, in.data() + out.size() * index_of(root), "scatter", at);
  }
  const fingerprint print{operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0};
  const std::size_t each = out.size_bytes(), all = each * index_of(call.size());
  const algorithm how = call.endpoint->eager_algorithm(all, sizeof(T), eager_traffic::root);
  if (how == algorithm::automatic) {
    return scatter_by_rendezvous(call, print, is_root ? bytes_of(in) : nullptr, bytes_of(out), at);
  }
  call.endpoint->eager_round(how, print, in.data(), is_root ? all : 0, call.limit, at);
  copy_elements(bytes_of(out), call.endpoint->payloads()(root) + each * index_of(call.rank()), each);
}

inline void run_collective(operation_tag<operation::scatter>, const auto&... all) { scatter(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/scatter.ipp"  // IWYU pragma: export
#endif
