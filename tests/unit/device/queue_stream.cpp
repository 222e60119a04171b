// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/queue_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

using belay::queue_stream;

TEST_CASE("work runs in order, on another thread, while the caller goes on") {
  queue_stream stream;
  std::atomic<bool> released{false};
  std::vector<int> order;
  std::thread::id runner;
  stream.run([&released] { released.wait(false); });
  stream.run([&order, &runner] {
    order.push_back(1);
    runner = std::this_thread::get_id();
  });
  stream.run([&order] { order.push_back(2); });
  const auto end = stream.record();
  CHECK(!end.ready());  // nothing has run, and the caller is here
  released = true;
  released.notify_all();
  stream.synchronize();
  CHECK(end.ready());
  CHECK(order == std::vector{1, 2});
  CHECK(runner != std::this_thread::get_id());
}

TEST_CASE("an event orders two streams") {
  queue_stream first, second;
  std::atomic<bool> released{false};
  int value = 0;
  int seen = -1;
  first.run([&released] { released.wait(false); });
  first.run([&value] { value = 7; });
  second.wait(first.record());
  second.run([&value, &seen] { seen = value; });
  CHECK(!second.record().ready());
  released = true;
  released.notify_all();
  second.synchronize();
  CHECK(seen == 7);
}

TEST_CASE("work that comes after a wait that was skipped or cut short begins after what was to be waited for") {
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    std::atomic<bool> released{false};
    int value = 0, skipped = 0, seen = -1;
    queue_stream first, second;
    first.run([&released] { released.wait(false); });
    first.run([&value] { value = 7; });
    if (fails) second.run([] { throw std::runtime_error("the first work"); });
    second.wait(first.record());
    second.run([&skipped] { ++skipped; });
    if (fails) {
      CHECK_THROWS_WITH(second.synchronize(), "the first work");
    } else {
      while (second.record().source()->pace().now != belay::stream_pace::activity::waits) std::this_thread::yield();
      second.cancel();
    }
    second.run([&value, &seen] { seen = value; });
    CHECK(!second.record().ready());
    released = true;
    released.notify_all();
    second.synchronize();
    CHECK(skipped == 0);
    CHECK(seen == 7);
  }
}

TEST_CASE("more work than the ring holds waits for room") {
  queue_stream stream;
  std::size_t count = 0;
  for (std::size_t i = 0; i < 10 * queue_stream::capacity + 1; ++i) stream.run([&count] { ++count; });
  stream.synchronize();
  CHECK(count == 10 * queue_stream::capacity + 1);
}

TEST_CASE("the first exception stops what follows and comes out of synchronize") {
  queue_stream stream;
  int ran = 0;
  stream.run([] { throw std::runtime_error("first"); });
  stream.run([&ran] { ++ran; });
  CHECK_THROWS_WITH(stream.synchronize(), "first");
  CHECK(ran == 0);
  stream.run([&ran] { ++ran; });
  stream.synchronize();
  CHECK(ran == 1);
}

TEST_CASE("an event outlives its stream, and destruction runs what is queued") {
  int ran = 0;
  belay::stream_event end;
  CHECK(end.ready());
  {
    queue_stream stream;
    for (int i = 0; i < 100; ++i) stream.run([&ran] { ++ran; });
    end = stream.record();
  }
  CHECK(end.ready());
  CHECK(ran == 100);
}
