// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Queueing ranges.
#pragma once

#include "belay/comm/symmetric.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void put_queue::push(int peer, mirror_side side, std::size_t offset, const std::byte* data,
                                std::size_t bytes) {
  if (bytes == 0) return;
  queue& to = queues_[static_cast<std::size_t>(peer)];
  // Rows that lie side by side become one range.
  if (to.last != nowhere) {
    range_header before = read(to.bytes.data() + to.last);
    if (before.side == side && before.offset + before.bytes == offset) {
      before.bytes += bytes;
      std::memcpy(to.bytes.data() + to.last, &before, sizeof before);
      to.bytes.insert(to.bytes.end(), data, data + bytes);
      return;
    }
  }
  to.last = to.bytes.size();
  const range_header head{side, offset, bytes};
  const auto* raw = reinterpret_cast<const std::byte*>(&head);
  to.bytes.insert(to.bytes.end(), raw, raw + sizeof head);
  to.bytes.insert(to.bytes.end(), data, data + bytes);
}

}  // namespace belay::inline BELAY_ABI
