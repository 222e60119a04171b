// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Transfers of a rank alone, in a group of its own, to itself.
#pragma once

#include <cstring>
#include <string>

#include "belay/comm/basic_group.hpp"

namespace belay::inline BELAY_ABI {
namespace single_rank {

BELAY_DECL std::string exchange(std::span<const p2p> transfers, int number) {
  const auto next = [&](std::size_t from, p2p::direction kind) {
    while (from < transfers.size() && transfers[from].kind != kind) ++from;
    return from;
  };
  const std::string who = "rank " + std::to_string(number);
  std::size_t out = next(0, p2p::direction::send), in = next(0, p2p::direction::receive);
  for (; out < transfers.size() && in < transfers.size();
       out = next(out + 1, p2p::direction::send), in = next(in + 1, p2p::direction::receive)) {
    const p2p& sent = transfers[out];
    const p2p& expected = transfers[in];
    if (sent.bytes != expected.bytes || sent.tag != expected.tag) {
      return who + " sends itself " + std::to_string(sent.bytes) + " bytes with tag " + std::to_string(sent.tag) +
             " and expects " + std::to_string(expected.bytes) + " bytes with tag " + std::to_string(expected.tag);
    }
    if (sent.bytes > 0) std::memmove(expected.data, sent.data, sent.bytes);
  }
  if (out == in) return {};  // both are at the end
  return who +
         (out < transfers.size() ? " sends itself more often than it receives"
                                 : " receives from itself more often than it sends") +
         " in one exchange";
}

}  // namespace single_rank
}  // namespace belay::inline BELAY_ABI
