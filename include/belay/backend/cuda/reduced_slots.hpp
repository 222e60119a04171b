// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A reduction as a kernel of one element, or of those of 16 bytes: what the ranks of a group have in their slots, or in
// their own buffers, added in rank order. There is one kernel for each type; which reduction it is it learns when it
// runs, once for each element and not for each rank.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Where ranks' elements lie: slot q begins `stride` bytes after slot q - 1. Those of rank `me` lie at `own` instead,
/// where that is not null. Without a first slot those of rank q lie at `given[q]`.
struct slots_of_ranks {
  const std::byte* first;
  std::size_t stride;
  int ranks;
  const std::byte* own = nullptr;
  int me = -1;

  static constexpr int most_given = 16;  // a kernel keeps the addresses by value
  const std::byte* given[most_given] = {};

  [[nodiscard]] BELAY_HD const std::byte* of(int q) const {
    if (q == me) return own;
    return first == nullptr ? given[q] : first + static_cast<std::size_t>(q) * stride;
  }
};

/// out[i] = ((s0[i] + s1[i]) + s2[i]) + ..., finished and rounded once, as `reduce_elements` of the host does it. `out`
/// is in no slot; it may be what rank `me`, or this rank, has.
template <reducible T>
struct reduced_slots {
  slots_of_ranks from;
  T* out;
  reduction how;

  BELAY_HD void operator()(std::size_t i) const { reduce<1>(i); }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = kernel::pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    for (int q = 0; q < from.ranks; ++q)
      if (!kernel::are_packs<indices_of_pack>(out, slot(q))) return false;
    return true;
  }
  BELAY_HD void pack(std::size_t i) const { reduce<indices_of_pack>(i); }

 private:
  template <std::size_t Count>
  BELAY_HD void reduce(std::size_t i) const {
    switch (how) {
      case reduction::sum: return write_totals<sum_t, Count>(i);
      case reduction::minimum: return write_totals<minimum_t, Count>(i);
      case reduction::maximum: return write_totals<maximum_t, Count>(i);
      case reduction::product: return write_totals<product_t, Count>(i);
      case reduction::average: return write_totals<average_t, Count>(i);
      case reduction::none: return;
    }
  }
  template <reduction_tag Op, std::size_t Count>
  BELAY_HD void write_totals(std::size_t i) const {
    using accumulator = accumulator_of<T>;
    accumulator sums[Count];
    kernel::pack_of<T, Count> some = kernel::load_pack<Count>(slot(0), i);
    for (std::size_t k = 0; k < Count; ++k) sums[k] = static_cast<accumulator>(some.of[k]);
    for (int q = 1; q < from.ranks; ++q) {
      some = kernel::load_pack<Count>(slot(q), i);
      for (std::size_t k = 0; k < Count; ++k) sums[k] = Op::apply(sums[k], static_cast<accumulator>(some.of[k]));
    }
    for (std::size_t k = 0; k < Count; ++k) {
      if constexpr (finishing<Op>) sums[k] = Op::finish(sums[k], from.ranks);
      some.of[k] = static_cast<T>(sums[k]);
    }
    kernel::store_pack(some, out, i);
  }
  [[nodiscard]] BELAY_HD const T* slot(int q) const { return reinterpret_cast<const T*>(from.of(q)); }
};

/// Calls `f` with an element of the type that `code` is of, which can be reduced. False where it is none.
template <class F>
bool with_reducible(element_code code, const F& f) {
  if (code.kind == element_code::opaque) return false;
  switch (static_cast<dtype>(code.kind)) {
    case dtype::u8: return f(std::uint8_t{}), true;
    case dtype::i8: return f(std::int8_t{}), true;
    case dtype::u16: return f(std::uint16_t{}), true;
    case dtype::i16: return f(std::int16_t{}), true;
    case dtype::u32: return f(std::uint32_t{}), true;
    case dtype::i32: return f(std::int32_t{}), true;
    case dtype::u64: return f(std::uint64_t{}), true;
    case dtype::i64: return f(std::int64_t{}), true;
    case dtype::f16: return f(fp16{}), true;
    case dtype::bf16: return f(bf16{}), true;
    case dtype::f32: return f(float{}), true;
    case dtype::f64: return f(double{}), true;
    case dtype::boolean:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2: return false;
  }
  return false;
}

/// Queues the reduction that `call` names of `count` elements in slots into `out`.
template <class Stream>
void reduce_slots(Stream& stream, const op_call& call, const slots_of_ranks& from, std::byte* out, std::size_t count) {
  with_reducible(call.type(), [&]<class T>(T) {
    stream.each(count, reduced_slots<T>{from, reinterpret_cast<T*>(out), call.how()});
  });
}

/// Throws usage_error for a reduction of elements that have no dtype: its arithmetic is the host's alone.
inline void expect_device_type(const op_call& call) {
  if (call.how() == reduction::none || with_reducible(call.type(), [](auto) {})) return;
  throw usage_error(std::string(name(call.what())) + ": " + call.type().text() +
                        " without a dtype are not reduced on a device: use a type of belay/core/dtype.hpp",
                    call.at);
}

}  // namespace belay::inline BELAY_ABI::cuda
