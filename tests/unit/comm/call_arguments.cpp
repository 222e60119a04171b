// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/call_arguments.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace {

using counts = std::vector<std::size_t>;
const belay::where here{"call.cpp", "", 3};

// What a call is refused with; empty where it is not.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const belay::usage_error& slip) {
    return slip.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("all_to_all: equal parts, all in place or apart") {
  std::vector<int> x(12), y(12), other(11);
  const auto refused = [&](std::span<const int> in, std::span<int> out, int ranks) {
    return refusal([&] { belay::check_all_to_all(in, out, ranks, here); });
  };
  CHECK(refused(x, y, 4).empty());
  CHECK(refused(x, x, 4).empty());
  CHECK(refused({}, {}, 4).empty());
  CHECK(contains(refused(x, y, 5), "12 elements do not divide among 5 ranks; use all_to_all_v"));
  CHECK(contains(refused(x, other, 1), "the output holds 11 elements; this call needs 12"));
  CHECK(contains(refused(std::span(x).first(8), std::span(x).last(8), 4), "overlap other than in place"));
}

TEST_CASE("all_to_all_v: counts for all ranks, packed buffers, in place only where they are equal") {
  std::vector<int> x(6), y(6);
  const counts three{1, 2, 3}, other{3, 2, 1}, two{3, 3};
  const auto refused = [&](std::span<const int> in, const counts& send, std::span<int> out, const counts& receive) {
    return refusal([&] {
      belay::check_all_to_all_v(in, std::span<const std::size_t>(send), out, std::span<const std::size_t>(receive), 3, here);
    });
  };
  CHECK(refused(x, three, y, other).empty());
  CHECK(refused(x, three, x, three).empty());
  CHECK(contains(refused(x, three, x, other), "overlap"));
  CHECK(contains(refused(x, two, y, three), "2 counts for a group of 3 ranks"));
  CHECK(contains(refused(std::span(x).first(5), three, y, three), "the input holds 5 elements; this call needs 6"));
}

TEST_CASE("roots and members") {
  CHECK(refusal([] { belay::check_root(2, 3, "broadcast", here); }).empty());
  CHECK(contains(refusal([] { belay::check_root(3, 3, "broadcast", here); }), "root 3 is no rank of a group of 3"));
  CHECK(contains(refusal([] { belay::check_root(-1, 3, "broadcast", here); }), "root -1"));
  const auto refused = [](const std::vector<int>& members) {
    return refusal([&] { belay::check_members(members, 4, 2, here); });
  };
  CHECK(refused({0, 2, 3}).empty());
  CHECK(contains(refused({}), "at least one rank"));
  CHECK(contains(refused({2, 4}), "outside of the world of 4"));
  CHECK(contains(refused({-1, 2}), "outside of the world of 4"));
  CHECK(contains(refused({2, 2}), "twice"));
  CHECK(contains(refused({0, 1}), "rank 2 makes a group that it is not in"));
}

TEST_CASE("who has the most pairs that do not fit is to blame, and its first pair is told") {
  // sends[i][j] is what i sends to j; all expect 1 of everybody.
  std::vector<counts> sends(4, counts(4, 1)), expects = sends;
  const auto find = [&] {
    return belay::find_unequal_pairs(
        4, [&](int from, int to) { return sends[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)]; },
        [&](int from, int to) { return expects[static_cast<std::size_t>(to)][static_cast<std::size_t>(from)]; });
  };
  CHECK_FALSE(find());
  sends[2] = {1, 5, 1, 5};
  auto found = find();
  REQUIRE(found);
  CHECK(found->culprits == std::vector<int>{2});
  CHECK(found->from == 2);
  CHECK(found->to == 1);
  sends[2] = {1, 1, 1, 5};  // one pair: nobody knows which of the two is wrong
  found = find();
  REQUIRE(found);
  CHECK(found->culprits == std::vector<int>{2, 3});
  sends[2] = {1, 1, 5, 1};  // to itself
  found = find();
  REQUIRE(found);
  CHECK(found->culprits == std::vector<int>{2});
  CHECK(found->from == 2);
  CHECK(found->to == 2);
}
