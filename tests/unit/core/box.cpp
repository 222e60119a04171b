// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What boxes, and ranges of a box and of its tensor, have in common, against the elements counted one by one.
#include "belay/core/box.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using belay::box_runs;
using belay::box_side;
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

namespace {

// Calls `visit(shape, a, b)` with boxes of every tensor of up to three dimensions of 0 to 3 entries.
template <class Visit>
void each_pair(Visit&& visit) {
  std::vector<box_side> sides;
  for (std::size_t first = 0; first <= 3; ++first)
    for (std::size_t end = first; end <= 3; ++end) sides.push_back({first, end});
  std::size_t next = 0;
  const auto some = [&] { return sides[(next += 7) % sides.size()]; };  // 7 and 10 have no common factor
  visit(tensor_box{}, tensor_box{});
  for (const box_side& one : sides)
    for (const box_side& other : sides) {
      visit(tensor_box{{one}}, tensor_box{{other}});
      for (std::size_t i = 0; i < 10; ++i) {
        visit(tensor_box{{some(), one}}, tensor_box{{some(), other}});
        visit(tensor_box{{one, some()}}, tensor_box{{other, some()}});
        visit(tensor_box{{one, some(), some()}}, tensor_box{{other, some(), some()}});
        visit(tensor_box{{some(), one, some()}}, tensor_box{{some(), other, some()}});
        ++next;
      }
    }
}

}  // namespace

TEST_CASE("what two boxes have in common is in both, and each of its elements is copied once") {
  each_pair([](const tensor_box& a, const tensor_box& b) {
    const std::vector<std::size_t> shape(a.sides.size(), 3);
    const std::vector<std::uint64_t> in_a = places(shape, a), in_b = places(shape, b);
    const tensor_box both = belay::intersection(a, b);
    CHECK(both == belay::intersection(both, a));
    CHECK(both.elements() == belay::intersection(b, a).elements());
    std::vector<std::uint64_t> copied(in_b.size(), 99), expected(in_b.size(), 99);
    std::size_t common = 0;
    for (std::size_t i = 0; i < in_b.size(); ++i)
      for (const std::uint64_t each : in_a)
        if (each == in_b[i]) expected[i] = each, ++common;
    CHECK(both.elements() == common);
    CHECK(places(shape, both).size() == common);
    belay::copy_common(a, in_a.data(), b, copied.data());
    CHECK(copied == expected);
    std::size_t runs = 0;
    belay::each_common_run(a, b, [&](std::size_t, std::size_t, std::size_t count) {
      CHECK(count > 0);
      ++runs;
    });
    if (!both.sides.empty()) CHECK(runs <= common);
    if (a == b && common > 0) CHECK(runs == 1);
  });
}

TEST_CASE("a box lies in another where all its sides do, also empty ones at the end") {
  const tensor_box whole = belay::whole_box(std::vector<std::size_t>{3, 4});
  CHECK(belay::lies_in(whole, whole));
  CHECK(belay::lies_in(tensor_box{{{1, 2}, {4, 4}}}, whole));
  CHECK_FALSE(belay::lies_in(tensor_box{{{1, 2}, {4, 5}}}, whole));
  CHECK_FALSE(belay::lies_in(tensor_box{{{1, 2}, {5, 5}}}, whole));
  CHECK_FALSE(belay::lies_in(tensor_box{{{2, 1}, {0, 4}}}, whole));
  CHECK_FALSE(belay::lies_in(tensor_box{{{0, 3}}}, whole));
  CHECK(tensor_box{{{2, 4}, {0, 64}}}.text() == "[2:4, 0:64]");
}
