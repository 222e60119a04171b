// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/stream_event.hpp"

#include <doctest/doctest.h>

using belay::stream_clock;
using belay::stream_kind;

TEST_CASE("a clock covers what it was joined with, and no later place") {
  stream_clock compute(stream_kind::compute, 1), copies(stream_kind::copy, 1);
  const stream_clock used(stream_kind::compute, compute.place(stream_kind::compute));
  CHECK(compute.covers(used));
  CHECK(!copies.covers(used));
  copies.join(compute.mark(stream_kind::compute));
  CHECK(copies.covers(used));
  CHECK(!copies.covers(stream_clock(stream_kind::compute, compute.place(stream_kind::compute))));
  CHECK(!compute.covers(stream_clock(stream_kind::copy, copies.place(stream_kind::copy))));
}

TEST_CASE("what an event comes after, who waits for it comes after too") {
  stream_clock compute(stream_kind::compute, 1), sent(stream_kind::communication, 1), copies(stream_kind::copy, 1);
  const stream_clock used = compute.mark(stream_kind::compute);
  sent.join(used);
  copies.join(sent.mark(stream_kind::communication));
  CHECK(copies.covers(used));
}

TEST_CASE("work of one stream comes after all that this has got, and after no more of others") {
  const stream_clock ready(stream_kind::compute, 3);
  const stream_clock user = ready.within(stream_kind::communication);
  CHECK(user.covers(stream_clock(stream_kind::communication, 1000)));
  CHECK(user.covers(stream_clock(stream_kind::compute, 3)));
  CHECK(!user.covers(stream_clock(stream_kind::compute, 4)));
}

TEST_CASE("everything comes after nothing, and nothing after what has no end") {
  CHECK(stream_clock().covers({}));
  CHECK(!stream_clock(stream_kind::compute, 1000).covers(stream_clock::unknown()));
}
