// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/slot_ring.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "belay/device/copy_stream.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/stream_arbiter.hpp"

using belay::slot_ring;
using belay::stream_policy;
using copies_type = belay::copy_stream<belay::host_stream>;

namespace {

// When a slot is given back.
enum class free_at { copied, computed };

// Numbers that are computed in the slots of a ring of two and copied away.
std::vector<int> copied_away(std::uint64_t seed, free_at when) {
  const auto arbiter = std::make_shared<belay::stream_arbiter>(seed, 1);
  const belay::stream_arbiter::host here(*arbiter);
  const belay::stream_settings how{stream_policy::adversarial, arbiter};
  belay::host_stream compute(how);
  copies_type copies(how, 0);
  alignas(64) std::array<std::byte, 128> memory{};
  slot_ring ring(memory, 2, 64, belay::slot_contents::poisoned);
  std::vector<int> saved(6, -1);
  for (int i = 0; i < 6; ++i) {
    auto* const number = reinterpret_cast<int*>(ring.acquire(compute).data());
    compute.run([number, i] { *number = 10 + i; });
    copies.wait(compute.record());
    copies.copy(&saved[static_cast<std::size_t>(i)], number, sizeof(int));
    ring.release(when == free_at::copied ? copies.record() : compute.record());
  }
  compute.synchronize();
  copies.synchronize();
  return saved;
}
// Adds 1 to numbers that come through a ring of two slots, and go back.
std::vector<int> through_and_back(std::uint64_t seed, std::size_t count) {
  const auto arbiter = std::make_shared<belay::stream_arbiter>(seed, 1);
  const belay::stream_arbiter::host here(*arbiter);
  const belay::stream_settings how{stream_policy::adversarial, arbiter};
  belay::host_stream compute(how);
  copies_type copies(how, 0);
  alignas(64) std::array<std::byte, 128> memory{};
  slot_ring ring(memory, 2, 64, belay::slot_contents::poisoned);
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (int& each : numbers) {
    auto* const number = reinterpret_cast<int*>(ring.acquire(copies).data());
    copies.copy(number, &each, sizeof each);
    copies.let_wait(compute, copies.record());
    compute.run([number] { ++*number; });
    copies.wait(compute.record());
    copies.copy(&each, number, sizeof each);
    ring.release(copies.record());
  }
  compute.synchronize();
  copies.synchronize();
  return numbers;
}

}  // namespace

TEST_CASE("slots come in turn, of one size, and as many as there are can be held") {
  alignas(64) std::array<std::byte, 400> memory{};
  slot_ring ring(memory, 3);
  CHECK(ring.slot_count() == 3);
  CHECK(ring.slot_bytes() == 128);
  belay::host_stream stream;
  std::array<std::byte*, 4> got{};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(ring.next() == i);
    got[i] = ring.acquire(stream).data();
    CHECK(got[i] == memory.data() + 128 * i);
  }
  CHECK(ring.held() == 3);
  CHECK_THROWS_WITH_AS(static_cast<void>(ring.acquire(stream)), doctest::Contains("all 3 slots of a ring are held"),
                       belay::usage_error);
  ring.release(stream.record());
  CHECK(ring.acquire(stream).data() == got[0]);
  for (int i = 0; i < 3; ++i) ring.release({});
  CHECK_THROWS_WITH_AS(ring.release({}), doctest::Contains("was not taken"), belay::usage_error);
  CHECK(ring.held() == 0);
  CHECK_THROWS_AS(static_cast<void>(slot_ring().acquire(stream)), belay::usage_error);
}

TEST_CASE("the stream waits for a slot that is still used, and the host does not") {
  alignas(64) std::array<std::byte, 64> memory{};
  slot_ring ring(memory, 1);
  belay::host_stream compute({stream_policy::queued});
  copies_type copies({stream_policy::queued}, 0);
  std::atomic<bool> released{false};
  const auto first = ring.acquire(copies);
  compute.run([&released, at = first.data()] {
    released.wait(false);
    *at = std::byte{1};
  });
  ring.release(compute.record());
  const auto second = ring.acquire(copies);  // the host goes on
  std::byte seen{0};
  copies.copy(&seen, second.data(), 1);
  released = true;
  released.notify_all();
  copies.synchronize();
  CHECK(seen == std::byte{1});
  ring.release({});
}

TEST_CASE("a slot is free when it was copied away, under every seed; at the event of its computation it is too early") {
  const std::vector<int> right{10, 11, 12, 13, 14, 15};
  for (std::uint64_t seed = 0; seed < 20; ++seed) CHECK(copied_away(seed, free_at::copied) == right);
  CHECK(copied_away(0, free_at::computed) != right);  // seed 0: copies are last
}

TEST_CASE("numbers go through a ring and back, more and fewer than it has slots") {
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const std::size_t count : {0U, 1U, 2U, 7U}) {
      const std::vector<int> got = through_and_back(seed, count);
      for (std::size_t i = 0; i < count; ++i) CHECK(got[i] == static_cast<int>(i) + 1);
    }
}

TEST_CASE("a ring that was cut off is whole again") {
  alignas(64) std::array<std::byte, 128> memory{};
  slot_ring ring(memory, 2);
  belay::host_stream stream;
  static_cast<void>(ring.acquire(stream));
  static_cast<void>(ring.acquire(stream));
  ring.reset();
  CHECK(ring.held() == 0);
  CHECK(ring.acquire(stream).data() == memory.data());
  ring.release({});
  ring.reset();
  CHECK(ring.next() == 0);
}
