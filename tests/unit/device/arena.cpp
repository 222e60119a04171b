// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

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
