// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a symmetric heap does on every backend, written once; where peers cannot be addressed, ranges are put. On a
// device it is a group's copies that write and read it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

namespace conformance {

template <class Group, class T>
void write(const Group& group, T* to, std::span<const std::type_identity_t<T>> from) {
  if constexpr (belay::works_on_device<Group>)
    group.place(to, from.data(), from.size_bytes());
  else
    std::copy(from.begin(), from.end(), to);
}
template <class Group, class T>
void write(const Group& group, T* to, const std::type_identity_t<T>& value) {
  write(group, to, std::span(&value, 1));
}
template <class Group, class T>
std::vector<T> values_at(const Group& group, const T* from, std::size_t count) {
  std::vector<T> out(count);
  if constexpr (belay::works_on_device<Group>)
    group.fetch(out.data(), from, count * sizeof(T));
  else
    std::copy_n(static_cast<const volatile T*>(from), count, out.begin());
  return out;
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("a slot is at the same offset on every rank, and peers read and write it", Backend,
                          conf_heap) {
  using namespace conformance;
  for (int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      belay::symmetric_heap heap{world, {.bytes = 1 << 16}};
      bool ok = heap.capacity_bytes() == 1 << 16;
      for (int round = 0; round < 50; ++round) {
        // Released in another order than leased, so that the free list is not trivial.
        auto a = heap.lease(1000, "a"), b = heap.lease(64, "b"), empty = heap.lease(0, "nothing");
        heap.release(a);
        auto c = heap.lease(static_cast<std::size_t>(100 + round), "c");
        ok = ok && reinterpret_cast<std::uintptr_t>(b.local()) % 64 == 0 && b.local() == b.at(world.rank());
        heap.audit();
        const auto place = static_cast<std::size_t>(world.rank()) * sizeof(int);
        for (int q = 0; q < ranks; ++q) {
          write(world, reinterpret_cast<int*>(b.at(q)) + world.rank(), round * 100 + world.rank());
          heap.put(q, b, place, sizeof(int));
        }
        heap.synchronize();
        const auto got = values_at(world, reinterpret_cast<const int*>(b.local()), static_cast<std::size_t>(ranks));
        for (int q = 0; q < ranks; ++q) ok = ok && got[static_cast<std::size_t>(q)] == round * 100 + q;
        std::size_t offset = c.offset_bytes(), least = offset;
        belay::control_of(world).all_reduce(std::span(&least, 1), belay::minimum);
        ok = ok && least == offset && heap.live_slots() == 3;
        heap.release(b);
        heap.release(c);
        heap.release(empty);
        ok = ok && heap.live_bytes() == 0 && heap.live_slots() == 0;
      }
      return ok && heap.peak_bytes() == 1024 + 64 && heap.extent_bytes() == 1024 + 64;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("what is put and given is there after the signal, and nothing else is", Backend,
                          conf_heap_signal) {
  using namespace conformance;
  for (int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      const int me = world.rank(), next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
      belay::symmetric_heap heap{world, {.bytes = 1 << 20}};
      const std::size_t n = 50'000;  // longer than one message of any kind
      bool ok = true;
      for (int round = 0; round < 3; ++round) {
        const auto box = heap.lease(n * sizeof(std::int64_t), "box"), shelf = heap.lease(64, "shelf");
        const auto words = [](std::byte* at) { return reinterpret_cast<std::int64_t*>(at); };
        write(world, words(box.local()), std::vector<std::int64_t>(n, -1));
        heap.synchronize();
        // Around the ring: the odd half of the next rank's box, in two ranges, and an empty one.
        const auto word = [&](int from, std::size_t i) {
          return from * 1'000'000 + round * 100'000 + static_cast<int>(i);
        };
        std::vector<std::int64_t> sent;
        for (std::size_t i = n / 2; i < n; ++i) sent.push_back(word(me, i));
        write(world, words(box.at(next)) + n / 2, sent);
        heap.put(next, box, n / 2 * sizeof(std::int64_t), sizeof(std::int64_t));
        heap.put(next, box, (n / 2 + 1) * sizeof(std::int64_t), (n - n / 2 - 1) * sizeof(std::int64_t));
        heap.put(next, box, 0, 0);
        heap.signal({&next, 1}, {&previous, 1});
        const auto got = values_at(world, words(box.local()), n);
        for (std::size_t i = 0; i < n; ++i) ok = ok && got[i] == (i < n / 2 ? -1 : word(previous, i));
        // A rank's own slot, read by the previous one.
        write(world, words(shelf.local()), me + round);
        heap.give(previous, shelf, 0, 64);
        heap.signal({&previous, 1}, {&next, 1});
        ok = ok && values_at(world, words(shelf.at(next)), 1)[0] == next + round;
        heap.synchronize();
        heap.release(shelf);
        heap.release(box);
      }
      return ok;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("ranks that want symmetric memory of different sizes are told", Backend, conf_heap_sizes) {
  using namespace conformance;
  CHECK(all(Backend::run(3, [&](auto& rank) {
    try {
      belay::symmetric_heap heap{rank.world(), {.bytes = rank.number() == 2 ? 4096U : 8192U}};
    } catch (const belay::comm_error& error) {
      return error.fault() == belay::comm_fault::mismatch && error.about().culprits == std::vector<int>{2};
    }
    return false;
  })));
}

TEST_CASE_TEMPLATE_DEFINE("a heap that the standard library makes has its options' line, or the one given", Backend,
                          conf_heap_emplaced) {
  using namespace conformance;
  for (int which = 0; which < 3; ++which) {
    CAPTURE(which);
    const auto body = [&](auto& rank) {  // (apart from CHECK, within which all lines are one)
      using heap_type = belay::symmetric_heap<typename std::remove_reference_t<decltype(rank)>::group_type>;
      const std::size_t bytes = rank.number() == 2 ? 4096U : 8192U;
      std::optional<heap_type> heap;
      int line = 0;
      try {
        if (which == 0) {
          line = __LINE__ + 1;
          heap.emplace(rank.world(), belay::symmetric_heap_options{.bytes = bytes});
        } else if (which == 1) {
          belay::symmetric_heap_options options;
          options.bytes = bytes;
          line = __LINE__ + 1;
          heap.emplace(rank.world(), options, belay::where::current());
        } else {
          line = __LINE__ + 1;
          const auto made = std::make_unique<heap_type>(rank.world(), belay::symmetric_heap_options{.bytes = bytes});
        }
      } catch (const belay::comm_error& error) {
        const std::string text = error.what();
        return text.find(std::string(__FILE__) + ":" + std::to_string(line)) == 0 &&
               text.find("stl_construct") == std::string::npos && text.find("unique_ptr") == std::string::npos &&
               error.about().there.find("symmetric.hpp:" + std::to_string(line)) != std::string::npos;
      }
      return false;
    };
    CHECK(all(Backend::run(3, body)));
  }
}

TEST_CASE_TEMPLATE_DEFINE("peers may read a heap whose owner has already left", Backend, conf_heap_leaver) {
  using namespace conformance;
  CHECK(all(Backend::run(3, [&](auto& rank) {
    const auto& world = rank.world();
    auto heap = std::make_unique<belay::symmetric_heap<std::remove_cvref_t<decltype(world)>>>(
        world, belay::symmetric_heap_options{.bytes = 4096});
    const auto slot = heap->lease(sizeof(int), "value");
    write(world, reinterpret_cast<int*>(slot.local()), rank.number() + 10);
    world.barrier();
    if (rank.number() == 0) {
      heap.reset();
      return true;  // left the world, too
    }
    bool ok = true;
    for (int i = 0; i < 1000; ++i) ok = ok && values_at(world, reinterpret_cast<const int*>(slot.at(0)), 1)[0] == 10;
    return ok;
  })));
}

TEST_CASE_TEMPLATE_DEFINE("a stale slot, a foreign peer and too large a lease are named errors", Backend,
                          conf_heap_misuse) {
  using namespace conformance;
  CHECK(all(Backend::run(2, [&](auto& rank) {
    belay::tier_meter meter;
    belay::symmetric_heap heap{rank.world(), {.bytes = 4096, .max_slots = 2, .meter = &meter}};
    auto slot = heap.lease(100, "tokens");
    bool ok =
        meter.live_bytes() == 128 && slot.live() && heap.list().find("'tokens' 100 bytes at 0") != std::string::npos;
    const auto throws = [&](auto work) {
      try {
        work();
      } catch (const belay::usage_error&) {
        return true;
      }
      return false;
    };
    try {
      (void)heap.lease(4097, "too large");
      ok = false;
    } catch (const belay::budget_error& refused) {
      ok = ok && refused.requested_bytes() == 4097;
    }
    auto second = heap.lease(1, "second");
    ok = ok && throws([&] { (void)heap.lease(1, "third"); }) && throws([&] { heap.put(0, slot, 90, 11); }) &&
         throws([&] { heap.give(1, slot, 101, 0); });
    heap.release(slot);
    auto reused = heap.lease(100, "reused");
    ok = ok && reused.offset_bytes() == slot.offset_bytes() && reused.generation() != slot.generation() && !slot.live();
    if constexpr (belay::checked(belay::check_level::local)) {
      ok = ok && throws([&] { (void)slot.local(); }) && throws([&] { heap.release(slot); }) &&
           throws([&] { (void)reused.at(2); });
    } else {
      heap.release(slot);
    }
    ok = ok && heap.misused() == 1 && reused.live();
    heap.reclaim();
    return ok && !reused.live() && !second.live() && meter.live_bytes() == 0 && heap.live_slots() == 0;
  })));
}

TEST_CASE_TEMPLATE_DEFINE("ranks that lease in different orders are told at the audit", Backend, conf_heap_audit) {
  using namespace conformance;
  if constexpr (belay::checked(belay::check_level::across_ranks)) {
    CHECK(all(Backend::run(3, [&](auto& rank) {
      belay::symmetric_heap heap{rank.world(), {.bytes = 4096}};
      (void)heap.lease(rank.number() == 2 ? 64 : 128, "first");
      (void)heap.lease(rank.number() == 2 ? 128 : 64, "second");
      try {
        heap.audit();
      } catch (const belay::comm_error& error) {
        return error.fault() == belay::comm_fault::mismatch && error.about().culprits == std::vector<int>{2};
      }
      return false;
    })));
  }
}
