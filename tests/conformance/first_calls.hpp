// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any first call of a rank may be made before its peers have joined the world.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/moves.hpp"
#include "conformance/reductions.hpp"

namespace conformance {

// Around a ring, three transfers one after the other, of which the second is of one element.
template <class Group>
bool passes_around(const Group& group, std::size_t n) {
  const int me = group.rank(), next = (me + 1) % group.size(), previous = (me + group.size() - 1) % group.size();
  const auto mine = values<float>(me, n), theirs = values<float>(previous, n);
  bool ok = true;
  for (const std::size_t count : {n, std::size_t{1}, n}) {
    std::vector<float> got(count);
    const belay::p2p both[] = {belay::p2p::send(next, std::span(mine).first(count)),
                               belay::p2p::receive(previous, std::span(got))};
    group.exchange(both);
    ok = same_bits<float>(got, std::span(theirs).first(count)) && ok;
  }
  return ok;
}

// The same, started: all at once.
template <class Group>
bool passes_around_beside(const Group& group, std::size_t n) {
  const int me = group.rank(), next = (me + 1) % group.size(), previous = (me + group.size() - 1) % group.size();
  const auto mine = values<float>(me, n), theirs = values<float>(previous, n);
  std::vector<float> got(n), got_again(n);
  const belay::p2p once[] = {belay::p2p::send(next, std::span(mine)), belay::p2p::receive(previous, std::span(got))};
  const belay::p2p again[] = {belay::p2p::send(next, std::span(mine)),
                              belay::p2p::receive(previous, std::span(got_again))};
  belay::pending first = group.start_exchange(once), second = group.start_exchange(again);
  std::move(first).wait();
  std::move(second).wait();
  return same_bits(got, theirs) && same_bits(got_again, theirs);
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("any operation, of any size, may be the first that a rank calls", Backend, conf_first_calls) {
  using namespace conformance;
  // Sizes for flag lines, eager buffers, bounce buffers and CMA.
  for (const std::size_t n : {std::size_t{1}, std::size_t{700}, std::size_t{2000}, std::size_t{50'001}}) {
    CAPTURE(n);
    const auto holds = [&](auto law) {
      return holds_on_all<Backend>({2, 3}, [&](const auto& world) { return law(world); });
    };
    CHECK(holds([n](const auto& world) { return passes_around(world, n); }));
    CHECK(holds([n](const auto& world) { return passes_around_beside(world, n); }));
    CHECK(holds([n](const auto& world) { return all_reduce_is_right<float>(world, n, belay::sum); }));
    CHECK(holds([n](const auto& world) { return reduces_and_scatters<float>(world, n, belay::sum); }));
    CHECK(holds([n](const auto& world) { return broadcasts<float>(world, n); }));
    CHECK(holds([n](const auto& world) { return gathers_for_all<float>(world, n); }));
    CHECK(holds([n](const auto& world) { return gathers_and_scatters<float>(world, n); }));
    CHECK(holds([n](const auto& world) { return exchanges_parts<float>(world, n, placed::nowhere); }));
    CHECK(holds([n](const auto& world) { return exchanges_parts<float>(world, n, placed::on_odd_ranks); }));
  }
}
