// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Spans of communication: on the rank's thread of those that it calls, in the communication stream of those that it
// starts. All of it is off the path of a call that is not traced.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_spans.hpp"

namespace belay::inline BELAY_ABI {

/// The spans of a started operation: how long its stream waits for what it comes after, and it itself. Null where they
/// are not traced.
struct operation_spans {
  traced_span* waits = nullptr;
  traced_span* runs = nullptr;
};

/// A number for the group of `members`, equal on all its ranks.
[[nodiscard]] inline std::uint64_t group_key(std::span<const int> members) noexcept {
  fnv1a key;
  for (int member : members) key.add(static_cast<std::uint64_t>(member));
  return key.value();
}

/// A span of an operation of the ranks `members` of the world, and of what `transfers` send and receive.
[[nodiscard, gnu::cold]] inline traced_span* add_operation(span_log& to, span_lane lane, operation what,
                                                           std::span<const int> members, const buffer_use& buffers,
                                                           std::span<const p2p> transfers, const where& at) {
  traced_span about{.name = name(what),
                    .file = at.file,
                    .bytes = greater_of(buffers.reads.size(), buffers.writes.size()),
                    .group = members.empty() ? 0 : group_key(members),
                    .line = static_cast<std::uint32_t>(at.line),
                    .kind = span_kind::communication,
                    .lane = lane};
  for (const p2p& one : transfers) about.bytes += one.bytes;
  traced_span* const out = to.add(about);
  for (const p2p& one : transfers) {
    const auto peer = static_cast<std::size_t>(one.peer);
    if (peer >= members.size()) continue;  // refused when it runs
    about.bytes = one.bytes;
    about.number = static_cast<std::uint32_t>(one.tag);
    about.peer = static_cast<std::uint32_t>(members[peer]);
    about.kind = one.kind == p2p::direction::send ? span_kind::send : span_kind::receive;
    static_cast<void>(to.add(about));
  }
  return out;
}

/// The spans of an operation that is started by the ranks `members` of the world: how long its stream waits for what it
/// comes after, and it itself, with what `transfers` send and receive.
[[nodiscard, gnu::cold]] inline operation_spans add_started(span_log& to, operation what, std::span<const int> members,
                                                            const buffer_use& buffers, std::span<const p2p> transfers,
                                                            const start_order& how) {
  operation_spans out;
  out.waits = add_wait(&to, span_lane::communication, how.event, how.at);
  out.runs = add_operation(to, span_lane::communication, what, members, buffers, transfers, how.at);
  return out;
}

/// A wait of the rank's thread for a started operation.
[[nodiscard, gnu::cold]] inline traced_span* add_wait_for(span_log& to, operation what, const where& at) noexcept {
  return to.add({.name = wait_name(stream_kind::communication),
                 .call = name(what),
                 .file = at.file,
                 .line = static_cast<std::uint32_t>(at.line),
                 .kind = span_kind::wait,
                 .lane = span_lane::host});
}

}  // namespace belay::inline BELAY_ABI
