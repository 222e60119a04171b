// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every communicator does besides the reductions and the moves of all ranks, written once: transfers
// between pairs, barriers, started operations, groups. A backend is a type with `run(ranks, body)` and
// `run(ranks, timeout, body)`, where body(rank&) returns bool; both give the bodies' results by rank. A body may run in
// another process: it takes what it captures along and brings nothing back but its result. `run_failing(ranks, body)`
// is for bodies of which one throws: `ends{returned, error}`, false for those that did not return true, and what a
// caller of run would have been thrown.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

TEST_CASE_TEMPLATE_DEFINE("exchange completes rings, several transfers a pair, and transfers to oneself", Backend,
                          conf_exchange) {
  using namespace conformance;
  using belay::p2p;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      const int me = world.rank();
      const int next = (me + 1) % ranks;
      const int previous = (me + ranks - 1) % ranks;
      bool ok = true;
      for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{50'001}}) {
        // Both directions, two forward ones whose order matters, and one to itself.
        const auto a = values<float>(me, n), b = values<float>(me + 100, n + 1), self = values<float>(me + 200, 5);
        std::vector<float> got_a(n), got_b(n + 1), got_back(n), got_self(5);
        const p2p transfers[] = {
            p2p::receive(previous, std::span(got_a), 1),
            p2p::receive(previous, std::span(got_b), 2),
            p2p::send(next, std::span(a), 1),
            p2p::send(next, std::span(b), 2),
            p2p::send(previous, std::span(a), 3),
            p2p::receive(next, std::span(got_back), 3),
            p2p::send(me, std::span(self), 4),
            p2p::receive(me, std::span(got_self), 4),
        };
        world.exchange(transfers);
        ok = ok && same_bits(got_a, values<float>(previous, n)) &&
             same_bits(got_b, values<float>(previous + 100, n + 1)) && same_bits(got_back, values<float>(next, n)) &&
             same_bits(got_self, self);
      }
      // Only some ranks take part.
      if (ranks > 1 && me < 2) {
        int token = me == 0 ? 42 : 0;
        const p2p one = me == 0 ? p2p::send(1, std::span(&token, 1)) : p2p::receive(0, std::span(&token, 1));
        world.exchange(std::span(&one, 1));
        ok = ok && token == 42;
      }
      world.exchange({});
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("send and receive hand a token around, and meet what others exchange", Backend, conf_send) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({2, 3, 4}, [](const auto& world) {
    const int me = world.rank(), ranks = world.size();
    const int next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
    bool ok = true;
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1001}}) {
      auto x = pattern<belay::fp8_e5m2>(me, n);  // ends as rank 0's on all ranks
      if (me > 0) world.receive(previous, std::span(x), 7);
      world.send(next, std::span<const belay::fp8_e5m2>(x), 7);
      if (me == 0) world.receive(previous, std::span(x), 7);
      ok = same_bits(x, pattern<belay::fp8_e5m2>(0, n)) && ok;
    }
    // The other side may be part of an exchange; a call matches one of its transfers.
    std::vector<int> two{2 * me, 2 * me + 1};
    if (me == 0) {
      world.send(1, std::span(two).first(1));
      world.send(1, std::span(two).last(1), 1);
    } else if (me == 1) {
      const belay::p2p both[] = {belay::p2p::receive(0, std::span(two).last(1)),
                                 belay::p2p::receive(0, std::span(two).first(1), 1)};
      world.exchange(both);
      ok = two == std::vector<int>{1, 0} && ok;
    }
    return ok;
  }));
}

TEST_CASE_TEMPLATE_DEFINE("nobody passes a barrier before everybody has come", Backend, conf_barrier) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      bool ok = true;
      bool stores_to_peers = false;
      if constexpr (requires { world.traits(); })
        stores_to_peers = world.traits().addresses_peers;
      else
        stores_to_peers = belay::directly_addressable<std::remove_cvref_t<decltype(world)>>;
      if (stores_to_peers) {
        if constexpr (belay::directly_addressable<std::remove_cvref_t<decltype(world)>>) {
          auto memory = world.make_symmetric(sizeof(int));
          const auto cell = [&](int q) { return reinterpret_cast<int*>(memory.at(q)); };
          for (int round = 1; round <= 200; ++round) {
            *cell(world.rank()) = round;
            world.barrier();
            for (int q = 0; q < ranks; ++q) ok = ok && *cell(q) == round;
            world.barrier();
          }
        }
      } else {  // the clock is one for all processes of a machine
        const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
        for (int round = 1; round <= 200; ++round) {
          auto last_entered = now();
          world.barrier();
          auto first_left = now();
          world.all_reduce(std::span(&last_entered, 1), belay::maximum);
          world.all_reduce(std::span(&first_left, 1), belay::minimum);
          ok = ok && last_entered <= first_left;
        }
      }
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("started operations complete in launch order beside blocking ones", Backend, conf_started) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      const std::size_t in_flight = 100;
      std::vector<std::vector<float>> buffers;
      for (std::size_t k = 0; k < in_flight; ++k) buffers.push_back(values<float>(world.rank(), k * 10));
      std::vector<belay::pending> started(in_flight);
      bool ok = true;
      for (std::size_t k = 0; k < in_flight; ++k) {
        started[k] = world.start_all_reduce(std::span(buffers[k]), belay::sum);
        if (k % 10 == 0) ok = ok && all_reduce_is_right<double>(world, 33, belay::sum);
      }
      std::move(started[in_flight - 1]).wait();
      for (std::size_t k = 0; k < in_flight; ++k) ok = ok && started[k].ready();
      for (std::size_t k = 0; k + 1 < in_flight; ++k) std::move(started[k]).wait();
      for (std::size_t k = 0; k < in_flight; ++k)
        ok = ok && same_bits(buffers[k], reduced<float>(ranks, k * 10, belay::sum));
      return ok && rank.abandoned() == 0;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("every operation can be started", Backend, conf_started_each) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 3}, [](const auto& world) {
    const int me = world.rank(), ranks = world.size(), root = ranks - 1;
    const auto size = static_cast<std::size_t>(ranks), place = static_cast<std::size_t>(me);
    const std::size_t n = 20;
    const std::vector<std::size_t> counts(size, n);
    const auto in = values<float>(me, n * size);
    const auto part_of = [&](const std::vector<float>& whole) {
      return std::span<const float>(whole).subspan(n * place, n);
    };
    auto reduced_all = in, reduced_v = in, at_root = in, gathered_v = in, everywhere = in, swapped = in;
    std::vector<float> part(n), whole(n * size), collected(n * size), dealt(n), swapped_v(n * size), got(7);
    const auto sent = values<float>(me, 7);
    const belay::p2p transfers[] = {belay::p2p::send((me + 1) % ranks, std::span(sent)),
                                    belay::p2p::receive((me + ranks - 1) % ranks, std::span(got))};
    std::vector<belay::pending> started;
    started.push_back(world.start_barrier());
    started.push_back(world.start_all_reduce(std::span(reduced_all), belay::average));
    started.push_back(world.start_reduce_scatter(in, std::span(part), belay::sum));
    started.push_back(world.start_reduce_scatter_v(std::span(reduced_v), counts, belay::product));
    started.push_back(world.start_reduce(std::span(at_root), belay::sum, root));
    started.push_back(world.start_all_gather(part, std::span(whole)));  // in launch order: of the parts above
    started.push_back(world.start_all_gather_v(std::span(gathered_v), counts));
    started.push_back(world.start_all_to_all(swapped, std::span(swapped)));
    started.push_back(world.start_all_to_all_v(in, counts, std::span(swapped_v), counts));
    started.push_back(world.start_broadcast(std::span(everywhere), root));
    started.push_back(world.start_gather(part, std::span(collected), root));
    started.push_back(world.start_scatter(in, std::span(dealt), root));
    started.push_back(world.start_exchange(transfers));
    for (auto& one : started) std::move(one).wait();

    const auto total = reduced<float>(ranks, n * size, belay::sum);
    const auto product = reduced<float>(ranks, n * size, belay::product);
    std::vector<float> own_parts;
    for (int q = 0; q < ranks; ++q) {
      const auto theirs = values<float>(q, n * size);
      own_parts.insert(own_parts.end(), theirs.begin() + q * 20, theirs.begin() + (q + 1) * 20);
    }
    return same_bits(reduced_all, reduced<float>(ranks, n * size, belay::average)) &&
           same_bits<float>(part, part_of(total)) && same_bits_with(reduced_v, in, n * place, part_of(product)) &&
           same_bits(at_root, me == root ? total : in) && same_bits(whole, total) && same_bits(gathered_v, own_parts) &&
           same_bits(swapped, swapped_v) && same_bits<float>(std::span(swapped).subspan(n * place, n), part_of(in)) &&
           same_bits(everywhere, values<float>(root, n * size)) &&
           same_bits(collected, me == root ? total : std::vector<float>(n * size)) &&
           same_bits<float>(dealt, part_of(values<float>(root, n * size))) &&
           same_bits(got, values<float>((me + ranks - 1) % ranks, 7));
  }));
}

TEST_CASE_TEMPLATE_DEFINE("groups of a part of the ranks work independently and in their own order", Backend,
                          conf_groups) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      // Even and odd ranks, each in descending order, made twice.
      std::vector<int> members;
      for (int q = ranks - 1; q >= 0; --q) {
        if (q % 2 == rank.number() % 2) members.push_back(q);
      }
      const auto first = rank.group(members);
      const auto second = rank.group(members);
      bool ok = first.size() == static_cast<int>(members.size()) &&
                members[static_cast<std::size_t>(first.rank())] == rank.number();
      for (int round = 0; round < 1 + rank.number() % 2; ++round) {
        ok = ok && all_reduce_is_right<float>(first, 100, belay::sum) &&
             all_reduce_is_right<float>(second, 50, belay::sum);
      }
      std::vector<int> who(static_cast<std::size_t>(second.size()));
      const int me = rank.number();
      second.all_gather(std::span(&me, 1), std::span(who));
      return ok && who == members;
    })));
  }
}
