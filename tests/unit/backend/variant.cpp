// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/backend/host/world.hpp"
#include "belay/comm/symmetric.hpp"

using belay::memory_access;
using belay::host::algorithm;
using belay::host::call_kind;
using belay::host::online_tuner;
using belay::host::variant;
using belay::host::variants_of;

namespace {

struct buffers {
  std::span<float> part, whole, result;  // one rank's elements, those of all, and room for as many
};

/// Calls it until its variant is found: what was asked for each time, and whether all gave the bits of the first.
template <class Group, class Call>
std::string all_alike(const Group& group, const buffers& memory, std::size_t kinds, Call call) {
  std::vector<variant> seen;
  std::vector<float> usual;
  const std::vector<float> input(memory.whole.begin(), memory.whole.end());
  for (int i = 0; i < online_tuner::most_calls; ++i) {
    std::memset(memory.result.data(), 0x5a, memory.result.size_bytes());
    const std::span<float> out = call();
    bool known = false;
    for (const variant& each : seen) known = known || each == group.last_variant();
    if (!known) seen.push_back(group.last_variant());
    if (usual.empty()) usual.assign(out.begin(), out.end());
    const bool alike = std::memcmp(usual.data(), out.data(), out.size_bytes()) == 0;
    // (Where the operation was in place.)
    std::memcpy(memory.whole.data(), input.data(), memory.whole.size_bytes());
    if (!alike) return std::string("other bits: ") + name(seen.back().how) + ", " + name(seen.back().by);
  }
  if (seen.size() != kinds) return std::to_string(seen.size()) + " variants of " + std::to_string(kinds);
  return "alike";
}

struct expected_variants {
  std::size_t sums, sums_in_place, parts, parts_in_place, moves, moves_in_place, rooted;
};

/// Every collective in every variant; a line for each that is not as it should be.
template <class Group>
std::string all_collectives_alike(const Group& group, const buffers& memory, const expected_variants& kinds) {
  const std::span<float> part = memory.part, whole = memory.whole, result = memory.result;
  const auto rank = static_cast<std::size_t>(group.rank());
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(i % 61 + rank) / 8;
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i % 67 + rank) / 4;
  const auto own = result.first(part.size());
  std::string out;
  const auto expect = [&](const char* what, std::size_t variants, auto call) {
    const std::string found = all_alike(group, memory, variants, call);
    if (found != "alike") out += std::string(what) + ": " + found + "; ";
  };
  const int root = group.size() - 1;
  expect("all_reduce", kinds.sums, [&] { return group.all_reduce(whole, result, belay::sum), result; });
  expect("all_reduce in place", kinds.sums_in_place, [&] { return group.all_reduce(whole, belay::sum), whole; });
  expect("reduce_scatter", kinds.parts, [&] { return group.reduce_scatter(whole, own, belay::sum), own; });
  expect("reduce", kinds.parts, [&] {
    group.reduce(whole, group.rank() == root ? result : std::span<float>(), belay::sum, root);
    return result;
  });
  expect("all_gather", kinds.moves, [&] { return group.all_gather(part, result), result; });
  expect("all_to_all", kinds.moves, [&] { return group.all_to_all(whole, result), result; });
  expect("all_to_all in place", kinds.moves_in_place, [&] { return group.all_to_all(whole, whole), whole; });
  const std::vector<std::size_t> counts(static_cast<std::size_t>(group.size()), part.size());
  expect("all_gather_v", kinds.moves, [&] { return group.all_gather_v(whole, counts), whole; });
  expect("reduce_scatter_v", kinds.parts_in_place, [&] {
    group.reduce_scatter_v(whole, counts, belay::sum);
    return whole.subspan(rank * counts.front(), counts.front());
  });
  expect("all_to_all_v", kinds.moves, [&] {
    group.all_to_all_v(whole, counts, result, counts);
    return result;
  });
  expect("broadcast", kinds.rooted, [&] { return group.broadcast(whole, root), whole; });
  expect("gather", kinds.rooted, [&] {
    group.gather(part, rank == 0 ? result : std::span<float>(), 0);
    return result;
  });
  expect("scatter", kinds.rooted, [&] {
    group.scatter(rank == 0 ? whole : std::span<float>(), own, 0);
    return own;
  });
  return out;
}

}  // namespace

TEST_CASE("an operation has the same bits in every variant, on memory that all see") {
  for (int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto body = [](auto& rank) {
      const auto n = static_cast<std::size_t>(rank.size());
      // More than what is tried, and no whole lines.
      const std::size_t count = belay::host::least_tried_mapped / sizeof(float) / n + 5;
      belay::symmetric_heap heap(rank.world(), {.bytes = 3 * n * count * sizeof(float) + 65536});
      const auto lease = [&](std::size_t elements, const char* tag) {
        return std::span(reinterpret_cast<float*>(heap.lease(elements * sizeof(float), tag).local()), elements);
      };
      const buffers memory{lease(count, "part"), lease(n * count, "whole"), lease(n * count, "result")};
      const expected_variants of_two{4, 2, 4, 2, 4, 1, 3}, of_more{2, 2, 1, 1, 4, 1, 3};
      return all_collectives_alike(rank.world(), memory, n == 2 ? of_two : of_more);
    };
    for (const std::string& found : belay::host::world{ranks}.run(body)) CHECK(found == "");
    for (const std::string& found : belay::host::processes{ranks}.run(body)) CHECK(found == "");
  }
}

TEST_CASE("an operation has the same bits through staging and by the kernel's copy") {
  for (int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto body = [](auto& rank) {
      const auto n = static_cast<std::size_t>(rank.size());
      const std::size_t count = 40'003;
      std::vector<float> part(count), whole(n * count), result(n * count);
      const std::size_t each = belay::host::may_read_processes() ? 4 : 2;
      // (The variant of the rules is one of the two others under another name.)
      return all_collectives_alike(rank.world(), {part, whole, result},
                                   expected_variants{each, each, each, each, each, 2, each});
    };
    for (const std::string& found : belay::host::processes{ranks}.run(body)) CHECK(found == "");
  }
}

TEST_CASE("what is received is the same in every variant") {
  const auto body = [](auto& rank) {
    const std::size_t bytes = belay::host::least_tried_mapped + 77;
    belay::symmetric_heap heap(rank.world(), {.bytes = 2 * bytes + 65536});
    const auto lease = [&](const char* tag) { return std::span(heap.lease(bytes, tag).local(), bytes); };
    const std::span<std::byte> given = lease("given"), taken = lease("taken");
    const int next = (rank.number() + 1) % rank.size(), last = (rank.number() + rank.size() - 1) % rank.size();
    const belay::p2p both[] = {belay::p2p::send(next, std::span<const std::byte>(given)),
                               belay::p2p::receive(last, taken)};
    const auto byte_of = [&](int who, std::size_t i, int call) {
      return static_cast<std::byte>((i + static_cast<std::size_t>(31 * who + call)) % 251);
    };
    int wrong = 0;
    for (int call = 0; call < online_tuner::most_calls; ++call) {
      for (std::size_t i = 0; i < bytes; ++i) given[i] = byte_of(rank.number(), i, call);
      rank.world().exchange(both);
      for (std::size_t i = 0; i < bytes; ++i) wrong += taken[i] != byte_of(last, i, call) ? 1 : 0;
    }
    return wrong;
  };
  for (int wrong : belay::host::world{2}.run(body)) CHECK(wrong == 0);
  for (int wrong : belay::host::processes{3}.run(body)) CHECK(wrong == 0);
}

TEST_CASE("what has one variant is not tried") {
  const auto variants = [](call_kind call) { return variants_of(call).size(); };
  using belay::operation;
  CHECK(variants({operation::all_reduce, 1, false, true}) == 1);
  CHECK(variants({operation::all_reduce, 2, true, true}) > 1);
  CHECK(variants({operation::all_to_all, 2, true, true, true, true}) == 1);
  CHECK(variants({operation::barrier, 2, false, true}) == 1);
  CHECK(variants({operation::make_symmetric, 2, false, false, true}) == 1);
  CHECK(variants({operation::broadcast, 2, false, false, true}) == 4);
  CHECK(variants({operation::broadcast, 2, false, false, false}) == 2);  // nothing but staging
  CHECK(variants({operation::all_to_all, 2, false, false, true, true}) == 2);
  for (const operation what :
       {operation::all_reduce, operation::all_gather, operation::broadcast, operation::exchange}) {
    const auto all = variants_of({what, 2, true, true});
    CHECK(all.front() == variant{});
    CHECK(all.size() <= online_tuner::most_variants);
  }
}

namespace {

/// Calls of a kind until it is settled, each variant as long as told: what it settles for.
std::size_t settle(online_tuner& tried, std::uint64_t kind, std::size_t bytes, const std::vector<double>& us) {
  for (int i = 0; i < online_tuner::most_calls; ++i) {
    const std::size_t now = tried.next(kind, bytes, us.size());
    if (tried.settled()) return now;
    tried.done(us[now]);
  }
  return tried.next(kind, bytes, us.size());
}

}  // namespace

TEST_CASE("the fastest variant is found, and the rules kept where none is clearly faster") {
  online_tuner tried;
  CHECK(settle(tried, 1, 1 << 20, {10, 12, 7, 9}) == 2);
  CHECK(settle(tried, 2, 1 << 20, {10, 12, 9.8, 11}) == 0);
  CHECK(settle(tried, 3, 64 << 20, {10, 9, 8, 7, 6, 5, 4}) == 6);
  CHECK(tried.next(1, 1 << 20, 4) == 2);
  CHECK(tried.settled());
}

TEST_CASE("what takes twice as long, or half, for long enough is tried anew, and ever more patiently") {
  online_tuner tried;
  const std::size_t bytes = 1 << 20;
  REQUIRE(settle(tried, 1, bytes, {10, 5, 8}) == 1);
  const auto calls_until_tried = [&](double us) {
    for (int calls = 0; calls < 5000; ++calls) {
      (void)tried.next(1, bytes, 3);
      if (!tried.settled()) return calls;
      tried.done(us);
    }
    return -1;
  };
  CHECK(calls_until_tried(9.9) == -1);
  CHECK(calls_until_tried(2.6) == -1);
  // Now and then is no change.
  for (int i = 0; i < 200; ++i) {
    (void)tried.next(1, bytes, 3);
    REQUIRE(tried.settled());
    tried.done(i % online_tuner::least_drift == 0 ? 5 : 50);
  }
  (void)tried.next(1, bytes, 3);
  tried.done(5);
  CHECK(calls_until_tried(11) == online_tuner::least_drift);
  CHECK(settle(tried, 1, bytes, {10, 11, 8}) == 2);
  // Of twice the bytes it may take twice as long.
  (void)tried.next(1, 2 * bytes, 3);
  tried.done(16);
  CHECK(calls_until_tried(3) == 2 * online_tuner::least_drift);
  CHECK(settle(tried, 1, bytes, {3, 3, 3}) == 0);
  CHECK(calls_until_tried(1) == 4 * online_tuner::least_drift);
}

TEST_CASE("the first run of a variant does not count, nor does one that was disturbed") {
  online_tuner tried;
  std::size_t last = 9;
  std::size_t run = 0;
  for (int i = 0; i < online_tuner::most_calls; ++i) {
    const std::size_t now = tried.next(5, 8 << 20, 3);
    if (tried.settled()) break;
    run = now == last ? run + 1 : 0;
    last = now;
    // Variant 1 would be best by its first run, variant 2 worst by its second.
    tried.done(now == 0 ? 10 : now == 1 ? (run == 0 ? 1 : 20) : (run == 1 ? 100 : 5));
  }
  CHECK(tried.next(5, 8 << 20, 3) == 2);
}

TEST_CASE("kinds beyond the room are done by the rules") {
  online_tuner tried;
  std::size_t refused = 0;
  for (std::uint64_t kind = 1; kind <= 3 * online_tuner::most_kinds; ++kind) {
    if (tried.next(kind, 1 << 20, 3) == 0 && !tried.timing()) ++refused;
  }
  CHECK(refused >= 2 * online_tuner::most_kinds);
}
