// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/call_arguments.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace {

using belay::operation;
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
    return refusal(
        [&] { belay::check_call(belay::op_call::move<operation::all_to_all, int>(in, out, here), 0, ranks); });
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
      belay::check_call(
          belay::op_call::move<operation::all_to_all_v, int>(in, out, here).divided(send).received(receive), 0, 3);
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

TEST_CASE("counts that wrap round, and the rank whose count is too much") {
  const counts wrapping{SIZE_MAX, 1, 6}, late{2, std::size_t{1} << 61, std::size_t{1} << 61}, fine{1, 2, 3};
  std::vector<int> six(6);
  const auto refused = [&](const counts& by, std::span<int> buffer) {
    return refusal([&] { belay::check_counts(buffer.size(), sizeof(int), by, 3, "op", "op: the buffer", here); });
  };
  CHECK(refused(fine, six).empty());
  CHECK(contains(refused(fine, std::span(six).first(5)), "op: the buffer holds 5 elements; this call needs 6"));
  CHECK(contains(refused({1, 5}, six), "2 counts for a group of 3 ranks"));
  CHECK(contains(
      refused(wrapping, six),
      "call.cpp:3: belay: op: the counts up to that of rank 0, which is 18446744073709551615 elements of 4 bytes, "
      "are together more than any memory holds"));
  CHECK(contains(refused(late, six), "up to that of rank 1, which is 2305843009213693952 elements"));
  CHECK(contains(refusal([&] { belay::check_length(4, belay::all_parts(SIZE_MAX / 2, 4), "op: the output", here); }),
                 "op: the output holds 4 elements; this call needs more than any memory holds"));
}

TEST_CASE("transfers: peers of the group, bytes that are a number") {
  using belay::p2p;
  int word[4] = {};
  const std::span<int> words(word);
  std::vector<p2p> list{p2p::send(0, words), p2p::receive(2, words)};
  const auto refused = [&] { return refusal([&] { belay::check_call(belay::op_call::exchange(list, here), 0, 3); }); };
  CHECK(refused().empty());
  CHECK(belay::total_bytes(list) == 32);
  list.push_back(p2p::send(1, std::span(word, (std::size_t{1} << 62) + 1)));  // whose bytes are 4 in 64 bits
  CHECK(
      contains(refused(),
               "exchange: 18446744073709551615 bytes with rank 1 are, with those before, more than any memory holds"));
  list.back() = p2p::send(3, words);
  CHECK(contains(refused(), "peer 3 is no rank of a group of 3"));
}

TEST_CASE("what each operation asks of its buffers, on every rank") {
  std::vector<int> x(12), y(12);
  const std::span<const int> in = x;
  const std::span<int> out = y;
  const auto refused = [](const belay::op_call& call, int rank) {
    return refusal([&] { belay::check_call(call, rank, 3); });
  };
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    const auto own = static_cast<std::size_t>(rank) * 4;
    using belay::op_call;
    CHECK(refused(op_call::reduce<operation::all_reduce, belay::sum_t, int>(in, out, here), rank).empty());
    CHECK(contains(refused(op_call::reduce<operation::all_reduce, belay::sum_t, int>(in, out.first(11), here), rank),
                   "all_reduce: the output holds 11 elements; this call needs 12"));
    // In place is this rank's own part, and no other.
    CHECK(refused(op_call::move<operation::all_gather, int>(in.subspan(own, 4), x, here), rank).empty());
    CHECK(contains(refused(op_call::move<operation::all_gather, int>(in.subspan((own + 4) % 12, 4), x, here), rank),
                   "all_gather: input and output overlap"));
    CHECK(refused(op_call::reduce<operation::reduce_scatter, belay::sum_t, int>(in, std::span(x).subspan(own, 4), here),
                  rank)
              .empty());
    CHECK(contains(refused(op_call::reduce<operation::reduce_scatter, belay::sum_t, int>(
                               in, std::span(x).subspan((own + 4) % 12, 4), here),
                           rank),
                   "reduce_scatter: input and output overlap"));
    // A buffer that only the root has is asked of the root alone.
    const std::string gathered = refused(op_call::move<operation::gather, int>(in.first(4), {}, here, 1), rank);
    CHECK(gathered.empty() == (rank != 1));
    const std::string scattered = refused(op_call::move<operation::scatter, int>({}, out.first(4), here, 1), rank);
    CHECK(scattered.empty() == (rank != 1));
    const std::string reduced = refused(op_call::reduce<operation::reduce, belay::sum_t, int>(in, {}, here, 1), rank);
    CHECK(reduced.empty() == (rank != 1));
    CHECK(contains(refused(op_call::move<operation::broadcast, int>(in, y, here, 3), rank), "root 3 is no rank"));
    const std::span<int> too_long(y.data(), SIZE_MAX / 4);
    CHECK(contains(refused(op_call::move<operation::broadcast, int>(too_long, too_long, here, 0), rank),
                   "broadcast: a buffer of 4611686018427387903 elements of 4 bytes is more than any memory holds"));
  }
}
