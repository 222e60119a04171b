// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank brings to an operation, as it stands in its line. A small operation, with 56 bytes or fewer of each
// rank, is its own offer: 32 bits say exactly what it is and the payload is its data. Of a larger one the payload says
// what it is and where its buffers are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "belay/backend/host/algorithm.hpp"
#include "belay/backend/host/place.hpp"
#include "belay/backend/host/reach.hpp"
#include "belay/backend/host/single_copy.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What a rank brings to an operation of any size. The buffers and the fingerprint are valid from `enter` to `leave`.
struct contribution {
  const fingerprint& print;
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  std::size_t paged_bytes = 0;  // of the input, which also go along in this rank's page
};

/// The payload of a larger operation's line. Whole words: they are stored and loaded one by one where they lie, and
/// nobody waits for small stores to be put together.
struct offer {
  std::uint64_t head = 0;  // operation, reduction, kind of element, ways, bytes of an element
  std::int64_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t shape = 0;
  memory_reference input;
  memory_reference output;

  /// Of no buffers.
  [[nodiscard]] static offer of(const fingerprint& print) noexcept {
    offer out;
    out.head = static_cast<std::uint64_t>(print.what) | static_cast<std::uint64_t>(print.how) << 8 |
               std::uint64_t{print.type.kind} << 16 | std::uint64_t{print.type.bytes} << 32;
    out.root = print.root;
    out.count = print.count;
    out.shape = print.shape;
    return out;
  }
  [[nodiscard]] static offer of(const contribution& mine, const reach& memory, bool reads_others) {
    offer out = of(mine.print);
    out.input = memory.refer(mine.input, mine.input_bytes);
    out.output = memory.refer(mine.output, mine.output_bytes);
    const bool seen = (mine.input_bytes == 0 || memory.direct(out.input)) &&
                      (mine.output_bytes == 0 || memory.direct(out.output));
    out.head |= (seen ? loads_and_stores : 0) | (reads_others ? kernel_copies : 0);
    const bool large = std::max(mine.input_bytes, mine.output_bytes) >= least_kernel_copy;
    if (!seen && large && reads_others && !single_copy_pays()) out.head |= staging_pays;
    return out;
  }

  /// How peers get at the buffers and this rank at theirs, as bits of `head`.
  static constexpr std::uint64_t loads_and_stores = std::uint64_t{1} << 24, kernel_copies = std::uint64_t{2} << 24,
                                 staging_pays = std::uint64_t{4} << 24;

  [[nodiscard]] bool is_same_call(const offer& other) const noexcept {
    return ((head ^ other.head) & ~(loads_and_stores | kernel_copies | staging_pays)) == 0 && root == other.root &&
           count == other.count && shape == other.shape;
  }
  [[nodiscard]] fingerprint print() const noexcept {
    return {static_cast<operation>(head & 0xff),
            static_cast<reduction>(head >> 8 & 0xff),
            {static_cast<std::uint8_t>(head >> 16), static_cast<std::uint32_t>(head >> 32)},
            static_cast<std::int32_t>(root),
            count,
            shape};
  }
};
static_assert(sizeof(offer) <= place<>::line_room);

/// The word of a small operation says exactly what it is: operation, reduction, type, bytes, root.
[[nodiscard]] constexpr std::uint32_t small_print(const fingerprint& print) noexcept {
  const auto what = static_cast<std::uint32_t>(print.what);
  const auto how = static_cast<std::uint32_t>(print.how);
  const bool opaque = print.type.kind == element_code::opaque;
  const std::uint32_t kind = opaque ? 15 : print.type.kind;
  const std::uint32_t element_bytes = opaque ? print.type.bytes & 63 : 0;
  const auto bytes = static_cast<std::uint32_t>(print.count * print.type.bytes) & 63;
  const auto root = static_cast<std::uint32_t>(print.root + 1) & 511;
  return what | how << 4 | kind << 7 | element_bytes << 11 | bytes << 17 | root << 23;
}
/// The word of a larger one only says that it is; what, the payload says.
inline constexpr std::uint32_t large_print = 15;

[[nodiscard]] inline fingerprint print_of_word(std::uint32_t word) noexcept {
  fingerprint out;
  out.what = static_cast<operation>(word & 15);
  out.how = static_cast<reduction>(word >> 4 & 7);
  const std::uint32_t kind = word >> 7 & 15;
  if (kind == 15) {
    out.type = {element_code::opaque, word >> 11 & 63};
  } else {
    out.type = {static_cast<std::uint8_t>(kind), static_cast<std::uint32_t>(size_bytes(static_cast<dtype>(kind)))};
  }
  out.count = out.type.bytes == 0 ? 0 : (word >> 17 & 63) / out.type.bytes;
  out.root = static_cast<std::int32_t>(word >> 23) - 1;
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
