// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/view.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <type_traits>
#include <vector>

using namespace belay;

TEST_CASE("elements lie in row-major order, the last index fastest") {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const view<int, 3> cube(data.data(), {2, 3, 4});
  CHECK(cube.size() == 24);
  CHECK(cube.size_bytes() == 24 * sizeof(int));
  CHECK(cube(0, 0, 1) == 1);
  CHECK(cube(0, 1, 0) == 4);
  CHECK(cube(1, 2, 3) == 23);
  cube(1, 0, 2) = -1;
  CHECK(data[14] == -1);
}

TEST_CASE("an index of the first axis gives the part with one axis less") {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const view<int, 3> cube(data.data(), {2, 3, 4});
  CHECK(cube[1].data() == data.data() + 12);
  CHECK(cube[1].shape() == extents<2>{3, 4});
  CHECK(cube[1][2][3] == 23);
}

TEST_CASE("a range of rows keeps the other extents") {
  std::vector<int> data(24);
  const view<int, 3> cube(data.data(), {4, 3, 2});
  const auto part = cube.rows(1, 2);
  CHECK(part.data() == data.data() + 6);
  CHECK(part.shape() == extents<3>{2, 3, 2});
  CHECK(cube.rows(4, 0).size() == 0);
  CHECK(cube.rows(0, 4).data() == data.data());
}

TEST_CASE("zero extents and zero axes count right") {
  CHECK(view<int, 2>(nullptr, {0, 7}).size() == 0);
  CHECK(view<int, 2>(nullptr, {7, 0}).flat().empty());
  CHECK(view<int, 2>{}.size() == 0);
  CHECK(element_count(extents<0>{}) == 1);
  int one = 5;
  CHECK(view<int, 0>(&one, {})() == 5);
}

TEST_CASE("a mutable view is a constant one, never the other way round") {
  static_assert(std::is_convertible_v<view<int, 2>, view<const int, 2>>);
  static_assert(!std::is_convertible_v<view<const int, 2>, view<int, 2>>);
  static_assert(!std::is_convertible_v<view<int, 2>, view<const long, 2>>);
  static_assert(!std::is_convertible_v<view<int, 2>, view<const int, 1>>);
  std::vector<int> data = {1, 2, 3, 4, 5, 6};
  const view<const int, 2> seen = view<int, 2>(data.data(), {2, 3});
  CHECK(seen(1, 1) == 5);
  CHECK(seen.flat().size() == 6);
}

TEST_CASE("a shape whose elements wrap round has more than any memory holds, not few") {
  constexpr std::size_t half = std::size_t{1} << 32;
  int one = 1;
  const view<int, 3> huge(&one, {half, half, 4});  // 2^66, which is 0 in 64 bits
  CHECK(huge.size() > largest_size);
  CHECK(huge.size_bytes() > largest_size);
  CHECK(huge.flat().size() > largest_size);
  const view<int, 2> wide(&one, {half, half / 4});  // 2^62 elements, whose bytes are 0 in 64 bits
  CHECK(wide.size() == half * (half / 4));
  CHECK(wide.size_bytes() > largest_size);
  CHECK(view<int, 3>(nullptr, {half, half, 0}).size() == 0);
  const auto bytes = [&] {
    return tensor_bytes<int>(
        wide.shape(), [] { return std::string("x"); }, where::current());
  };
  CHECK_THROWS_WITH_AS(static_cast<void>(bytes()),
                       doctest::Contains("x: 4294967296x1073741824 elements of 4 bytes are more than any memory holds"),
                       size_error);
}
