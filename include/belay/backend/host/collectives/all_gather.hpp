// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// all_gather and all_gather_v: every rank's part goes to every rank.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of what fits into no eager round; `in` has `print.bytes()`.
BELAY_DECL void all_gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
BELAY_DECL void all_gather_v_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                           std::span<const std::size_t> counts, const where& at);

template <transferable T>
void all_gather(collective_context call, std::span<const T> in, std::span<T> out, const where& at) {
  const std::size_t own = in.size() * index_of(call.rank());
  check_length(out.size(), all_parts(in.size(), call.size()), "all_gather: the output", at);
  check_overlap(in, out, out.data() + own, "all_gather", at);
  const fingerprint print{operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  const std::size_t each = in.size_bytes();
  const algorithm how = call.endpoint->eager_algorithm(each, sizeof(T));
  if (how == algorithm::automatic) return all_gather_by_rendezvous(call, print, bytes_of(in), bytes_of(out), at);
  call.endpoint->eager_round(how, print, in.data(), each, call.limit, at);
  const peer_payloads payloads = call.endpoint->payloads();
  std::byte* to = bytes_of(out);
  for (int q = 0; q < call.size(); ++q, to += each) copy_elements(to, payloads(q), each);
}

template <transferable T>
void all_gather_v(collective_context call, std::span<T> inout, std::span<const std::size_t> counts, const where& at) {
  check_division(inout, counts, call.size(), "all_gather_v", "all_gather_v: the buffer", at);
  const fingerprint print{operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(),
                          shape_of(counts)};
  all_gather_v_by_rendezvous(call, print, bytes_of(inout), counts, at);
}

inline void run_collective(operation_tag<operation::all_gather>, const auto&... all) { all_gather(all...); }
inline void run_collective(operation_tag<operation::all_gather_v>, const auto&... all) { all_gather_v(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/all_gather.ipp"  // IWYU pragma: export
#endif
