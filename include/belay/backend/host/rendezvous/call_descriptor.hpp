// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank says of its call in its flag line. Of a small operation, with 56 bytes or fewer of each rank, the word's
// 32 bits say exactly what it is and the payload is its data. Of a larger one the payload is a descriptor: what the
// call is and where its buffers are.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The payload of a larger operation's line. Whole words: they are stored and loaded one by one where they lie, so that
/// no load waits for smaller stores to be put together.
struct call_descriptor {
  std::uint64_t head = 0;  // operation, reduction, kind of element, flags, variant, bytes of an element
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

  /// Bits of `head` that are no part of the call: how the buffers can be reached, and the variant asked for.
  static constexpr std::uint64_t loads_and_stores = std::uint64_t{1} << 24, cma_possible = std::uint64_t{2} << 24,
                                 in_place = std::uint64_t{4} << 24, in_eager_buffer = std::uint64_t{8} << 24;
  static constexpr int first_variant_bit = 28;
  static constexpr std::uint64_t variant_bits = std::uint64_t{15} << first_variant_bit;
  static constexpr std::uint64_t not_compared =
      loads_and_stores | cma_possible | in_place | in_eager_buffer | variant_bits;

  [[nodiscard]] bool is_same_call(const call_descriptor& other) const noexcept {
    return (((head ^ other.head) & ~not_compared) | static_cast<std::uint64_t>(root ^ other.root) |
            (count ^ other.count) | (shape ^ other.shape)) == 0;
  }
  [[nodiscard]] fingerprint print() const noexcept {
    return {static_cast<operation>(head & 0xff),
            static_cast<reduction>(head >> 8 & 0xff),
            {static_cast<std::uint8_t>(head >> 16), static_cast<std::uint32_t>(head >> 32)},
            static_cast<std::int32_t>(root),
            count,
            shape};
  }
  /// The kind of a call that the tuner knows from its head, in a group of `ranks`.
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
  /// Peers load from its buffers and store to them.
  [[nodiscard]] bool is_direct() const noexcept { return (head & loads_and_stores) != 0; }
  /// Its output is its input, and is not empty.
  [[nodiscard]] bool is_in_place() const noexcept { return (head & in_place) != 0; }
  /// Which of `variants_of` the rank asks for.
  [[nodiscard]] std::size_t variant_index() const noexcept { return head >> first_variant_bit & 15; }
  [[nodiscard]] static constexpr std::uint64_t variant_of_index(std::size_t index) noexcept {
    return std::uint64_t{index} << first_variant_bit;
  }
};
static_assert(sizeof(call_descriptor) <= peer_flags<>::flag_payload_bytes);

/// The buffers of a larger call. They are valid from `enter_rendezvous` to `exit_rendezvous`.
struct call_buffers {
  const fingerprint& print;
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;

  /// As a descriptor, which also says how peers reach the buffers and whether this rank reads theirs by the kernel.
  [[nodiscard]] call_descriptor as_descriptor(const address_map& memory, const rank_set& peers,
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

/// The buffers of a larger call with counts for the ranks. They are valid from `enter_rendezvous` to `exit_rendezvous`.
struct counted_call_buffers : call_buffers {
  std::span<const std::size_t> send_counts = {};
  std::span<const std::size_t> receive_counts = {};
  std::size_t eager_bytes = 0;  // of the input, which also go into this rank's eager buffer
};

/// The layout of the word of a small operation, from the lowest bit: operation, reduction, type, bytes, root + 1.
/// A type is a dtype's code, or, where it is none, the size of an element, which no line holds more of than 56.
struct inline_layout {
  static constexpr int what_bits = 5, how_bits = 4, type_bits = 7, bytes_bits = 6, root_bits = 9;
  static constexpr int how_at = what_bits, type_at = how_at + how_bits, bytes_at = type_at + type_bits,
                       root_at = bytes_at + bytes_bits;
  static constexpr std::uint32_t opaque_type = std::uint32_t{1} << (type_bits - 1);

  [[nodiscard]] static constexpr std::uint32_t field(std::uint32_t word, int at, int bits) noexcept {
    return word >> at & ((std::uint32_t{1} << bits) - 1);
  }
};
static_assert(inline_layout::root_at + inline_layout::root_bits <= 32);

/// The word of a larger operation only says that the payload is a descriptor.
inline constexpr std::uint32_t descriptor_follows = (1U << inline_layout::what_bits) - 1;

static_assert(static_cast<std::uint32_t>(last_operation) < descriptor_follows,
              "the operations no longer fit into the word of a flag line: give inline_layout::what_bits one more bit");
static_assert(static_cast<std::uint32_t>(last_reduction) < (1U << inline_layout::how_bits),
              "the reductions no longer fit into the word of a flag line: give inline_layout::how_bits one more bit");
static_assert(dtype_count <= inline_layout::opaque_type,
              "the dtypes no longer fit into the word of a flag line: give inline_layout::type_bits one more bit");
static_assert(flag_payload_bytes < inline_layout::opaque_type && flag_payload_bytes < 1U << inline_layout::bytes_bits,
              "the sizes that a flag line holds no longer fit into its word");

/// The word of the first operation that was started on the group: its operation, and this bit. The payload is where.
inline constexpr std::uint32_t first_start_bit = 1U << 31;
static_assert(inline_layout::root_at + inline_layout::root_bits <= 31, "the word has no bit for a first start");

/// The word of a small operation.
[[nodiscard, gnu::always_inline]] constexpr std::uint32_t inline_fingerprint(const fingerprint& print) noexcept {
  using at = inline_layout;
  const bool opaque = print.type.kind == element_code::opaque;
  const std::uint32_t type = opaque ? at::opaque_type | (print.type.bytes & (at::opaque_type - 1)) : print.type.kind;
  const auto bytes = static_cast<std::uint32_t>(print.count * print.type.bytes) & ((1U << at::bytes_bits) - 1);
  const auto root = static_cast<std::uint32_t>(print.root + 1) & ((1U << at::root_bits) - 1);
  return static_cast<std::uint32_t>(print.what) | static_cast<std::uint32_t>(print.how) << at::how_at |
         type << at::type_at | bytes << at::bytes_at | root << at::root_at;
}

[[nodiscard]] constexpr operation operation_of_word(std::uint32_t word) noexcept {
  return static_cast<operation>(inline_layout::field(word, 0, inline_layout::what_bits));
}
[[nodiscard]] constexpr std::size_t bytes_of_word(std::uint32_t word) noexcept {
  return inline_layout::field(word, inline_layout::bytes_at, inline_layout::bytes_bits);
}

/// The fingerprint that `inline_fingerprint` was given, but for elements of no bytes, whose count no word holds.
[[nodiscard]] constexpr fingerprint fingerprint_of_word(std::uint32_t word) noexcept {
  using at = inline_layout;
  if ((word & first_start_bit) != 0) return fingerprint::first_start(operation_of_word(word));
  fingerprint out;
  out.what = operation_of_word(word);
  out.how = static_cast<reduction>(at::field(word, at::how_at, at::how_bits));
  const std::uint32_t type = at::field(word, at::type_at, at::type_bits);
  if ((type & at::opaque_type) != 0) {
    out.type = {element_code::opaque, type & (at::opaque_type - 1)};
  } else {
    out.type = {static_cast<std::uint8_t>(type), static_cast<std::uint32_t>(size_bytes(static_cast<dtype>(type)))};
  }
  out.count = out.type.bytes == 0 ? 0 : bytes_of_word(word) / out.type.bytes;
  out.root = static_cast<std::int32_t>(at::field(word, at::root_at, at::root_bits)) - 1;
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
