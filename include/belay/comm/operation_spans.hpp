// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Spans of communication: on the rank's thread of those that it calls, in the communication stream of those that it
// starts. All of it is off the path of a call that is not traced.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The spans of a started operation: how long its stream waits for what it comes after, and it itself. Null where they
/// are not traced.
struct operation_spans {
  traced_span* waits = nullptr;
  traced_span* runs = nullptr;
};

/// A number for the group of `members`, equal on all its ranks.
[[nodiscard]] BELAY_DECL std::uint64_t group_key(std::span<const int> members) noexcept;

/// A span of an operation of the ranks `members` of the world, and of what `transfers` send and receive.
[[nodiscard, gnu::cold]] BELAY_DECL traced_span* add_operation(span_log& to, span_lane lane, operation what,
                                                               std::span<const int> members, const buffer_use& buffers,
                                                               std::span<const p2p> transfers, const where& at);

/// The spans of an operation that is started by the ranks `members` of the world: how long its stream waits for what it
/// comes after, and it itself, with what `transfers` send and receive.
[[nodiscard, gnu::cold]] BELAY_DECL operation_spans add_started(span_log& to, operation what,
                                                                std::span<const int> members, const buffer_use& buffers,
                                                                std::span<const p2p> transfers, const start_order& how);

/// A wait of the rank's thread for a started operation.
[[nodiscard, gnu::cold]] BELAY_DECL traced_span* add_wait_for(span_log& to, operation what, const where& at) noexcept;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/operation_spans.ipp"  // IWYU pragma: export
#endif
