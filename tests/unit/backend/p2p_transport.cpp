// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/p2p/p2p_transport.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/comm/symmetric.hpp"
#include "unit/backend/late_joiner.hpp"

using namespace std::chrono_literals;
using belay::p2p;

namespace {

std::vector<int> numbers(std::size_t count, int first) {
  std::vector<int> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

}  // namespace

TEST_CASE("a receiver that joins when a part of its message is on its way gets the rest, and the next message") {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{1024}, std::size_t{1025}, std::size_t{16 * 1024}, std::size_t{100'001}}) {
    CAPTURE(count);
    const late_joiner receiver(1, 1);
    const auto wrong = belay::host::processes{3, {.timeout = 20s}}.run([&](auto& rank) {
      const auto& world = rank.world();
      const auto big = numbers(count, 7), next = numbers(count + 3, 70);
      std::vector<int> got(count), got_next(count + 3);
      int token = 5;
      if (rank.number() == 0) {
        // In this order: when rank 2 is told that its token was taken, the first message to rank 1 has been posted.
        const p2p both[] = {p2p::send(1, std::span(big)), p2p::receive(2, std::span(&token, 1))};
        world.exchange(both);
        world.send(1, std::span(next));
        return 0;
      }
      if (rank.number() == 2) {
        world.send(0, std::span(&token, 1));
        receiver.let_join();
        return 0;
      }
      world.receive(0, std::span(got));
      world.receive(0, std::span(got_next));
      return got == big && got_next == next ? 0 : 1;
    });
    CHECK(wrong == std::vector<int>{0, 0, 0});
  }
}

TEST_CASE("what a rank sends to itself may overlap, in ordinary memory too") {
  for (const std::size_t count : {std::size_t{10}, std::size_t{1000}, std::size_t{30'000}}) {
    CAPTURE(count);
    const auto wrong = belay::host::processes{2, {.timeout = 20s}}.run([&](auto& rank) {
      int bad = 0;
      for (const bool forwards : {false, true}) {
        auto all = numbers(count + 5, 1);
        const std::span<int> low = std::span(all).first(count), high = std::span(all).last(count);
        const int me = rank.number();
        const p2p both[] = {p2p::send(me, forwards ? low : high), p2p::receive(me, forwards ? high : low)};
        rank.world().exchange(both);
        if (std::vector<int>(both[1].data == low.data() ? low.begin() : high.begin(),
                             both[1].data == low.data() ? low.end() : high.end()) != numbers(count, forwards ? 1 : 6)) {
          ++bad;
        }
      }
      return bad;
    });
    CHECK(wrong == std::vector<int>{0, 0});
  }
}

TEST_CASE("memory of a heap that a peer has given up can still be sent to it, and be reduced with its own") {
  for (const std::size_t count : {std::size_t{10}, std::size_t{1000}, std::size_t{30'000}}) {
    CAPTURE(count);
    const auto wrong = belay::host::processes{2, {.timeout = 20s}}.run([&](auto& rank) {
      const auto& world = rank.world();
      const int me = rank.number();
      std::optional<belay::symmetric_heap<belay::host::group>> given_up(
          std::in_place, world, belay::symmetric_heap_options{.bytes = 1 << 20});
      belay::symmetric_heap kept(world, {.bytes = 1 << 20});
      auto& mine = me == 0 ? *given_up : kept;
      const std::span<int> values(reinterpret_cast<int*>(mine.lease(count * sizeof(int), "values").local()), count);
      std::iota(values.begin(), values.end(), me);
      if (me == 1) given_up.reset();
      std::vector<int> got(count);
      int bad = 0;
      if (me == 0) world.send(1, values);
      if (me == 1) world.receive(0, std::span(got));
      if (me == 1 && got != numbers(count, 0)) ++bad;
      world.broadcast(me == 0 ? values : std::span(got), 0);
      world.all_reduce(values, belay::sum);
      for (std::size_t i = 0; i < count; ++i) bad += values[i] != static_cast<int>(2 * i + 1) ? 1 : 0;
      return bad;
    });
    CHECK(wrong == std::vector<int>{0, 0});
  }
}

TEST_CASE("a message that does not continue its transfer is a named error, and nothing is written") {
  using namespace belay::host;
  control_shape shape;
  shape.ranks = 2;
  shape.space = address_space::several;
  shape.group_bytes = group_layout::bytes_for(2);
  const int members[] = {0, 1};
  const transfer_step wrong[] = {{transfer_path::pieces, 400, 0, 4096},
                                 {transfer_path::pieces, 400, 200, 200},
                                 {transfer_path::cma, 400, 0, 4096},
                                 {transfer_path::mapped, 400, 0, 0},
                                 {static_cast<transfer_path>(9), 400, 0, 400}};
  for (const transfer_step& step : wrong) {
    CAPTURE(step.bytes);
    const memory_segment memory = memory_segment::create("test-control", control_block::bytes_for(shape));
    world_status world(control_block::make(memory.data(), shape));
    const address_map nothing(address_space::several);
    const group_layout group(world.shared().groups(), 2);
    p2p_transport receiver(world, nothing, members, belay::lane::caller, 0, 1, group);
    mailbox& box = group.mailbox_of(belay::lane::caller, 0, 1);
    box.step = step;
    box.flag.post();
    std::vector<std::byte> got(8192, std::byte{7});
    const p2p transfer = p2p::receive(0, std::span(got).first(400));
    const auto receive = [&] { receiver.run(std::span(&transfer, 1), 20s, belay::where::current()); };
    CHECK_THROWS_WITH_AS(receive(), doctest::Contains("of which 0 have come"), belay::comm_error);
    CHECK(got == std::vector<std::byte>(8192, std::byte{7}));
  }
}
