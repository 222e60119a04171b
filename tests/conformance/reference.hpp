// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the laws of a communicator are compared with: values that depend on rank and place, and every reduction
// once more in plain words, on one thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/dtype.hpp"

namespace conformance {

// Whether the operations whose names end in _v are asked for; a `belay::group` offers them where its backend does,
// which all backends do that are given to the suites as they are.
template <class Group>
inline constexpr bool has_uneven_parts = belay::has_varying_counts<Group> || std::same_as<Group, belay::group>;

inline constexpr int rank_counts[] = {1, 2, 3, 4, 8};

inline std::vector<std::size_t> element_counts(int ranks) {
  return {0, 1, static_cast<std::size_t>(ranks - 1), 7, 1001, 1U << 16};
}
inline std::vector<std::size_t> few_element_counts(int ranks) {
  return {0, 1, static_cast<std::size_t>(ranks - 1), 7, 1537};
}

// For a law that is written once and holds for many types: `f.template operator()<T>()` returns whether it held.
template <class... Types>
struct each_of {
  template <class Law>
  static bool holds(Law law) {
    bool ok = true;
    ((ok = law.template operator()<Types>() && ok), ...);  // a broken law does not keep a rank from the next operation
    return ok;
  }
};

using reducible_types =
    each_of<float, double, belay::bf16, belay::fp16, std::int8_t, std::int32_t, std::int64_t, std::uint8_t>;
using floating_types = each_of<float, double, belay::bf16, belay::fp16>;
// Sizes of 1, 2, 4, 8 and 12 bytes; a type of 12 is no dtype.
struct twelve_bytes {
  std::uint32_t words[3];
};
using movable_types = each_of<float, double, belay::bf16, belay::fp16, belay::fp8_e4m3, belay::fp8_e5m2, std::int8_t,
                              std::int32_t, std::int64_t, std::uint8_t, twelve_bytes>;

inline std::uint64_t scrambled(int rank, std::size_t i) {
  std::uint64_t h = (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebULL;
  return h ^ (h >> 32);
}

// Numbers whose sums round and whose integers wrap, so that another order or another width is seen.
template <class T>
T value(int rank, std::size_t i) {
  const std::uint64_t h = scrambled(rank, i);
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(h);
  else
    return static_cast<T>(static_cast<float>(static_cast<std::int64_t>(h % 20001) - 10000) * 0.37F);
}
template <class T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = value<T>(rank, i);
  return out;
}

// Bytes without a meaning, of any type.
template <class T>
std::vector<T> pattern(int rank, std::size_t count) {
  std::vector<T> out(count);
  std::vector<std::byte> bytes(count * sizeof(T));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(scrambled(rank, i));
  if (count > 0) std::memcpy(static_cast<void*>(out.data()), bytes.data(), bytes.size());
  return out;
}

// ((x0 + x1) + x2) + ...; an average divides that; one rounding at the end.
template <class T, class Op>
T reduced(std::span<const T> contributions, Op) {
  using total_type = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
  const auto next = [](total_type total, total_type x) -> total_type {
    if constexpr (std::same_as<Op, belay::minimum_t> || std::same_as<Op, belay::maximum_t>) {
      if constexpr (std::is_floating_point_v<total_type>) {
        if (total != total || x != x) return std::numeric_limits<total_type>::quiet_NaN();
      }
      return std::same_as<Op, belay::minimum_t> ? std::min(total, x) : std::max(total, x);
    } else if constexpr (std::is_integral_v<total_type>) {  // modulo 2^64 is modulo any smaller power
      const auto a = static_cast<std::uint64_t>(total), b = static_cast<std::uint64_t>(x);
      return static_cast<total_type>(std::same_as<Op, belay::product_t> ? a * b : a + b);
    } else {
      return std::same_as<Op, belay::product_t> ? total * x : total + x;
    }
  };
  auto total = static_cast<total_type>(contributions[0]);
  for (const T& x : contributions.subspan(1)) total = next(total, static_cast<total_type>(x));
  if constexpr (std::same_as<Op, belay::average_t>) {
    if constexpr (std::same_as<T, std::uint64_t>)
      total /= contributions.size();
    else if constexpr (std::is_integral_v<T>)
      total = static_cast<T>(std::int64_t{total} / std::ssize(contributions));
    else
      total /= static_cast<total_type>(contributions.size());
  }
  return static_cast<T>(total);
}

template <class T, class Op>
std::vector<T> reduced(int ranks, std::size_t count, Op op) {
  std::vector<T> out(count), contributions(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < count; ++i) {
    for (int q = 0; q < ranks; ++q) contributions[static_cast<std::size_t>(q)] = value<T>(q, i);
    out[i] = reduced<T>(contributions, op);
  }
  return out;
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(std::span<const T>(a), std::span<const T>(b));
}

// Two buffers with the same bits, the second with `part` at `first`.
template <class T>
bool same_bits_with(const std::vector<T>& a, std::vector<T> b, std::size_t first, std::span<const T> part) {
  std::copy(part.begin(), part.end(), b.begin() + static_cast<std::ptrdiff_t>(first));
  return same_bits(a, b);
}

// Uneven on purpose, with an empty part.
inline std::vector<std::size_t> uneven(int ranks, std::size_t scale) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks));
  for (int q = 0; q < ranks; ++q)
    counts[static_cast<std::size_t>(q)] = static_cast<std::size_t>((q * 7 + 3) % 5) * scale;
  return counts;
}

inline bool all(const std::vector<bool>& results) {
  return std::all_of(results.begin(), results.end(), [](bool ok) { return ok; });
}

template <class T, class Op, class Group>
bool all_reduce_is_right(const Group& group, std::size_t count, Op op) {
  auto x = values<T>(group.rank(), count);
  group.all_reduce(std::span(x), op);
  return same_bits(x, reduced<T>(group.size(), count, op));
}

// A law of one rank on every rank of worlds of several sizes. Every rank returns whether it held.
template <class Backend, class Law>
bool holds_on_all(std::initializer_list<int> worlds, Law law) {
  bool ok = true;
  for (int ranks : worlds) ok = all(Backend::run(ranks, [&](auto& rank) { return law(rank.world()); })) && ok;
  return ok;
}

}  // namespace conformance
