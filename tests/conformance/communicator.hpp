// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every communicator does, written once. A backend is a type with `run(ranks, body)` and
// `run(ranks, timeout, body)`, where body(rank&) returns bool; both give the bodies' results by rank.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/comm.hpp"

namespace conformance {

inline constexpr int rank_counts[] = {1, 2, 3, 4, 8};

inline std::vector<std::size_t> element_counts(int ranks) {
  return {0, 1, static_cast<std::size_t>(ranks - 1), 17, 1001, 1U << 16};
}

// A value that depends on rank and place; sums of it round, so that another order is seen.
template <class T>
T value(int rank, std::size_t i) {
  std::uint64_t h = (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebULL;
  h ^= h >> 32;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(h);
  else return static_cast<T>(static_cast<float>(static_cast<std::int64_t>(h % 20001) - 10000) * 0.37F);
}

template <class T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = value<T>(rank, i);
  return out;
}

// ((x0 + x1) + x2) + ... with one rounding at the end.
template <class T, class Op>
std::vector<T> reduced(int ranks, std::size_t count, Op) {
  using accumulator = belay::accumulator_of<T>;
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    accumulator total = static_cast<accumulator>(value<T>(0, i));
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(value<T>(q, i)));
    out[i] = static_cast<T>(total);
  }
  return out;
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(std::span<const T>(a), std::span<const T>(b));
}

// Uneven on purpose, with an empty part.
inline std::vector<std::size_t> uneven(int ranks, std::size_t scale) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks));
  for (int q = 0; q < ranks; ++q) counts[static_cast<std::size_t>(q)] = static_cast<std::size_t>((q * 7 + 3) % 5) * scale;
  return counts;
}

inline bool all(const std::vector<bool>& results) {
  return std::all_of(results.begin(), results.end(), [](bool ok) { return ok; });
}

template <class T, class Op, class Group>
bool all_reduce_is_right(const Group& group, std::size_t count, Op op) {
  auto x = values<T>(group.rank(), count);
  group.all_reduce(std::span(x), op);
  return same_bits(x, reduced<T>(group.size(), count, op));
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("all_reduce adds in rank order, for every type, size and reduction", Backend, conf_all_reduce) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      bool ok = true;
      for (std::size_t n : element_counts(ranks)) {
        ok = ok && all_reduce_is_right<float>(world, n, belay::sum) && all_reduce_is_right<double>(world, n, belay::sum) &&
             all_reduce_is_right<float>(world, n, belay::maximum) && all_reduce_is_right<float>(world, n, belay::minimum);
      }
      for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1537}}) {
        ok = ok && all_reduce_is_right<std::int32_t>(world, n, belay::sum) &&
             all_reduce_is_right<std::int64_t>(world, n, belay::minimum) &&
             all_reduce_is_right<std::uint64_t>(world, n, belay::sum) &&
             all_reduce_is_right<std::int8_t>(world, n, belay::sum) &&
             all_reduce_is_right<belay::bf16>(world, n, belay::sum) && all_reduce_is_right<belay::fp16>(world, n, belay::sum);
      }
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("reduce_scatter is a slice of all_reduce, bit for bit", Backend, conf_reduce_scatter) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      bool ok = true;
      for (std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{333}, std::size_t{8192}}) {
        const std::size_t n = part * static_cast<std::size_t>(ranks);
        const std::size_t first = part * static_cast<std::size_t>(world.rank());
        auto whole = values<float>(world.rank(), n);
        const auto in = whole;
        world.all_reduce(std::span(whole), belay::sum);
        std::vector<float> out(part);
        world.reduce_scatter(in, std::span(out), belay::sum);
        ok = ok && same_bits<float>(out, std::span<const float>(whole).subspan(first, part));
        auto placed = in;  // in place
        world.reduce_scatter(placed, std::span(placed).subspan(first, part), belay::sum);
        ok = ok && same_bits<float>(std::span<const float>(placed).subspan(first, part),
                                    std::span<const float>(whole).subspan(first, part));
      }
      for (std::size_t scale : {std::size_t{0}, std::size_t{1}, std::size_t{777}}) {
        const auto counts = uneven(ranks, scale);
        const std::size_t n = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        auto x = values<double>(world.rank(), n);
        auto whole = x;
        world.all_reduce(std::span(whole), belay::sum);
        world.reduce_scatter_v(std::span(x), counts, belay::sum);
        const auto me = counts.begin() + world.rank();
        const std::size_t first = std::accumulate(counts.begin(), me, std::size_t{0});
        ok = ok && same_bits<double>(std::span<const double>(x).subspan(first, *me),
                                     std::span<const double>(whole).subspan(first, *me));
        // What reduce_scatter_v left is what all_gather_v completes.
        world.all_gather_v(std::span(x), counts);
        ok = ok && same_bits(x, whole);
      }
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("all_gather gives everybody everything, in place too", Backend, conf_all_gather) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      bool ok = true;
      for (std::size_t n : element_counts(ranks)) {
        const auto in = values<std::int32_t>(world.rank(), n);
        std::vector<std::int32_t> out(n * static_cast<std::size_t>(ranks)), expected;
        for (int q = 0; q < ranks; ++q) {
          const auto theirs = values<std::int32_t>(q, n);
          expected.insert(expected.end(), theirs.begin(), theirs.end());
        }
        world.all_gather(in, std::span(out));
        ok = ok && same_bits(out, expected);
        std::vector<std::int32_t> placed(out.size());
        const auto mine = std::span(placed).subspan(n * static_cast<std::size_t>(world.rank()), n);
        std::copy(in.begin(), in.end(), mine.begin());
        world.all_gather(mine, std::span(placed));
        ok = ok && same_bits(placed, expected);
      }
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("all_to_all exchanges parts, even and uneven ones", Backend, conf_all_to_all) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      const int me = world.rank();
      bool ok = true;
      for (std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{129}, std::size_t{4096}}) {
        const auto in = values<float>(me, part * static_cast<std::size_t>(ranks));
        std::vector<float> out(in.size()), expected(in.size());
        for (int q = 0; q < ranks; ++q) {
          for (std::size_t i = 0; i < part; ++i) {
            expected[static_cast<std::size_t>(q) * part + i] = value<float>(q, static_cast<std::size_t>(me) * part + i);
          }
        }
        world.all_to_all(in, std::span(out));
        ok = ok && same_bits(out, expected);
      }
      // i sends (i + 2 j) % 4 x 50 elements to j: some send nothing.
      const auto count = [](int from, int to) { return static_cast<std::size_t>((from + 2 * to) % 4) * 50; };
      std::vector<std::size_t> sends, receives;
      for (int q = 0; q < ranks; ++q) {
        sends.push_back(count(me, q));
        receives.push_back(count(q, me));
      }
      const auto in = values<double>(me, std::accumulate(sends.begin(), sends.end(), std::size_t{0}));
      std::vector<double> out(std::accumulate(receives.begin(), receives.end(), std::size_t{0})), expected;
      for (int q = 0; q < ranks; ++q) {
        std::size_t first = 0;
        for (int to = 0; to < me; ++to) first += count(q, to);
        for (std::size_t i = 0; i < count(q, me); ++i) expected.push_back(value<double>(q, first + i));
      }
      world.all_to_all_v(in, sends, std::span(out), receives);
      return ok && same_bits(out, expected);
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("broadcast gives the root's bytes to everybody, from every root", Backend, conf_broadcast) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      bool ok = true;
      for (int root = 0; root < ranks; ++root) {
        for (std::size_t n : element_counts(ranks)) {
          auto x = values<belay::fp8_e4m3>(world.rank(), n);
          world.broadcast(std::span(x), root);
          ok = ok && same_bits(x, values<belay::fp8_e4m3>(root, n));
        }
      }
      return ok;
    })));
  }
}

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
      for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1001}}) {
        // Both directions, two forward ones whose order matters, and one to itself.
        const auto a = values<float>(me, n), b = values<float>(me + 100, n + 1), self = values<float>(me + 200, 5);
        std::vector<float> got_a(n), got_b(n + 1), got_back(n), got_self(5);
        const p2p transfers[] = {
            p2p::receive(previous, std::span(got_a), 1), p2p::receive(previous, std::span(got_b), 2),
            p2p::send(next, std::span(a), 1),            p2p::send(next, std::span(b), 2),
            p2p::send(previous, std::span(a), 3),        p2p::receive(next, std::span(got_back), 3),
            p2p::send(me, std::span(self), 4),           p2p::receive(me, std::span(got_self), 4),
        };
        world.exchange(transfers);
        ok = ok && same_bits(got_a, values<float>(previous, n)) && same_bits(got_b, values<float>(previous + 100, n + 1)) &&
             same_bits(got_back, values<float>(next, n)) && same_bits(got_self, self);
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

TEST_CASE_TEMPLATE_DEFINE("nobody passes a barrier before everybody has come", Backend, conf_barrier) {
  using namespace conformance;
  for (int ranks : rank_counts) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      auto memory = world.make_symmetric(sizeof(int));
      const auto cell = [&](int q) { return reinterpret_cast<int*>(memory.at(q)); };
      bool ok = true;
      for (int round = 1; round <= 200; ++round) {
        *cell(world.rank()) = round;
        world.barrier();
        for (int q = 0; q < ranks; ++q) ok = ok && *cell(q) == round;
        world.barrier();
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
      for (std::size_t k = 0; k < in_flight; ++k) ok = ok && same_bits(buffers[k], reduced<float>(ranks, k * 10, belay::sum));
      return ok && rank.abandoned() == 0;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("every operation can be started", Backend, conf_started_each) {
  using namespace conformance;
  for (int ranks : {1, 3}) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      const int me = world.rank();
      const auto size = static_cast<std::size_t>(ranks);
      const std::vector<std::size_t> counts(size, 20);
      const auto in = values<float>(me, 20 * size);
      auto scattered = in, gathered = in, broadcasted = in;
      std::vector<float> part(20), whole(20 * size), swapped(20 * size), got(7);
      const auto sent = values<float>(me, 7);
      const belay::p2p transfers[] = {belay::p2p::send((me + 1) % ranks, std::span(sent)),
                                      belay::p2p::receive((me + ranks - 1) % ranks, std::span(got))};
      auto a = world.start_reduce_scatter_v(std::span(scattered), counts, belay::sum);
      auto b = world.start_all_gather_v(std::span(gathered), counts);
      auto c = world.start_broadcast(std::span(broadcasted), ranks - 1);
      auto d = world.start_reduce_scatter(in, std::span(part), belay::sum);
      auto e = world.start_all_to_all_v(in, counts, std::span(swapped), counts);
      auto f = world.start_exchange(transfers);
      std::move(f).wait();
      std::move(e).wait();
      std::move(d).wait();
      std::move(c).wait();
      std::move(b).wait();
      std::move(a).wait();
      auto g = world.start_all_gather(part, std::span(whole));
      std::move(g).wait();
      const auto total = reduced<float>(ranks, 20 * size, belay::sum);
      const auto mine = std::span<const float>(total).subspan(20 * static_cast<std::size_t>(me), 20);
      return same_bits(whole, total) && same_bits<float>(part, mine) &&
             same_bits<float>(std::span<const float>(scattered).subspan(20 * static_cast<std::size_t>(me), 20), mine) &&
             same_bits(broadcasted, values<float>(ranks - 1, 20 * size)) &&
             same_bits(got, values<float>((me + ranks - 1) % ranks, 7));
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("groups of a part of the ranks work independently and in their own order", Backend, conf_groups) {
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
        ok = ok && all_reduce_is_right<float>(first, 100, belay::sum) && all_reduce_is_right<float>(second, 50, belay::sum);
      }
      std::vector<int> who(static_cast<std::size_t>(second.size()));
      const int me = rank.number();
      second.all_gather(std::span(&me, 1), std::span(who));
      return ok && who == members;
    })));
  }
}
