// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// gather: the root gets every rank's part.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                     std::byte* out, const where& at);

template <transferable T>
void gather(collective_context call, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, call.size(), "gather", at);
  check_bytes(in, "gather", at);
  const bool is_root = call.rank() == root;
  if (is_root) {  // the others have no output
    check_length(out.size(), all_parts(in.size(), call.size()), "gather: the root's output", at);
    check_overlap(in, out, out.data() + in.size() * index_of(root), "gather", at);
  }
  const fingerprint print{operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0};
  const std::size_t each = in.size_bytes();
  const algorithm how = call.endpoint->eager_algorithm(each, sizeof(T), eager_traffic::root);
  if (how == algorithm::automatic) {
    return gather_by_rendezvous(call, print, bytes_of(in), is_root ? bytes_of(out) : nullptr, at);
  }
  call.endpoint->eager_round(how, print, in.data(), is_root ? 0 : each, call.limit, at);
  const peer_payloads payloads = call.endpoint->payloads();
  std::byte* to = bytes_of(out);
  for (int q = 0; q < call.size() && is_root; ++q, to += each) copy_elements(to, payloads(q), each);
}

inline void run_collective(operation_tag<operation::gather>, const auto&... all) { gather(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/gather.ipp"  // IWYU pragma: export
#endif
