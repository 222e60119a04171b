// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the reductions have in common: each rank reduces a slice, in rounds that bound the temporary memory, in rank
// order and by the same code as the other backends, so that all agree bit for bit.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/memory_access.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

struct element_range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A reduction works on so many bytes at a time, which bounds its temporary memory.
inline constexpr std::size_t reduction_block = 4 << 20;

/// Sends range q of the call's input (`range(q)`: first and count) to each rank q and reduces all ranks' data of this
/// rank's range into `out`, which may be that range.
template <class Range>
void reduce_ranges(collective_context& me, const op_call& call, Range range, std::byte* out) {
  const std::size_t each = call.element_bytes();
  const auto [first, count] = range(me.rank());
  const std::byte* const own = call.in + first * each;
  const std::size_t bytes = count * each;
  std::vector<std::byte> theirs(bytes * static_cast<std::size_t>(me.size() - 1));
  const auto place = [&](int q) { return theirs.data() + static_cast<std::size_t>(q < me.rank() ? q : q - 1) * bytes; };
  me.move([&](int q, transfer& with) {
    const element_range part = range(q);
    with.send(call.in + part.first * each, part.count * each);
    with.receive(place(q), bytes);
  });
  std::vector<const std::byte*> sources(static_cast<std::size_t>(me.size()));
  for (int q = 0; q < me.size(); ++q) sources[static_cast<std::size_t>(q)] = q == me.rank() ? own : place(q);
  call.arithmetic->arrays(sources, std::span(&out, 1), count, memory_access::automatic, 0);
}

/// Cuts `counts` ranges, one per rank, into rounds of at most `room` elements each: `round(range_of)` is called for
/// each round with the ranges of all ranks in it.
template <class Counts, class Round>
void in_rounds(int ranks, std::size_t room, Counts counts, Round round) {
  std::size_t longest = 0;
  for (int q = 0; q < ranks; ++q) longest = greater_of(longest, counts(q).count);
  for (std::size_t done = 0; done < longest; done += room) {
    round([&](int q) {
      const element_range whole = counts(q);
      const std::size_t skipped = lesser_of(done, whole.count);
      return element_range{whole.first + skipped, lesser_of(room, whole.count - skipped)};
    });
  }
}

[[nodiscard]] inline std::size_t round_length(std::size_t element_bytes, int ranks) noexcept {
  return greater_of<std::size_t>(1024, reduction_block / element_bytes / static_cast<std::size_t>(ranks));
}

/// Rank q reduces slice q of a buffer of `length` elements.
[[nodiscard]] inline element_range slice_of(std::size_t length, int ranks, int which) noexcept {
  const std::size_t slice = (length + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  const std::size_t first = lesser_of(length, slice * static_cast<std::size_t>(which));
  return {first, lesser_of(slice, length - first)};
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
