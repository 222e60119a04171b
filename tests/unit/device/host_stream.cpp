// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/host_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

using belay::host_stream;
using belay::stream_policy;

TEST_CASE("an immediate stream runs work on the calling thread, when it is given") {
  host_stream stream;
  std::thread::id runner;
  stream.run([&runner] { runner = std::this_thread::get_id(); });
  CHECK(runner == std::this_thread::get_id());
  CHECK(stream.immediate());
  CHECK(stream.record().ready());
}

TEST_CASE("a queued one runs it beside the caller; an immediate one that waits for it blocks") {
  host_stream queued({stream_policy::queued}), immediate;
  CHECK(!queued.immediate());
  std::atomic<bool> released{false};
  int value = 0;
  queued.run([&released] { released.wait(false); });
  queued.run([&value] { value = 3; });
  const belay::stream_event written = queued.record();
  CHECK(!written.ready());
  CHECK(!written.synchronize_until(std::chrono::steady_clock::now()));
  released = true;
  released.notify_all();
  immediate.wait(written);
  CHECK(value == 3);
}

TEST_CASE("an event whose work has failed throws the first cause at the host, and skips the work of a stream") {
  host_stream first({stream_policy::queued}), second({stream_policy::queued});
  int ran = 0;
  first.run([] { throw std::runtime_error("the cause"); });
  first.run([] { throw std::runtime_error("a later one"); });
  const belay::stream_event failed = first.record();
  second.wait(failed);
  second.run([&ran] { ++ran; });
  CHECK_THROWS_WITH(failed.synchronize(), "the cause");
  second.wait_until_idle();  // leaves it
  CHECK_THROWS_WITH(second.synchronize(), "the cause");
  CHECK(ran == 0);
  CHECK_THROWS_WITH(first.synchronize(), "the cause");
  first.synchronize();  // it has been told
}

TEST_CASE("what was recorded before a failure is reached") {
  host_stream stream({stream_policy::queued});
  stream.run([] {});
  const belay::stream_event before = stream.record();
  stream.run([] { throw std::runtime_error("later"); });
  stream.wait_until_idle();
  before.synchronize();
  CHECK_THROWS_WITH(stream.synchronize(), "later");
}
