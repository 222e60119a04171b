// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank brings to an operation, as it stands in its line. A small operation, with 56 bytes or fewer of each
// rank, is its own offer: 32 bits say exactly what it is and the payload is its data. Of a larger one the payload says
// what it is and where its buffers are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/backend/host/tuning/variant.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The payload of a larger operation's line. Whole words: they are stored and loaded one by one where they lie, and
/// nobody waits for small stores to be put together.
struct call_descriptor {
  std::uint64_t head = 0;  // operation, reduction, kind of element, ways, bytes of an element
  std::int64_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t shape = 0;
  memory_reference input;
  memory_reference output;

  [[nodiscard, gnu::always_inline]] static inline std::uint64_t head_of(const fingerprint& print) noexcept {
    return static_cast<std::uint64_t>(print.what) | static_cast<std::uint64_t>(print.how) << 8 |
           std::uint64_t{print.type.kind} << 16 | std::uint64_t{print.type.bytes} << 32;
  }
  /// Of no buffers.
  [[nodiscard, gnu::always_inline]] static inline call_descriptor of(const fingerprint& print) noexcept {
    return {head_of(print), print.root, print.count, print.shape, {}, {}};
  }

  /// Bits of `head` that are no part of the call.
  static constexpr std::uint64_t loads_and_stores = std::uint64_t{1} << 24, cma_possible = std::uint64_t{2} << 24,
                                 in_place = std::uint64_t{4} << 24, in_eager_buffer = std::uint64_t{8} << 24;
  static constexpr int first_variant_bit = 28;
  static constexpr std::uint64_t variant_bits = std::uint64_t{15} << first_variant_bit;
  static constexpr std::uint64_t ways = loads_and_stores | cma_possible | in_place | in_eager_buffer | variant_bits;

  [[nodiscard]] bool is_same_call(const call_descriptor& other) const noexcept {
    return (((head ^ other.head) & ~ways) | static_cast<std::uint64_t>(root ^ other.root) | (count ^ other.count) |
            (shape ^ other.shape)) == 0;
  }
  [[nodiscard]] fingerprint print() const noexcept {
    return {static_cast<operation>(head & 0xff),
            static_cast<reduction>(head >> 8 & 0xff),
            {static_cast<std::uint8_t>(head >> 16), static_cast<std::uint32_t>(head >> 32)},
            static_cast<std::int32_t>(root),
            count,
            shape};
  }
  /// What the head of the first of `ranks` ranks tells of the call.
  [[nodiscard]] static call_kind kind_of(std::uint64_t head, int ranks) noexcept {
    const fingerprint call = call_descriptor{head, -1, 0, 0, {}, {}}.print();
    const bool floats =
        call.type.kind == element_code_of<float>().kind || call.type.kind == element_code_of<double>().kind;
    return {call.what,
            ranks,
            floats && ranks == 2,
            (head & loads_and_stores) != 0,
            (head & cma_possible) != 0,
            (head & in_place) != 0};
  }
  /// Peers load from and store to its buffers.
  [[nodiscard]] bool is_seen() const noexcept { return (head & loads_and_stores) != 0; }
  /// Its output is its input, and there is some.
  [[nodiscard]] bool is_in_place() const noexcept { return (head & in_place) != 0; }
  /// Of which of `variants_of` it shall be done.
  [[nodiscard]] std::size_t variant_index() const noexcept { return head >> first_variant_bit & 15; }
  [[nodiscard]] static constexpr std::uint64_t variant_of_index(std::size_t index) noexcept {
    return std::uint64_t{index} << first_variant_bit;
  }
};
static_assert(sizeof(call_descriptor) <= peer_flags<>::flag_payload_bytes);

/// What a rank brings to a larger operation. The buffers are valid from `enter` to `leave`.
struct call_buffers {
  fingerprint print;
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;

  /// As an offer, which tells how peers get at the buffers and this rank at theirs.
  [[nodiscard, gnu::always_inline]] inline call_descriptor as_descriptor(const address_map& memory,
                                                                         const rank_set& peers,
                                                                         bool reads_others) const {
    const memory_reference in = memory.refer(input, input_bytes, peers),
                           out = memory.refer(output, output_bytes, peers);
    const bool in_place = in == out && input_bytes > 0 && output_bytes > 0;
    std::uint64_t head = call_descriptor::head_of(print) | (reads_others ? call_descriptor::cma_possible : 0) |
                         (in_place ? call_descriptor::in_place : 0);
    if ((memory.direct(in) || input_bytes == 0) && (memory.direct(out) || output_bytes == 0))
      head |= call_descriptor::loads_and_stores;
    return {head, print.root, print.count, print.shape, in, out};
  }
};

/// The same with counts for the ranks.
struct counted_call_buffers : call_buffers {
  std::span<const std::size_t> send_counts = {};
  std::span<const std::size_t> receive_counts = {};
  std::size_t eager_bytes = 0;  // of the input, which also go along in this rank's page
};

/// What all ranks payloads to a small operation, or have in their pages in a larger one: peers' as far apart from rank
/// to rank, this rank's where its caller has it. (What a rank has just published a peer may have taken into its own
/// cache; to read it back would cost as much as to read the peer's.)
struct peer_payloads {
  const std::byte* first = nullptr;
  std::size_t apart = 0;
  int me = 0;
  const std::byte* own = nullptr;

  [[nodiscard]] const std::byte* operator()(int who) const noexcept {
    return who == me ? own : first + static_cast<std::size_t>(who) * apart;
  }
};

/// The word of a small operation says exactly what it is: operation, reduction, type, bytes, root.
[[nodiscard, gnu::always_inline]] constexpr std::uint32_t inline_fingerprint(const fingerprint& print) noexcept {
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
inline constexpr std::uint32_t descriptor_follows = 15;

[[nodiscard]] constexpr operation operation_of_word(std::uint32_t word) noexcept {
  return static_cast<operation>(word & 15);
}
[[nodiscard]] constexpr std::size_t bytes_of_word(std::uint32_t word) noexcept { return word >> 17 & 63; }

[[nodiscard]] inline fingerprint fingerprint_of_word(std::uint32_t word) noexcept {
  fingerprint out;
  out.what = operation_of_word(word);
  out.how = static_cast<reduction>(word >> 4 & 7);
  const std::uint32_t kind = word >> 7 & 15;
  if (kind == 15) {
    out.type = {element_code::opaque, word >> 11 & 63};
  } else {
    out.type = {static_cast<std::uint8_t>(kind), static_cast<std::uint32_t>(size_bytes(static_cast<dtype>(kind)))};
  }
  out.count = out.type.bytes == 0 ? 0 : bytes_of_word(word) / out.type.bytes;
  out.root = static_cast<std::int32_t>(word >> 23) - 1;
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
