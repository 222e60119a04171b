// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Spans of operations and of waits for them.
#pragma once

#include <cstddef>

#include "belay/comm/operation_spans.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/hash.hpp"
#include "belay/device/stream.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::uint64_t group_key(std::span<const int> members) noexcept {
  fnv1a key;
  for (int member : members) key.add(static_cast<std::uint64_t>(member));
  return key.value();
}

BELAY_DECL traced_span* add_operation(span_log& to, span_lane lane, operation what, std::span<const int> members,
                                      const buffer_use& buffers, std::span<const p2p> transfers, const where& at) {
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

BELAY_DECL operation_spans add_started(span_log& to, operation what, std::span<const int> members,
                                       const buffer_use& buffers, std::span<const p2p> transfers,
                                       const start_order& how) {
  operation_spans out;
  out.waits = add_wait(&to, span_lane::communication, how.event, how.at);
  out.runs = add_operation(to, span_lane::communication, what, members, buffers, transfers, how.at);
  return out;
}

BELAY_DECL traced_span* add_wait_for(span_log& to, operation what, const where& at) noexcept {
  return to.add({.name = wait_name(stream_kind::communication),
                 .call = name(what),
                 .file = at.file,
                 .line = static_cast<std::uint32_t>(at.line),
                 .kind = span_kind::wait,
                 .lane = span_lane::host});
}

}  // namespace belay::inline BELAY_ABI
