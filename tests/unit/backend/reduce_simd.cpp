// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/reduce_simd.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

using belay::memory_access;
using belay::reduce_two;

namespace {

// Numbers of all sizes, and what is not one: -0, infinities, NaN.
template <class T>
std::vector<T> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<T> out(count);
  for (T& x : out) {
    seed = seed * 1664525U + 1013904223U;
    x = static_cast<T>(static_cast<std::int32_t>(seed) >> (seed % 29U));
    if constexpr (std::is_floating_point_v<T>) {
      x /= static_cast<T>(977);
      const std::uint32_t special = (seed >> 8) % 23U;
      if (special == 0) x = std::numeric_limits<T>::quiet_NaN();
      if (special == 1) x = std::numeric_limits<T>::infinity();
      if (special == 2) x = -std::numeric_limits<T>::infinity();
      if (special == 3) x = -T{0};
      if (special == 4) x = T{0};
    }
  }
  return out;
}

template <class Op, class T>
std::vector<T> expected(const std::vector<T>& first, const std::vector<T>& second) {
  std::vector<T> out(first.size());
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(first.data()),
                                      reinterpret_cast<const std::byte*>(second.data())};
  std::byte* const destination = reinterpret_cast<std::byte*>(out.data());
  belay::reduce_elements<Op, T>(sources, std::span(&destination, 1), out.size());
  return out;
}

template <class T>
bool same_bits(const T* a, const std::vector<T>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(T)) == 0;
}

template <class Op, class T>
void check_all_ways(std::size_t count, std::size_t shift, std::size_t other_shift, memory_access by) {
  CAPTURE(count);
  CAPTURE(shift);
  const std::vector<T> first = numbers<T>(count, 1), second = numbers<T>(count, 2);
  const std::vector<T> right = expected<Op>(first, second);
  const T mark = static_cast<T>(77);

  std::vector<T> one(count + shift + 64, mark), other(count + other_shift + 64, mark);
  reduce_two<Op, T>(one.data() + shift, other.data() + other_shift, first.data(), second.data(), count, by, 1);
  REQUIRE(same_bits(one.data() + shift, right));
  REQUIRE(same_bits(other.data() + other_shift, right));
  REQUIRE(one[shift + count] == mark);  // nothing beyond the end
  REQUIRE(other[other_shift + count] == mark);
  if (shift > 0) REQUIRE(one[shift - 1] == mark);

  std::vector<T> alone(count + shift + 64, mark);
  reduce_two<Op, T>(alone.data() + shift, nullptr, first.data(), second.data(), count, by, 1);
  REQUIRE(same_bits(alone.data() + shift, right));
  REQUIRE(alone[shift + count] == mark);

  // In place on both sides, as all_reduce does.
  std::vector<T> mine = first, theirs = second;
  reduce_two<Op, T>(mine.data(), theirs.data(), mine.data(), theirs.data(), count, by, 1);
  REQUIRE(same_bits(mine.data(), right));
  REQUIRE(same_bits(theirs.data(), right));
}

template <class Op, class T>
void check_operation() {
  for (const memory_access by :
       {memory_access::automatic, memory_access::temporal, memory_access::prefetch, memory_access::prefetch_exclusive,
        memory_access::non_temporal, memory_access::non_temporal_remote}) {
    for (std::size_t count = 0; count < 150; ++count) check_all_ways<Op, T>(count, count % 19, count % 5, by);
    for (std::size_t shift = 0; shift < 20; ++shift) check_all_ways<Op, T>(4099, shift, shift, by);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("two sources are reduced to the bits of the block-wise reduction", T, float, double, int,
                   std::uint8_t) {
  check_operation<belay::sum_t, T>();
  check_operation<belay::product_t, T>();
  check_operation<belay::minimum_t, T>();
  check_operation<belay::maximum_t, T>();
  check_operation<belay::average_t, T>();
}

TEST_CASE("formats of 16 bits go the block-wise way") {
  const std::vector<belay::bf16> first(100, belay::bf16(1.5F)), second(100, belay::bf16(2.25F));
  std::vector<belay::bf16> out(100);
  reduce_two<belay::sum_t, belay::bf16>(out.data(), nullptr, first.data(), second.data(), 100);
  CHECK(same_bits(out.data(), expected<belay::sum_t>(first, second)));
}
