// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/p2p/mailbox.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

using namespace belay::host;

namespace {

constexpr std::uint64_t room = 64;
constexpr std::uint64_t totals[] = {0, 1, 63, 64, 65, 128, 1000};
constexpr auto in_pieces = [] { return transfer_path::pieces; };
constexpr auto by_the_kernel = [] { return transfer_path::cma; };

}  // namespace

TEST_CASE("both ends count the same bytes, by every path, whatever a peer can do later") {
  for (const std::uint64_t total : totals) {
    for (const transfer_path path : {transfer_path::pieces, transfer_path::mapped, transfer_path::cma}) {
      CAPTURE(total);
      CAPTURE(static_cast<int>(path));
      transfer_end sender, receiver;
      for (int transfer = 0; transfer < 2; ++transfer) {
        std::uint64_t come = 0;
        for (bool over = false; !over;) {
          const transfer_step step = sender.next(total, room, [&] { return come == 0 ? path : transfer_path::mapped; });
          CHECK(step.path == path);
          CHECK(step.offset == come);
          REQUIRE(receiver.continues(step, total, room));
          come += step.bytes;
          over = sender.advance(step);
          CHECK(receiver.advance(step) == over);
        }
        CHECK(come == total);
        CHECK(receiver.moved() == 0);
      }
    }
  }
}

TEST_CASE("a message that does not continue its transfer is seen, and none moves a receiver beyond the end") {
  constexpr std::uint64_t total = 1000, huge = std::numeric_limits<std::uint64_t>::max();
  transfer_end sender, receiver;
  const transfer_step first = sender.next(total, room, in_pieces);
  REQUIRE(receiver.continues(first, total, room));
  static_cast<void>(receiver.advance(first));
  static_cast<void>(sender.advance(first));
  const transfer_step right = sender.next(total, room, by_the_kernel);
  CHECK(receiver.continues(right, total, room));
  const transfer_step wrong[] = {
      first,  // again
      {transfer_path::pieces, total, room, 0},
      {transfer_path::pieces, total, room, room - 1},      // less than a piece, before the end
      {transfer_path::pieces, total, room, total - room},  // more than a piece
      {transfer_path::pieces, total, room, huge},
      {transfer_path::pieces, total, huge, room},
      {transfer_path::pieces, total + 1, room, room},   // of another transfer
      {transfer_path::cma, total, room, total},         // the whole: what a receiver once added
      {transfer_path::cma, total, room, total - room},  // the rest, by another path
      {transfer_path::mapped, total, 0, total},
      {static_cast<transfer_path>(7), total, room, room},
  };
  for (const transfer_step& step : wrong) {
    CAPTURE(static_cast<int>(step.path));
    CAPTURE(step.offset);
    CAPTURE(step.bytes);
    CHECK_FALSE(receiver.continues(step, total, room));
  }
}
