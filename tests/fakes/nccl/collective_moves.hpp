// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What NCCL's operations do to the memory of all ranks, once all have come. Sums are added from the last rank to the
// first: NCCL promises no order, so who expects one of it fails here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "belay/comm/reduction.hpp"
#include "belay/core/dtype.hpp"

namespace fakes {

enum class nccl_call : std::uint8_t {
  all_reduce,
  reduce_scatter,
  reduce,
  all_gather,
  all_to_all,
  broadcast,
  gather,
  scatter,
  transfer
};

/// One rank's side of an operation. `peer` is the root, or the other side of a transfer, whose sender has no `to`.
struct nccl_side {
  nccl_call what = nccl_call::transfer;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  belay::dtype type = belay::dtype::u8;
  belay::reduction how = belay::reduction::none;
  int peer = -1;

  [[nodiscard]] std::size_t bytes() const noexcept { return count * belay::size_bytes(type); }
  [[nodiscard]] bool agrees(const nccl_side& other) const noexcept {
    return what == other.what && type == other.type && how == other.how &&
           (what == nccl_call::transfer || peer == other.peer);
  }
  /// Bytes that rank `rank` of `ranks` reads and writes.
  [[nodiscard]] std::size_t reads(int rank, int ranks) const noexcept {
    const bool whole = what == nccl_call::reduce_scatter || what == nccl_call::all_to_all ||
                       (what == nccl_call::scatter && rank == peer);
    if ((what == nccl_call::scatter && rank != peer) || from == nullptr) return 0;
    return bytes() * static_cast<std::size_t>(whole ? ranks : 1);
  }
  [[nodiscard]] std::size_t writes(int rank, int ranks) const noexcept {
    const bool at_root = what == nccl_call::reduce || what == nccl_call::gather;
    if ((at_root && rank != peer) || to == nullptr) return 0;
    const bool whole = what == nccl_call::all_gather || what == nccl_call::all_to_all || what == nccl_call::gather;
    return bytes() * static_cast<std::size_t>(whole ? ranks : 1);
  }
};

[[nodiscard]] inline nccl_side side(nccl_call what, const void* from, void* to, std::size_t count, belay::dtype type,
                                    belay::reduction how = belay::reduction::none, int peer = -1) {
  return {what, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, how, peer};
}

template <class T, class Op>
void reduce_backwards(const std::vector<nccl_side>& sides, std::vector<std::byte>& total, std::size_t count, Op) {
  using accumulator = belay::accumulator_of<T>;
  total.resize(count * sizeof(T));
  const auto of = [&](std::size_t q, std::size_t i) {
    T x;
    std::memcpy(&x, sides[q].from + i * sizeof(T), sizeof(T));
    return static_cast<accumulator>(x);
  };
  for (std::size_t i = 0; i < count; ++i) {
    accumulator sum = of(sides.size() - 1, i);
    for (std::size_t q = sides.size() - 1; q-- > 0;) sum = Op::apply(sum, of(q, i));
    if constexpr (belay::finishing<Op>) sum = Op::finish(sum, static_cast<int>(sides.size()));
    const T rounded = static_cast<T>(sum);
    std::memcpy(total.data() + i * sizeof(T), &rounded, sizeof(T));
  }
}
template <class T>
void reduce_backwards(const std::vector<nccl_side>& sides, std::vector<std::byte>& total, std::size_t count) {
  switch (sides[0].how) {
    case belay::reduction::none: break;
    case belay::reduction::sum: return reduce_backwards<T>(sides, total, count, belay::sum);
    case belay::reduction::minimum: return reduce_backwards<T>(sides, total, count, belay::minimum);
    case belay::reduction::maximum: return reduce_backwards<T>(sides, total, count, belay::maximum);
    case belay::reduction::product: return reduce_backwards<T>(sides, total, count, belay::product);
    case belay::reduction::average: return reduce_backwards<T>(sides, total, count, belay::average);
  }
}
[[nodiscard]] inline std::vector<std::byte> reduced(const std::vector<nccl_side>& sides, std::size_t count) {
  std::vector<std::byte> total;
  switch (sides[0].type) {
    case belay::dtype::u8: reduce_backwards<std::uint8_t>(sides, total, count); break;
    case belay::dtype::i8: reduce_backwards<std::int8_t>(sides, total, count); break;
    case belay::dtype::u32: reduce_backwards<std::uint32_t>(sides, total, count); break;
    case belay::dtype::i32: reduce_backwards<std::int32_t>(sides, total, count); break;
    case belay::dtype::u64: reduce_backwards<std::uint64_t>(sides, total, count); break;
    case belay::dtype::i64: reduce_backwards<std::int64_t>(sides, total, count); break;
    case belay::dtype::f16: reduce_backwards<belay::fp16>(sides, total, count); break;
    case belay::dtype::bf16: reduce_backwards<belay::bf16>(sides, total, count); break;
    case belay::dtype::f32: reduce_backwards<float>(sides, total, count); break;
    case belay::dtype::f64: reduce_backwards<double>(sides, total, count); break;
    default: break;
  }
  return total;
}

/// Of a collective the side of each rank; of a transfer the sender's and the receiver's.
inline void move_elements(const std::vector<nccl_side>& sides) {
  const nccl_side& first = sides[0];
  const std::size_t bytes = first.bytes(), ranks = sides.size();
  const auto copy = [](std::byte* to, const std::byte* from, std::size_t count) {
    if (count > 0 && to != from) std::memmove(to, from, count);
  };
  // All is read before anything is written: operations may be in place.
  std::vector<std::byte> all;
  const auto collect = [&](std::size_t each) {
    all.resize(each * ranks);
    for (std::size_t q = 0; q < ranks; ++q) copy(all.data() + q * each, sides[q].from, each);
  };
  const auto root = static_cast<std::size_t>(first.peer);
  switch (first.what) {
    case nccl_call::all_reduce:
      all = reduced(sides, first.count);
      for (const nccl_side& each : sides) copy(each.to, all.data(), bytes);
      break;
    case nccl_call::reduce_scatter:
      all = reduced(sides, first.count * ranks);
      for (std::size_t q = 0; q < ranks; ++q) copy(sides[q].to, all.data() + q * bytes, bytes);
      break;
    case nccl_call::reduce:
      all = reduced(sides, first.count);
      copy(sides[root].to, all.data(), bytes);
      break;
    case nccl_call::all_gather:
      collect(bytes);
      for (const nccl_side& each : sides) copy(each.to, all.data(), all.size());
      break;
    case nccl_call::gather:
      collect(bytes);
      copy(sides[root].to, all.data(), all.size());
      break;
    case nccl_call::all_to_all:
      collect(bytes * ranks);
      for (std::size_t q = 0; q < ranks; ++q)
        for (std::size_t from = 0; from < ranks; ++from)
          copy(sides[q].to + from * bytes, all.data() + (from * ranks + q) * bytes, bytes);
      break;
    case nccl_call::broadcast:
      all.resize(bytes);
      copy(all.data(), sides[root].from, bytes);
      for (const nccl_side& each : sides) copy(each.to, all.data(), bytes);
      break;
    case nccl_call::scatter:
      all.resize(bytes * ranks);
      copy(all.data(), sides[root].from, all.size());
      for (std::size_t q = 0; q < ranks; ++q) copy(sides[q].to, all.data() + q * bytes, bytes);
      break;
    case nccl_call::transfer: copy(sides[1].to, sides[0].from, bytes); break;
  }
}

}  // namespace fakes
