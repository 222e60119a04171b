// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a group of one rank are copies: no shared memory, no peer to wait for.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <span>
#include <string>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace single_rank {

/// The n-th send of rank `number` of the world to itself meets its n-th receive. Empty, or why they do not fit.
[[nodiscard]] BELAY_DECL std::string exchange(std::span<const p2p> transfers, int number);

/// Runs an operation of rank `number` of `world` in a group of its own, which was checked. Throws comm_error where the
/// world has failed or an exchange does not fit.
template <class World>
void run(World& world, int number, const op_call& call) {
  if (world.aborted()) world.raise({call.what(), 0, 0, 0, call.at});
  if (call.what() != operation::exchange) return copy_elements(call.out, call.in, call.in_bytes());
  const std::string problem = exchange(call.exchanged(), number);
  if (problem.empty()) return;
  world.abort({comm_fault::mismatch, {number}, problem, call.at.text()});
  world.raise({call.what(), 0, 0, 0, call.at});
}

}  // namespace single_rank
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/single_rank.ipp"  // IWYU pragma: export
#endif
