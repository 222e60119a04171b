// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/copy_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "belay/device/host_stream.hpp"
#include "belay/device/stream_arbiter.hpp"

using belay::host_stream;
using belay::stream_policy;
using copies_type = belay::copy_stream<host_stream>;

namespace {

// Which of the two events there is.
enum class orders { both, computed_first, copied_first };

// What a compute stream reads of what was copied from what it has computed.
int read_back(std::uint64_t seed, orders events) {
  const auto arbiter = std::make_shared<belay::stream_arbiter>(seed, 1);
  const belay::stream_arbiter::host here(*arbiter);
  const belay::stream_settings how{stream_policy::adversarial, arbiter};
  host_stream compute(how);
  copies_type copies(how, 0);
  int computed = 0, copied = -1, seen = -2;
  compute.run([&computed] { computed = 7; });
  if (events != orders::copied_first) copies.wait(compute.record());
  copies.copy(&copied, &computed, sizeof copied);
  if (events != orders::computed_first) copies.let_wait(compute, copies.record());
  compute.run([&seen, &copied] { seen = copied; });
  compute.synchronize();
  copies.synchronize();
  return seen;
}

}  // namespace

TEST_CASE("copies are in one order; on an immediate stream at once, and nothing is hidden") {
  copies_type copies;
  std::vector<int> from{1, 2, 3}, to(3, 0), last(3, 0);
  copies.copy(to.data(), from.data(), 3 * sizeof(int));
  CHECK(to == from);
  copies.copy(last.data(), to.data(), 3 * sizeof(int));
  CHECK(last == from);
  host_stream compute;
  copies.let_wait(compute, copies.record());
  CHECK(copies.times().copied == 0);
  CHECK(copies.times().hidden_share() == 0);
}

TEST_CASE("a queued copy is beside the host, and what waits for it is timed") {
  copies_type copies({stream_policy::queued}, 0);
  host_stream compute({stream_policy::queued});
  std::atomic<bool> released{false};
  int value = 0, seen = 0;
  const int seven = 7;
  copies.run([&released] { released.wait(false); });
  copies.copy(&value, &seven, sizeof value);
  const belay::stream_event copied = copies.record();
  CHECK(!copied.ready());
  copies.let_wait(compute, copied);
  compute.run([&] { seen = value; });
  released = true;
  released.notify_all();
  compute.synchronize();
  CHECK(seen == 7);
  copies.synchronize();
  CHECK(copies.times().copied > 0);
  CHECK(copies.times().waited > 0);
}

TEST_CASE("what nothing stands still for is hidden") {
  CHECK(belay::copy_times{100, 10}.hidden_share() == doctest::Approx(0.9));
  CHECK(belay::copy_times{100, 0}.hidden_share() == 1);
  CHECK(belay::copy_times{100, 100}.hidden_share() == 0);
  CHECK(belay::copy_times{100, 200}.hidden_share() == 0);  // what waited was kept by something else too
  CHECK(belay::copy_times{0, 0}.hidden_share() == 0);
}

TEST_CASE("events order copies and kernels under every seed; without one of them some seed copies or reads too early") {
  bool too_early_copy = false, too_early_read = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CHECK(read_back(seed, orders::both) == 7);
    too_early_copy = too_early_copy || read_back(seed, orders::copied_first) != 7;
    too_early_read = too_early_read || read_back(seed, orders::computed_first) != 7;
  }
  CHECK(too_early_copy);
  CHECK(too_early_read);
  CHECK(read_back(0, orders::computed_first) == -1);  // seed 0: copies are last
}

TEST_CASE("a copy that fails is told by who waits for it, and by the stream itself") {
  int ran = 0;
  copies_type copies({stream_policy::queued}, 0);
  host_stream compute({stream_policy::queued});
  copies.run([] { throw std::runtime_error("the medium"); });
  copies.let_wait(compute, copies.record());
  compute.run([&ran] { ++ran; });
  CHECK_THROWS_WITH(compute.synchronize(), "the medium");
  CHECK(ran == 0);
  copies.wait_until_idle();
  CHECK_THROWS_WITH(copies.synchronize(), "the medium");
}

TEST_CASE("copies that were cancelled do not happen") {
  std::atomic<bool> released{false};  // outlives the streams, whose threads use it
  int value = 0;
  const int seven = 7;
  copies_type copies({stream_policy::queued}, 0);
  host_stream never({stream_policy::queued});
  never.run([&released] { released.wait(false); });
  copies.wait(never.record());
  copies.copy(&value, &seven, sizeof value);
  copies.cancel();
  CHECK(value == 0);
  released = true;
  released.notify_all();
}
