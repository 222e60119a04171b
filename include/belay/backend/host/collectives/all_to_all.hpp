// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// all_to_all and all_to_all_v: every rank has another part for every rank.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_to_all_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
/// Buffers have as many elements as their counts are together.
BELAY_DECL void all_to_all_v_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                           std::span<const std::size_t> send_counts, std::byte* out,
                                           std::span<const std::size_t> receive_counts, const where& at);

template <transferable T>
void all_to_all(collective_context call, std::span<const T> in, std::span<T> out, const where& at) {
  check_all_to_all(in, out, call.size(), at);
  const std::size_t bytes = in.size_bytes();
  const fingerprint print{operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  const algorithm how = call.endpoint->eager_algorithm(bytes, sizeof(T), eager_traffic::all_in_parts);
  if (how == algorithm::automatic) return all_to_all_by_rendezvous(call, print, bytes_of(in), bytes_of(out), at);
  call.endpoint->eager_round(how, print, in.data(), bytes, call.limit, at);
  const peer_payloads payloads = call.endpoint->payloads();
  const std::size_t each = share_of(bytes, call.size()), first = each * index_of(call.rank());
  std::byte* to = bytes_of(out);
  for (int q = 0; q < call.size(); ++q, to += each) copy_elements(to, payloads(q) + first, each);
}

template <transferable T>
void all_to_all_v(collective_context call, std::span<const T> in, std::span<const std::size_t> send_counts,
                  std::span<T> out, std::span<const std::size_t> receive_counts, const where& at) {
  check_all_to_all_v(in, send_counts, out, receive_counts, call.size(), at);
  const fingerprint print{operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0};
  all_to_all_v_by_rendezvous(call, print, bytes_of(in), send_counts, bytes_of(out), receive_counts, at);
}

inline void run_collective(operation_tag<operation::all_to_all>, const auto&... all) { all_to_all(all...); }
inline void run_collective(operation_tag<operation::all_to_all_v>, const auto&... all) { all_to_all_v(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/all_to_all.ipp"  // IWYU pragma: export
#endif
