// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "belay/device.hpp"

namespace {

struct held {
  std::size_t offset, size;
  belay::lease_chain chain;
};

}  // namespace

TEST_CASE("leases never overlap, are aligned, and a release makes their bytes free again") {
  belay::tier_meter meter;
  belay::offset_allocator offsets(1 << 16, 256, &meter);
  std::mt19937 random(7);
  std::vector<held> live;
  std::size_t bytes = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (live.size() < 60 && random() % 2 == 0) {
      held one{0, 1 + random() % 900, {}};
      const auto offset = offsets.allocate(one.size, one.chain);
      if (!offset) continue;
      one.offset = *offset;
      CHECK(one.offset % belay::lease_alignment == 0);
      bool apart = one.offset + one.size <= offsets.capacity_bytes();
      for (const held& other : live)
        apart = apart && (one.offset + one.size <= other.offset || other.offset + other.size <= one.offset);
      REQUIRE(apart);
      bytes += belay::leased_size(one.size);
      live.push_back(one);
    } else if (!live.empty()) {
      const std::size_t which = random() % live.size();
      bytes -= belay::leased_size(live[which].size);
      offsets.release(live[which].chain);
      live[which] = live.back();
      live.pop_back();
    }
    REQUIRE(offsets.live_bytes() == bytes);
    REQUIRE(meter.live_bytes() == bytes);
    REQUIRE(offsets.lease_count() == live.size());
  }
  for (held& one : live) offsets.release(one.chain);
  belay::lease_chain everything;
  CHECK(offsets.allocate(1 << 16, everything) == 0);  // all gaps have grown together
}

TEST_CASE("the same requests give the same offsets, and the extent is what a second region needs") {
  const auto play = [](belay::offset_allocator& offsets) {
    std::mt19937 random(3);
    std::vector<belay::lease_chain> chains(16);
    std::vector<std::size_t> given;
    for (int i = 0; i < 500; ++i) {
      belay::lease_chain& chain = chains[random() % chains.size()];
      if (!chain.empty()) offsets.release(chain);
      given.push_back(*offsets.allocate(random() % 5000, chain));
    }
    return given;
  };
  belay::offset_allocator rehearsed(std::size_t{1} << 40, 64);
  const auto planned = play(rehearsed);
  belay::offset_allocator exact(rehearsed.extent_bytes(), 64);
  CHECK(play(exact) == planned);
  CHECK(exact.peak_bytes() == rehearsed.peak_bytes());
}

TEST_CASE("a lease beyond the capacity is a budget_error with the bytes, and takes nothing") {
  belay::tier_meter meter;
  belay::arena<belay::host_pages> arena{belay::tier::device, belay::host_pages{1024}, 16, meter};
  belay::lease_chain chain;
  const auto all = arena.lease<float>(belay::extents<2>{16, 16}, chain);
  all(15, 15) = 1;
  try {
    static_cast<void>(arena.lease<float>(belay::extents<1>{1}, chain));
    FAIL("a full arena gave a lease");
  } catch (const belay::budget_error& error) {
    CHECK(error.requested_bytes() == 4);
    CHECK(error.available_bytes() == 0);
  }
  CHECK(meter.live_bytes() == 1024);
  arena.release(chain);
  CHECK(meter.live_bytes() == 0);
  CHECK(meter.peak_bytes() == 1024);
}

TEST_CASE("a chain releases all its leases, and one lease can move to another chain") {
  belay::tier_meter meter;
  belay::arena<belay::host_pages> arena{belay::tier::device, belay::host_pages{4096}, 16, meter};
  belay::lease_chain one, other;
  std::byte* first = arena.lease_bytes(64, one);
  std::byte* second = arena.lease_bytes(64, one);
  CHECK(arena.transfer(second, one, other));
  CHECK(!arena.transfer(second, one, other));
  arena.release(one);
  CHECK(meter.live_bytes() == 64);
  CHECK(arena.lease_bytes(64, one) == first);
  arena.reclaim();
  CHECK(meter.live_bytes() == 0);
}

TEST_CASE("nothing is leased for zero bytes") {
  belay::offset_allocator offsets(64, 4);
  belay::lease_chain chain;
  CHECK(offsets.allocate(0, chain) == 0);
  CHECK(chain.empty());
  CHECK(offsets.live_bytes() == 0);
}

TEST_CASE("bytes near the end of the address space are refused, not rounded up to none") {
  belay::tier_meter meter;
  belay::offset_allocator offsets(1 << 16, 4, &meter);
  for (std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, SIZE_MAX - 64, SIZE_MAX / 2 + 1}) {
    CAPTURE(bytes);
    CHECK_FALSE(offsets.allocate(bytes).has_value());
    CHECK(belay::leased_size(bytes) > belay::largest_size);
  }
  CHECK(offsets.live_bytes() == 0);
  CHECK(offsets.allocate(1 << 16).has_value());

  belay::offset_allocator endless(SIZE_MAX, 4);
  CHECK_FALSE(endless.allocate(SIZE_MAX).has_value());
  CHECK_THROWS_AS(belay::offset_allocator(1 << 16, SIZE_MAX / 2), belay::usage_error);  // its nodes would be none
  CHECK_THROWS_AS(belay::offset_allocator(1 << 16, std::size_t{1} << 31), belay::usage_error);

  belay::arena<belay::host_pages> memory{belay::tier::device, belay::host_pages{1 << 16}, 4, meter};
  belay::lease_chain chain;
  CHECK_THROWS_AS(static_cast<void>(memory.lease_bytes(SIZE_MAX, chain)), belay::budget_error);
  const belay::extents<2> shape{std::size_t{1} << 32, std::size_t{1} << 32};
  CHECK_THROWS_WITH_AS(static_cast<void>(memory.lease<float>(shape, chain)),
                       doctest::Contains("device tier: 4294967296x4294967296 elements of 4 bytes are more"),
                       belay::size_error);
  CHECK(chain.empty());
  CHECK_THROWS_AS(belay::host_pages{SIZE_MAX}, belay::budget_error);
}

namespace {

using belay::stream_kind;

struct streamed {
  belay::tier_meter meter;
  belay::arena<belay::host_pages> memory{belay::tier::device, belay::host_pages{1 << 16}, 32, meter};
};

// What a communication of a rank gives: an event of its own, after `ready`.
struct communications {
  belay::stream_clock clock{stream_kind::communication, 1};
  belay::stream_event start(const belay::stream_event& ready) {
    clock.join(ready.clock());
    return belay::stream_event().at(clock.mark(stream_kind::communication));
  }
};

}  // namespace

TEST_CASE("a freed range is free for its own stream at once, for another one after an event recorded since") {
  streamed s;
  belay::host_stream compute;
  s.memory.follow(compute.clock());
  belay::lease_chain first, second, third;
  const auto used = s.memory.lease<float>(belay::extents<1>{64}, first);
  const belay::stream_event early = compute.record();
  s.memory.release(first);
  const auto elsewhere = s.memory.lease_for<float>(stream_kind::communication, early, belay::extents<1>{64}, second);
  CHECK(elsewhere.data() != used.data());
  CHECK(s.memory.lease<float>(belay::extents<1>{64}, first).data() == used.data());
  s.memory.release(first);
  const belay::stream_event late = compute.record();
  CHECK(s.memory.lease_for<float>(stream_kind::communication, late, belay::extents<1>{64}, third).data() ==
        used.data());
}

TEST_CASE("what a communication uses is free for the stream that has queued a wait for it") {
  streamed s;
  belay::host_stream compute;
  communications started;
  s.memory.follow(compute.clock());
  belay::lease_chain first, second;
  const auto sent = s.memory.lease<float>(belay::extents<1>{64}, first);
  const belay::stream_event over = started.start(compute.record());
  s.memory.used_until(over, sent.data(), 4);  // a part of it is a use
  s.memory.release(first);
  const auto elsewhere = s.memory.lease<float>(belay::extents<1>{64}, second);
  CHECK(elsewhere.data() != sent.data());
  CHECK(s.memory.lease_for<float>(stream_kind::communication, compute.record(), belay::extents<1>{64}, first).data() ==
        sent.data());  // its own stream
  s.memory.used_until(over, sent.data(), 256);
  s.memory.release(first);
  SUBCASE("a stream waits") { compute.wait(over); }
  SUBCASE("the host waits") { s.memory.host_waited(over); }
  CHECK(s.memory.lease<float>(belay::extents<1>{64}, first).data() == sent.data());
}

TEST_CASE("a range whose use has no end goes to no other stream, until all is reclaimed") {
  streamed s;
  belay::host_stream compute;
  s.memory.follow(compute.clock());
  belay::lease_chain chain;
  const auto received =
      s.memory.lease_for<float>(stream_kind::communication, compute.record(), belay::extents<1>{64}, chain);
  s.memory.release(chain);
  CHECK(s.memory.lease<float>(belay::extents<1>{64}, chain).data() != received.data());
  s.memory.reclaim();
  chain = {};
  CHECK(s.memory.lease<float>(belay::extents<1>{64}, chain).data() == received.data());
}

TEST_CASE("bytes of other memory have no uses here, and a stream without a clock gets what no other has used") {
  streamed s;
  belay::host_stream compute;
  float outside = 0;
  belay::lease_chain first, second;
  s.memory.used_until(compute.record(), &outside, sizeof outside);
  const auto used = s.memory.lease<float>(belay::extents<1>{64}, first);
  s.memory.release(first);
  CHECK(s.memory.lease_for<float>(stream_kind::copy, {}, belay::extents<1>{64}, second).data() != used.data());
}

TEST_CASE("what is in use does not take its neighbours with it, and is one range with them afterwards") {
  belay::offset_allocator offsets(4096, 8);
  const belay::stream_clock copying(stream_kind::copy, 5), early(stream_kind::compute, 1),
      later(stream_kind::compute, 2);
  belay::stream_clock now = later;
  belay::lease_chain low, high, wide, chain;
  CHECK(offsets.allocate(64, low) == 0);
  CHECK(offsets.allocate(64, high) == 64);
  const auto copied = [&](std::size_t, std::size_t) { return copying; };
  offsets.release(low, copied, now);
  offsets.release(high, now);
  CHECK(offsets.allocate(128, chain, now) == 64);   // with what nobody has used
  CHECK(offsets.allocate(64, wide, early) == 192);  // what was used before is left
  offsets.release(chain, now);
  CHECK(offsets.allocate(64, chain, copying) == 0);
  offsets.release(chain, copied, now);
  now.join(copying);
  CHECK(offsets.allocate(192, chain, now) == 0);
  offsets.release(chain, now);
  offsets.release(wide, now);
  CHECK(offsets.lease_count() == 0);
  CHECK(offsets.allocate(4096, chain, now) == 0);
  CHECK(!offsets.allocate(64, wide, now));
}

TEST_CASE("ranges are where the rehearsal has found them, whatever the policy of the streams") {
  const auto play = [](auto& compute) {
    streamed s;
    communications started;
    s.memory.follow(compute.clock());
    std::mt19937 random(5);
    std::vector<belay::lease_chain> chains(8);
    std::vector<std::ptrdiff_t> given;
    std::vector<belay::stream_event> events{compute.record()};
    for (int i = 0; i < 300; ++i) {
      belay::lease_chain& chain = chains[random() % chains.size()];
      if (!chain.empty()) s.memory.release(chain);
      const belay::extents<1> shape{1 + random() % 40};
      const auto some = events[random() % events.size()];
      const auto at = random() % 2 == 0 ? s.memory.lease<float>(shape, chain)
                                        : s.memory.lease_for<float>(stream_kind::communication, some, shape, chain);
      given.push_back(reinterpret_cast<const std::byte*>(at.data()) - s.memory.memory().data());
      if (random() % 2 == 0) events.push_back(compute.record());
      const belay::stream_event over = started.start(some);
      s.memory.used_until(over, at.data(), at.size() * sizeof(float));
      if (random() % 2 == 0) compute.wait(over);
    }
    return given;
  };
  belay::host_stream immediate, queued({belay::stream_policy::queued}), rehearsed({belay::stream_policy::rehearsal});
  const auto planned = play(rehearsed);
  CHECK(play(immediate) == planned);
  CHECK(play(queued) == planned);
}
