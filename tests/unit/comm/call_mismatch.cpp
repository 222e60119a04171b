// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/call_mismatch.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using counts = std::vector<std::size_t>;

// Calls of four ranks, which are the ranks 10 to 13 of their world.
struct four_calls {
  std::vector<counts> sends = std::vector<counts>(4, counts(4, 1)), receives = sends;
  std::vector<std::string> texts = std::vector<std::string>(4, "op");
  std::optional<belay::mismatch_report> refused = {};

  [[nodiscard]] static int size() { return 4; }
  [[nodiscard]] static int world_rank(int q) { return 10 + q; }
  [[nodiscard]] std::span<const std::size_t> send_counts_of(int q) const { return sends[static_cast<std::size_t>(q)]; }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int q) const {
    return receives[static_cast<std::size_t>(q)];
  }
  [[nodiscard]] std::string call_text(int q) const { return texts[static_cast<std::size_t>(q)]; }
  [[nodiscard]] static std::string site_of(int q) { return "train.cpp:" + std::to_string(q); }
  void refuse(const belay::mismatch_report& found) { refused = found; }
};

}  // namespace

TEST_CASE("the ranks with the most pairs that do not fit are the culprits, and the first such pair is named") {
  four_calls fits;
  belay::expect_equal_pairs(fits);
  CHECK_FALSE(fits.refused);

  four_calls two_wrong;  // sends[i][j] is what i sends to j; all expect 1 of every rank
  two_wrong.sends[2] = {1, 5, 1, 5};
  belay::expect_equal_pairs(two_wrong);
  REQUIRE(two_wrong.refused);
  CHECK(two_wrong.refused->culprits == std::vector<int>{12});
  CHECK(two_wrong.refused->there == "train.cpp:2");
  CHECK(two_wrong.refused->message ==
        "rank 12 sends 5 elements to rank 11 at train.cpp:2, which expects 1 at train.cpp:1");

  four_calls one_wrong;  // either of the two may be wrong
  one_wrong.sends[2] = {1, 1, 1, 5};
  belay::expect_equal_pairs(one_wrong);
  REQUIRE(one_wrong.refused);
  CHECK(one_wrong.refused->culprits == std::vector<int>{12, 13});

  four_calls to_itself;
  to_itself.sends[2] = {1, 1, 5, 1};
  belay::expect_equal_pairs(to_itself);
  REQUIRE(to_itself.refused);
  CHECK(to_itself.refused->culprits == std::vector<int>{12});
  CHECK(to_itself.refused->message.starts_with("rank 12 sends 5 elements to rank 12"));
}

TEST_CASE("count vectors that differ name the first place, and what each rank has there") {
  four_calls same;
  belay::expect_same_counts(same);
  CHECK_FALSE(same.refused);

  four_calls other;
  other.sends[3] = {1, 1, 2, 0};
  belay::expect_same_counts(other);
  REQUIRE(other.refused);
  CHECK(other.refused->culprits == std::vector<int>{13});
  CHECK(other.refused->there == "train.cpp:3");
  CHECK(other.refused->message ==
        "rank 10 calls op, 1 of them for rank 12 at train.cpp:0, rank 11 calls op, 1 of them for rank 12 at "
        "train.cpp:1, rank 12 calls op, 1 of them for rank 12 at train.cpp:2, rank 13 calls op, 2 of them for rank 12 "
        "at train.cpp:3");
}

TEST_CASE("ranks that call the same from the same line are named together; of halves all are culprits") {
  std::vector<std::string> texts{"a", "a", "b", "a"};
  const auto alike = [&](int a, int b) {
    return texts[static_cast<std::size_t>(a)] == texts[static_cast<std::size_t>(b)];
  };
  const auto call = [&](int q) { return belay::rank_call{q, texts[static_cast<std::size_t>(q)], "here"}; };
  const belay::mismatch_report found = belay::difference_among(4, alike, call);
  CHECK(found.culprits == std::vector<int>{2});
  CHECK(found.message == "ranks 0, 1, 3 call a at here, rank 2 calls b at here");
  CHECK(found.there == "here");
  texts[3] = "b";
  const belay::mismatch_report halves = belay::difference_among(4, alike, call);
  CHECK(halves.culprits == std::vector<int>{0, 1, 2, 3});
  CHECK(halves.there.empty());
}
