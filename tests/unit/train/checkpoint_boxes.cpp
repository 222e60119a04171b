// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a range of a box and a range of its tensor have in common, against the elements counted one by one.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "belay/train/checkpoint.hpp"

namespace {

using belay::box_runs;
using belay::tensor_box;

// The tensor's element of each element of the box.
std::vector<std::uint64_t> places(const std::vector<std::uint64_t>& shape, const tensor_box& box) {
  std::vector<std::uint64_t> out;
  std::uint64_t size = 1;
  for (const std::uint64_t extent : shape) size *= extent;
  for (std::uint64_t i = 0; i < size; ++i) {
    bool inside = true;
    for (std::uint64_t d = shape.size(), rest = i; d-- > 0; rest /= shape[d]) {
      const std::uint64_t at = rest % shape[d];
      inside = inside && at >= box.sides[d].first && at < box.sides[d].end;
    }
    if (inside) out.push_back(i);
  }
  return out;
}

void check(const std::vector<std::uint64_t>& shape, const tensor_box& box) {
  const std::vector<std::uint64_t> expected = places(shape, box);
  REQUIRE(expected.size() == box.elements());
  const box_runs runs(shape, box);
  std::uint64_t size = 1;
  for (const std::uint64_t extent : shape) size *= extent;
  for (std::uint64_t first = 0; first <= expected.size(); ++first)
    for (std::uint64_t end = first; end <= expected.size(); end += 2)
      for (std::uint64_t from = 0; from <= size; from += 3)
        for (std::uint64_t to = from; to <= size; to += 5) {
          std::vector<std::uint64_t> wanted, found;
          for (std::uint64_t i = first; i < end; ++i)
            if (expected[i] >= from && expected[i] < to) wanted.push_back(expected[i]);
          runs.each_common(first, end, from, to, [&](std::uint64_t element, std::uint64_t in_box, std::uint64_t count) {
            for (std::uint64_t i = 0; i < count; ++i) {
              REQUIRE(expected[in_box + i] == element + i);
              found.push_back(element + i);
            }
          });
          REQUIRE(found == wanted);
        }
}

}  // namespace

TEST_CASE("boxes of any dimensions, cut along any of them") {
  check({}, {});
  check({7}, {{{0, 7}}});
  check({7}, {{{2, 5}}});
  check({4, 3}, {{{1, 3}, {0, 3}}});
  check({4, 3}, {{{0, 4}, {1, 2}}});
  check({3, 4, 2}, {{{1, 3}, {1, 3}, {0, 2}}});
  check({3, 4, 2}, {{{0, 3}, {1, 4}, {1, 2}}});
  check({3, 4}, {{{1, 1}, {0, 4}}});
  check({0, 4}, {{{0, 0}, {0, 4}}});
}
