// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One operation of a group as a value: what typed calls become, and what every backend runs. Nothing of it depends on
// the type of the elements but one word of constants and, of a reduction, the arithmetic that the call names.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Trivially copyable; a started operation keeps it. It owns nothing: buffers, counts and transfers are the caller's
/// until the operation is over. Counts are in elements. An operation in place has its buffer as input and as output.
struct op_call {
  /// The operation, the reduction, the dtype and the bytes of an element: one word, which is constant in a typed call.
  std::uint64_t kind = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t in_count = 0, out_count = 0;
  /// Of the operations whose names end in _v: what each rank has, or is sent; and what it sends, of an all_to_all_v.
  const std::size_t *counts = nullptr, *receive_counts = nullptr;
  std::size_t count_number = 0, receive_number = 0;
  const p2p* transfers = nullptr;
  /// Of a reduction; a backend that adds by itself does not look at it.
  const reduction_arithmetic* arithmetic = nullptr;
  std::int32_t root = -1;
  std::uint32_t transfer_number = 0;
  where at;

  [[nodiscard]] static constexpr std::uint64_t kind_of(operation what, reduction how, element_code type) noexcept {
    return static_cast<std::uint64_t>(what) | static_cast<std::uint64_t>(how) << 8 | std::uint64_t{type.kind} << 16 |
           std::uint64_t{type.bytes} << 32;
  }
  [[nodiscard]] operation what() const noexcept { return static_cast<operation>(kind & 0xff); }
  [[nodiscard]] reduction how() const noexcept { return static_cast<reduction>(kind >> 8 & 0xff); }
  [[nodiscard]] element_code type() const noexcept {
    return {static_cast<std::uint8_t>(kind >> 16), static_cast<std::uint32_t>(kind >> 32)};
  }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return kind >> 32; }
  [[nodiscard]] std::size_t in_bytes() const noexcept { return in_count * element_bytes(); }
  [[nodiscard]] std::size_t out_bytes() const noexcept { return out_count * element_bytes(); }
  [[nodiscard]] std::span<const std::size_t> parts() const noexcept { return {counts, count_number}; }
  [[nodiscard]] std::span<const std::size_t> received_parts() const noexcept {
    return {receive_counts, receive_number};
  }
  [[nodiscard]] std::span<const p2p> exchanged() const noexcept { return {transfers, transfer_number}; }
  [[nodiscard]] buffer_use uses() const noexcept { return {{in, in_bytes()}, {out, out_bytes()}}; }
  /// The fingerprint that ranks compare; `count` is in elements.
  [[nodiscard]] fingerprint print(std::size_t count, std::uint64_t shape = 0) const noexcept {
    return {what(), how(), type(), root, count, shape};
  }

  // Made of what a typed call is given.

  [[nodiscard]] static op_call barrier(where at) noexcept {
    op_call made;
    made.kind = kind_of(operation::barrier, reduction::none, {});
    made.at = at;
    return made;
  }
  [[nodiscard]] static op_call exchange(std::span<const p2p> transfers, where at) noexcept {
    op_call made;
    made.kind = kind_of(operation::exchange, reduction::none, {});
    made.transfers = transfers.data();
    made.transfer_number = static_cast<std::uint32_t>(transfers.size());
    made.at = at;
    return made;
  }
  /// All ranks want memory of the same size.
  [[nodiscard]] static op_call make_symmetric(std::size_t bytes, where at) noexcept {
    op_call made;
    made.kind = kind_of(operation::make_symmetric, reduction::none, {element_code::opaque, 1});
    made.in_count = bytes;
    made.at = at;
    return made;
  }
  template <operation What, transferable T>
  [[nodiscard]] static op_call move(std::span<const T> in, std::span<T> out, where at, int root = -1) noexcept {
    op_call made = of_buffers(in, out, at, root);
    made.kind = kind_of(What, reduction::none, element_code_of<T>());
    return made;
  }
  template <operation What, class Op, reducible T>
  [[nodiscard]] static op_call reduce(std::span<const T> in, std::span<T> out, where at, int root = -1) noexcept {
    op_call made = of_buffers(in, out, at, root);
    made.kind = kind_of(What, Op::code, element_code_of<T>());
    made.arithmetic = &arithmetic_of<Op, T>;
    return made;
  }
  /// With a count for each rank.
  [[nodiscard]] op_call divided(std::span<const std::size_t> by) const noexcept {
    op_call made = *this;
    made.counts = by.data(), made.count_number = by.size();
    return made;
  }
  [[nodiscard]] op_call received(std::span<const std::size_t> by) const noexcept {
    op_call made = *this;
    made.receive_counts = by.data(), made.receive_number = by.size();
    return made;
  }

 private:
  template <class T>
  [[nodiscard]] static op_call of_buffers(std::span<const T> in, std::span<T> out, where at, int root) noexcept {
    op_call made;
    made.in = reinterpret_cast<const std::byte*>(in.data());
    made.out = reinterpret_cast<std::byte*>(out.data());
    made.in_count = in.size(), made.out_count = out.size();
    made.root = root;
    made.at = at;
    return made;
  }
};
static_assert(std::is_trivially_copyable_v<op_call>);

/// Throws usage_error for what rank `rank` of a group of `ranks` cannot be asked: lengths, counts, roots and peers that
/// do not fit, buffers that overlap other than in place, sizes that no number holds.
BELAY_DECL void check_call(const op_call& call, int rank, int ranks);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/op_call.ipp"  // IWYU pragma: export
#endif
