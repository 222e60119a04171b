// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the collectives share: the endpoint and the limit of one call, how a buffer divides among ranks, and which
// variant moves the bytes.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's endpoint, and how long a call waits there.
struct collective_context {
  host::collective_endpoint* endpoint;
  world_status::clock::duration limit;

  [[nodiscard]] int rank() const noexcept { return endpoint->rank(); }
  [[nodiscard]] int size() const noexcept { return endpoint->size(); }
};

[[nodiscard]] constexpr std::size_t index_of(int rank) noexcept { return static_cast<std::size_t>(rank); }

/// Where a part of a buffer lies.
struct byte_range {
  std::size_t first = 0;
  std::size_t bytes = 0;
};

/// How a buffer divides among ranks: in parts of `each` bytes, or, where there are `counts`, in so many elements of
/// `each` bytes.
struct division {
  std::size_t each = 0;
  std::span<const std::size_t> counts = {};

  [[nodiscard]] byte_range operator[](int rank) const noexcept {
    const std::size_t q = index_of(rank);
    if (counts.empty()) return {q * each, each};
    return {offset_of(counts, rank) * each, counts[q] * each};
  }
  /// The bytes of the longest part.
  [[nodiscard]] std::size_t longest(int ranks) const noexcept {
    std::size_t out = 0;
    for (int q = 0; q < ranks; ++q) out = greater_of(out, counts.empty() ? each : counts[index_of(q)] * each);
    return out;
  }
};

/// Where all buffers are mapped a rank stores its bytes into its peers' rather than that they fetch them: its own are
/// in its cache, theirs would come out of it line by line.
[[nodiscard]] inline bool stores_into_peers(algorithm how) noexcept {
  return how == algorithm::push || how == algorithm::one_shot;
}
/// Whether a root with one peer stores `bytes` into that peer's buffer rather than that the peer fetches them: where
/// all buffers are mapped, up to `most` bytes. More peers fetch at the same time.
[[nodiscard]] inline bool root_stores(const collective_endpoint& me, algorithm how, std::size_t bytes,
                                      std::size_t most) noexcept {
  return me.size() == 2 && bytes <= most && stores_into_peers(how);
}
/// Of more than `most_unshared` bytes that go between each peer and a root that has nothing to copy for itself: how
/// many the peer copies. The root copies the end of each part, which its caches may still hold.
[[nodiscard]] inline std::size_t copied_by_peers(const collective_endpoint& me, algorithm how, std::size_t bytes,
                                                 std::size_t most_unshared) noexcept {
  if (bytes <= most_unshared || !stores_into_peers(how)) return bytes;
  return (bytes - share_of(bytes, me.size())) / 64 * 64;
}

/// The variant of an operation of `bytes` a rank, once all have entered; `kind` is what is special about it.
[[nodiscard]] inline variant variant_of(const collective_endpoint& me, std::size_t bytes, selection_input kind = {}) {
  variant out = me.chosen();
  if (out.how != algorithm::automatic) return out;
  kind.forced = me.forced_algorithm();
  kind.direct = me.all_direct();
  kind.cma_possible = me.all_copy();
  kind.in_place = me.any_in_place();
  out.how = choose(kind, bytes);
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
