// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank brings to an operation, as it stands in its line. A small operation, with 56 bytes or fewer of each
// rank, is its own offer: 32 bits say exactly what it is and the payload is its data. Of a larger one the payload says
// what it is and where its buffers are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "belay/backend/host/place.hpp"
#include "belay/backend/host/reach.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What a rank brings to an operation of any size. The buffers are valid from `enter` to `leave`.
struct contribution {
  fingerprint print;
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  std::size_t paged_bytes = 0;  // of the input, which also go along in this rank's page
};

/// The payload of a larger operation's line.
struct offer {
  std::uint8_t what = 0;
  std::uint8_t how = 0;
  std::uint8_t kind = 0;
  std::uint8_t ways = 0;  // how peers get at the buffers and this rank at theirs, as bits
  std::uint32_t element_bytes = 0;
  std::int32_t root = -1;
  std::uint32_t unused = 0;
  std::uint64_t count = 0;
  std::uint64_t shape = 0;
  memory_reference input;
  memory_reference output;

  /// Of no buffers.
  [[nodiscard]] static offer of(const fingerprint& print) noexcept {
    offer out;
    out.what = static_cast<std::uint8_t>(print.what);
    out.how = static_cast<std::uint8_t>(print.how);
    out.kind = print.type.kind;
    out.element_bytes = print.type.bytes;
    out.root = print.root;
    out.count = print.count;
    out.shape = print.shape;
    return out;
  }
  [[nodiscard]] static offer of(const contribution& mine, const reach& memory, bool reads_others) noexcept {
    offer out = of(mine.print);
    out.input = memory.refer(mine.input, mine.input_bytes);
    out.output = memory.refer(mine.output, mine.output_bytes);
    const bool seen = (mine.input_bytes == 0 || memory.direct(out.input)) &&
                      (mine.output_bytes == 0 || memory.direct(out.output));
    out.ways = static_cast<std::uint8_t>((seen ? loads_and_stores : 0) | (reads_others ? kernel_copies : 0));
    return out;
  }
  static constexpr std::uint8_t loads_and_stores = 1, kernel_copies = 2;

  [[nodiscard]] fingerprint print() const noexcept {
    return {static_cast<operation>(what), static_cast<reduction>(how), {kind, element_bytes}, root, count, shape};
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
