// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sizes that wrap round: every operation that is given one refuses it on its caller, before any peer is involved and before
// anything is written, and the group can be used afterwards.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

namespace conformance {

// What a call is refused with; empty where it is not.
template <class Call>
std::string size_refusal(Call call) {
  try {
    call();
  } catch (const belay::usage_error& refused) {
    return refused.what();
  }
  return "";
}

/// A division of `sum` elements among `ranks` whose counts wrap round; the first is refused together with the second.
inline std::vector<std::size_t> wrapping_counts(std::size_t ranks, std::size_t sum) {
  std::vector<std::size_t> counts(ranks, 0);
  counts.front() = SIZE_MAX;
  counts[ranks > 1 ? 1 : 0] += 1;
  counts.back() += sum;
  return counts;
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("counts that wrap round to the buffer's length are refused before anybody meets", Backend,
                          conf_wrapping_counts) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({2, 3, 4}, [](const auto& world) {
    const auto size = static_cast<std::size_t>(world.size());
    const auto before = values<std::int32_t>(world.rank(), 2 * size),
               own = values<std::int32_t>(world.rank() + 7, 2 * size);
    auto x = before, y = own;
    const std::vector<std::size_t> even(size, 2), wrapping = wrapping_counts(size, 2 * size);
    // Each count for itself is possible, and so is their sum; their bytes are not.
    std::vector<std::size_t> large(size, 0);
    large.front() = std::size_t{1} << 62;
    const auto refused = [&](const std::string& operation, auto call) {
      const std::string text = size_refusal(call);
      return text.find(operation) != std::string::npos &&
             text.find("that of rank 0, which is 1844") != std::string::npos &&
             text.find("more than any memory holds") != std::string::npos;
    };
    bool ok = true;
    ok = refused("all_gather_v", [&] { world.all_gather_v(std::span(x), wrapping); }) && ok;
    ok = refused("reduce_scatter_v", [&] { world.reduce_scatter_v(std::span(x), wrapping, belay::sum); }) && ok;
    ok = refused("all_to_all_v: what is sent", [&] { world.all_to_all_v(x, wrapping, std::span(y), even); }) && ok;
    ok = refused("all_to_all_v: what is received", [&] { world.all_to_all_v(x, even, std::span(y), wrapping); }) && ok;
    const std::span<std::int32_t> nothing;
    ok = size_refusal([&] { world.all_gather_v(nothing, large); }).find("up to that of rank 0") != std::string::npos &&
         ok;
    world.barrier();  // the group is usable
    world.all_to_all_v(x, even, std::span(y), even);
    return ok && same_bits(x, before);
  }));
}

TEST_CASE_TEMPLATE_DEFINE("buffers whose bytes wrap round are refused before anybody meets", Backend,
                          conf_wrapping_buffers) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 2, 3}, [](const auto& world) {
    const int me = world.rank();
    const auto size = static_cast<std::size_t>(world.size());
    const auto before = values<double>(me, 4 * size);
    auto x = before, y = before;
    const std::span<double> huge(x.data(), (std::size_t{1} << 61) + 1);  // whose bytes are 8 in 64 bits
    // A part of which all ranks' together are few elements.
    const std::span<double> part(x.data(), size == 1 ? huge.size() : SIZE_MAX / size + 1);
    const auto refused = [&](auto call) {
      return !size_refusal(call).empty();
    };  // of one rank, `part` is too long as well
    const auto small = std::span(y).first(size);
    bool ok = true;
    ok = refused([&] { world.all_reduce(huge, belay::sum); }) && ok;
    ok = refused([&] { world.broadcast(huge, 0); }) && ok;
    ok = refused([&] { world.reduce(huge, belay::maximum, 0); }) && ok;
    ok = refused([&] { world.all_to_all(huge, huge); }) && ok;
    ok = refused([&] { world.all_gather(part, small); }) && ok;
    ok = refused([&] { world.gather(part, small, me); }) && ok;
    ok = refused([&] { world.gather(part, small, (me + 1) % world.size()); }) && ok;
    ok = refused([&] { world.scatter(small, part, me); }) && ok;
    ok = refused([&] { world.scatter(small, part, (me + 1) % world.size()); }) && ok;
    ok = refused([&] { world.reduce_scatter(small, part, belay::sum); }) && ok;
    ok = refused([&] { world.send(me, huge); }) && ok;
    ok = refused([&] { world.receive(me, huge); }) && ok;
    const belay::p2p pair[] = {{belay::p2p::direction::send, me, x.data(), SIZE_MAX},
                               {belay::p2p::direction::receive, me, x.data(), 9}};
    ok = refused([&] { world.exchange(pair); }) && ok;
    world.barrier();  // the group is usable
    return ok && same_bits(x, before) && same_bits(y, before);
  }));
}

TEST_CASE_TEMPLATE_DEFINE("a start with counts that wrap round is refused, writes nothing and leaves the group usable",
                          Backend, conf_wrapping_started) {
  using namespace conformance;
  for (int which : {0, 1, 2}) {
    CAPTURE(which);
    CHECK(all(Backend::run(3, [&](auto& rank) {
      const auto& world = rank.world();
      const auto before = values<std::int32_t>(rank.number(), 6);
      auto x = before, y = before;
      const std::vector<std::size_t> even(3, 2), wrapping = wrapping_counts(3, 6);
      const std::string told = size_refusal([&] {
        if (which == 0) world.start_all_gather_v(std::span(x), wrapping).wait();
        if (which == 1) world.start_reduce_scatter_v(std::span(x), wrapping, belay::sum).wait();
        if (which == 2) world.start_all_to_all_v(x, wrapping, std::span(y), even).wait();
      });
      world.start_all_gather_v(std::span(x), even).wait();
      x = before;
      world.start_all_to_all_v(x, even, std::span(y), even).wait();
      return told.find("more than any memory holds") != std::string::npos && same_bits(x, before);
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("symmetric memory near the end of the address space is a budget_error on all ranks", Backend,
                          conf_wrapping_heap) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({1, 3}, [](const auto& world) {
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2, SIZE_MAX / 3 + 2}) {
      try {
        belay::symmetric_heap heap{world, {.bytes = bytes}};
        return false;
      } catch (const belay::budget_error&) {
      }
    }
    belay::symmetric_heap heap{world, {.bytes = 4096}};
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2 + 1}) {
      try {
        static_cast<void>(heap.lease(bytes, "too much"));
        return false;
      } catch (const belay::budget_error&) {
      }
    }
    const auto slot = heap.lease(64, "slot");
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 7}) {
      try {
        heap.put(world.rank(), slot, 8, bytes);
        return false;
      } catch (const belay::usage_error&) {
      }
    }
    world.barrier();
    return heap.live_bytes() == 64;
  }));
}
