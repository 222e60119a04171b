// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// broadcast: every rank's buffer becomes the root's.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; `inout` has `print.bytes()`.
BELAY_DECL void broadcast_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                        const where& at);

template <transferable T>
void broadcast(collective_context call, std::span<T> inout, int root, const where& at) {
  check_root(root, call.size(), "broadcast", at);
  check_bytes(inout, "broadcast", at);
  const fingerprint print{operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0};
  const std::size_t bytes = inout.size_bytes();
  const algorithm how = call.endpoint->eager_algorithm(bytes, sizeof(T), eager_traffic::root);
  if (how == algorithm::automatic) return broadcast_by_rendezvous(call, print, bytes_of(inout), at);
  call.endpoint->eager_round(how, print, inout.data(), call.rank() == root ? bytes : 0, call.limit, at);
  copy_elements(bytes_of(inout), call.endpoint->payloads()(root), bytes);
}

inline void run_collective(operation_tag<operation::broadcast>, const auto&... all) { broadcast(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/broadcast.ipp"  // IWYU pragma: export
#endif
