// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/tier_file.hpp"

#include <doctest/doctest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "belay/device/copy_stream.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/streamed_file.hpp"
#include "support/tier_file.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

using namespace tier_files;
using belay::tier_file;

TEST_CASE_TEMPLATE("what was written is read, of any number of blocks", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  for (const char* directory : {"/tmp", "/dev/shm"}) {
    const std::size_t unit = belay::medium_of(directory).alignment;
    const std::size_t longest = std::size_t{3} << 20;
    tier_file<typename Way::calls> file(directory, unit * 8 + longest, 2, Way::access);
    CHECK(file.access().way == Way::access);
    CHECK(file.size_bytes() == unit * 8 + longest);
    CHECK(file.alignment() == unit);
    for (const std::size_t bytes : {unit, 3 * unit, 7 * unit, 129 * unit, longest}) {
      const blocks from(bytes, static_cast<unsigned>(bytes)), to(bytes, 1);
      const std::size_t offset = file.size_bytes() - bytes;
      write(file, offset, from);
      read_blocks(file, offset, to);
      CHECK(from == to);
    }
    const blocks untouched(5 * unit, 9), zeros(5 * unit);
    std::ranges::fill(zeros.all(), std::byte{0});
    read_blocks(file, 0, untouched);
    CHECK(untouched == zeros);
  }
}

TEST_CASE_TEMPLATE("a thousand transfers in three slots, more handles than slots", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  constexpr std::size_t places = 16, hands = 5;
  tier_file<typename Way::calls> file("/tmp", places * 4096, 3, Way::access);
  struct hand {
    blocks memory{4096};
    std::size_t place = places;
    unsigned expected = 0;  // of a read
    belay::file_transfer transfer;
  };
  std::array<hand, hands> all;
  std::array<unsigned, places> content{};  // the seed of each; 0: never written
  std::size_t wrong = 0, reads = 0;
  const auto finish = [&](hand& one) {
    one.transfer.wait();
    one.place = places;
    if (one.expected == 0) return;
    ++reads;
    const blocks right(4096, one.expected);
    if (!(right == one.memory)) ++wrong;
  };
  unsigned random = 7;
  for (unsigned i = 1; i <= 1000; ++i) {
    random = random * 1664525U + 1013904223U;
    const std::size_t place = (random >> 8U) % places;
    for (hand& each : all)
      if (each.place == place) finish(each);
    hand& one = all[i % hands];
    finish(one);
    one.place = place;
    one.expected = (random >> 20U) % 2 == 0 ? content[place] : 0;
    if (one.expected != 0) {
      one.transfer = file.start_read(place * 4096, one.memory.all());
    } else {
      one.memory.fill(content[place] = i);
      one.transfer = file.start_write(place * 4096, one.memory.all());
    }
  }
  for (hand& each : all) finish(each);
  CHECK(wrong == 0);
  CHECK(reads > 100);
  CHECK(now.most_under_way <= 3);
}

TEST_CASE_TEMPLATE("threads share a file, each waits for its own", Way, by_thread, by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  tier_file<typename Way::calls> file("/tmp", std::size_t{4} * 8 * 4096, 2, Way::access);
  std::array<int, 4> wrong{};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&file, &wrong, t] {
      for (unsigned round = 1; round <= 25; ++round) {
        const blocks first(4096, round), second(3 * 4096, round + 50);
        const blocks first_read(4096), second_read(3 * 4096);
        const std::size_t base = t * 8 * 4096;
        belay::file_transfer one = file.start_write(base, first.all());
        belay::file_transfer other = file.start_write(base + 4096, second.all());
        other.wait();
        one.wait();
        one = file.start_read(base, first_read.all());
        other = file.start_read(base + 4096, second_read.all());
        while (!one.ready()) std::this_thread::yield();
        one.wait();
        other.wait();
        if (!(first == first_read) || !(second == second_read)) ++wrong[t];
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(wrong == std::array<int, 4>{});
  CHECK(!now.asked_by_two);
}

TEST_CASE_TEMPLATE("a transfer goes on when the thread that started it has ended", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  const std::size_t bytes = std::size_t{1} << 20;
  tier_file<typename Way::calls> file("/tmp", 4 * bytes, 4, Way::access);
  for (unsigned round = 0; round < 5; ++round) {
    const std::array<blocks, 4> from{blocks(bytes, round), blocks(bytes, round + 10), blocks(bytes, round + 20),
                                     blocks(bytes, round + 30)};
    std::array<belay::file_transfer, 4> written;
    std::thread([&] {
      for (std::size_t i = 0; i < 4; ++i) written[i] = file.start_write(i * bytes, from[i].all());
    }).join();
    for (belay::file_transfer& each : written) each.wait();
    const blocks to(bytes);
    for (std::size_t i = 0; i < 4; ++i) {
      read_blocks(file, i * bytes, to);
      CHECK(to == from[i]);
    }
  }
}

TEST_CASE("one transfer more than there are slots waits, and nothing grows") {
  const calm before;
  tier_file<by_thread::calls> file("/tmp", 4 * 4096, 3, belay::file_access::thread);
  const std::array<blocks, 4> from{blocks(4096, 1), blocks(4096, 2), blocks(4096, 3), blocks(4096, 4)};
  now.closed_gate = true;
  std::array<belay::file_transfer, 4> written;
  for (std::size_t i = 0; i < 3; ++i) written[i] = file.start_write(i * 4096, from[i].all());
  CHECK(file.waits_for_slot() == 0);
  std::atomic<bool> started{false};
  std::thread fourth([&] {
    written[3] = file.start_write(std::size_t{3} * 4096, from[3].all());
    started = true;
  });
  while (file.waits_for_slot() == 0) std::this_thread::yield();
  CHECK(!started);
  CHECK(!written[0].ready());
  now.closed_gate = false;
  now.closed_gate.notify_all();
  fourth.join();
  for (auto& each : written) each.wait();
  CHECK(file.waits_for_slot() == 1);
  const blocks to(4096);
  for (std::size_t i = 0; i < 4; ++i) {
    read_blocks(file, i * 4096, to);
    CHECK(to == from[i]);
  }
}

TEST_CASE("a ring that is full ends a call before it begins another") {
  const calm before;
  tier_file<by_backward_ring::calls> file("/tmp", 8 * 4096, 3, belay::file_access::ring);
  const blocks from(4096, 5);
  std::array<belay::file_transfer, 8> written;
  for (std::size_t i = 0; i < 8; ++i) written[i] = file.start_write(i * 4096, from.all());
  CHECK(file.waits_for_slot() == 5);
  CHECK(now.most_under_way == 3);
}

TEST_CASE_TEMPLATE("transfers allocate nothing", Way, by_thread, by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  tier_file<typename Way::calls> file("/tmp", 8 * 4096, 2, Way::access);
  const blocks memory(4096, 3);
  const std::uint64_t allocations = tools::heap_allocations();
  for (std::size_t i = 0; i < 100; ++i) {
    belay::file_transfer first = file.start_write(i % 4 * 4096, memory.all());
    belay::file_transfer second = file.start_write((4 + i % 4) * 4096, memory.all());
    belay::file_transfer third = file.start_write((4 + (i + 1) % 4) * 4096, memory.all());
    belay::file_transfer moved = std::move(first);
    moved.wait();
    second = std::move(third);
    second.wait();
  }
  CHECK(tools::heap_allocations() == allocations);
}

TEST_CASE_TEMPLATE("a handle may be moved, dropped, and outlive its file", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  const blocks from(2 * 4096, 8), to(2 * 4096);
  belay::file_transfer last;
  CHECK(last.ready());
  last.wait();
  {
    tier_file<typename Way::calls> first("/tmp", 2 * 4096, 3, Way::access);
    tier_file<typename Way::calls> file(std::move(first));
    {
      std::vector<belay::file_transfer> some;
      some.push_back(file.start_write(0, from.all().first(4096)));
      some.push_back(file.start_write(4096, from.all().last(4096)));  // the first one moves while it is under way
    }
    last = file.start_read(0, to.all());
  }
  CHECK(last.ready());
  last.wait();
  CHECK(from == to);
}

TEST_CASE_TEMPLATE("no bytes are transferred at once, without a slot", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  tier_file<typename Way::calls> file("/tmp", 4096, 1, Way::access);
  now.bad_offset = 4096;
  now.result = -EIO;
  belay::file_transfer none = file.start_read(4096, {});
  CHECK(none.ready());
  none.wait();
  tier_file<typename Way::calls> empty("/tmp", 0, 1, Way::access);
  empty.start_write(0, {}).wait();
}

TEST_CASE("a slip in offset, length or address is told before anything moves") {
  const calm before;
  now.alignment = std::size_t{512};
  tier_file<by_thread::calls> file("/tmp", 8 * 512, 1);
  const blocks memory(8 * 512, 1);
  const std::span<std::byte> all = memory.all();
  CHECK_THROWS_WITH_AS(
      static_cast<void>(file.start_read(100, all.first(512))),
      doctest::Contains("read of 512 bytes from byte 100 of a tier file on: offset, length and address "
                        "(0 beyond a block) are multiples of 512"),
      belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(file.start_write(512, all.first(513))),
                       doctest::Contains("write of 513 bytes from byte 512"), belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(file.start_write(0, all.subspan(8, 512))),
                       doctest::Contains("(8 beyond a block)"), belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(file.start_write(512, all)), doctest::Contains("it has 4096"),
                       belay::usage_error);
  CHECK_THROWS_AS(static_cast<void>(file.start_write(~std::uint64_t{511}, all.first(512))), belay::usage_error);
  CHECK_THROWS_WITH_AS(tier_file<by_thread::calls>("/tmp", 1000, 1),
                       doctest::Contains("a tier file of 1000 bytes: this is no multiple of 512"), belay::usage_error);
  CHECK_THROWS_WITH_AS(tier_file<by_thread::calls>("/tmp", 512, 0), doctest::Contains("from 1 to 1024"),
                       belay::usage_error);
  CHECK_THROWS_AS(tier_file<by_thread::calls>("/tmp", 512, 1025), belay::usage_error);
  CHECK(now.at_gate == 0);
}

TEST_CASE("how a file is accessed is said, with reasons") {
  const calm before;
  const belay::file_medium disk = belay::medium_of("/tmp");
  CHECK(disk.direct == disk.why_buffered.empty());
  const tier_file<> file("/tmp", 0, 1);
  CHECK(file.access().direct == disk.direct);
  CHECK((file.access().way == belay::file_access::ring) == file.access().why_thread.empty());
  CHECK(tier_file<>("/tmp", 0, 1, belay::file_access::thread).access().why_thread.empty());

  const tier_file<> memory("/dev/shm", 4096, 1);
  CHECK(!memory.access().direct);
  CHECK(memory.access().in_memory);
  CHECK(memory.access().why_buffered == "the directory is in memory (tmpfs)");
  CHECK(memory.alignment() == 4096);

  now.ring = "not today";
  const tier_file<by_kernel_ring::calls> fallen_back("/tmp", 0, 1);
  CHECK(fallen_back.access().way == belay::file_access::thread);
  CHECK(fallen_back.access().why_thread == "not today");
  CHECK_THROWS_WITH_AS(tier_file<by_kernel_ring::calls>("/tmp", 0, 1, belay::file_access::ring),
                       doctest::Contains("/tmp: tier file: cannot start: not today"), belay::tier_file_error);
}

TEST_CASE_TEMPLATE("bytes stream through a ring to and from any place, as if the file were memory", Way, by_thread,
                   by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  belay::copy_stream<belay::host_stream> copies;
  std::mt19937 random(7);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{90000}}) {
    const belay::streamed_layout sizes(4096, 8192);  // more pieces than slots, where it is long
    const blocks ring(sizes.ring_bytes(bytes));
    belay::streamed_file<typename Way::calls> file({"/tmp", 8192, Way::access}, bytes, sizes, ring.all());
    std::vector<std::byte> expected(bytes), from(bytes), to(bytes);
    std::size_t wrong = 0;
    for (int i = 0; i < 300; ++i) {
      const std::size_t first = random() % bytes, count = random() % (bytes - first + 1);
      const auto part = std::span(expected).subspan(first, count);
      switch (i % 4) {
        case 0:
        case 1:
          for (std::byte& each : from) each = static_cast<std::byte>(random());
          file.write(copies, first, from.data(), count);
          std::copy_n(from.data(), count, part.data());
          break;
        case 2:
          file.read(copies, to.data(), first, count);
          wrong += std::ranges::equal(part, std::span(to).first(count)) ? 0U : 1U;
          break;
        case 3:
          file.change(
              first, count,
              [&](std::size_t begin, std::span<std::byte> piece) {
                wrong += std::ranges::equal(part.subspan(begin, piece.size()), piece) ? 0U : 1U;
                for (std::byte& each : piece) each ^= std::byte{0x55};
              },
              belay::where::current());
          for (std::byte& each : part) each ^= std::byte{0x55};
      }
    }
    CHECK(wrong == 0);
    file.settle(belay::where::current());
  }
}
