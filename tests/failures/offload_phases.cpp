// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Host memory grows with every offload phase: EasyR1's issues 50, 156, 59, 125, 260, verl's 429, 630, 2822. Each phase
// took a new pinned buffer from an allocator that rounds up to a power of two and never gives back; a checkpoint loaded
// the optimizer and forgot to put it back; a helper discarded the result of its copy, so that nothing was offloaded.
// See docs/explanation/field_failures/offload_phases.md.
#include "failures/support/offload_phases.hpp"

#include <doctest/doctest.h>

#include <cstddef>

#include "failures/support/on_host.hpp"
#include "test_length.hpp"
#include "unit/train/support/phase_cycles.hpp"

using namespace offload_phases;

TEST_CASE("a thousand cycles of offload and load leave pinned memory at the bytes of the shards, and all tiers alike") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const found got = run_cycles<no_buffers>(on_host{ranks}, 1000);
    CHECK(got.pinned_first == got.shards + got.ring);
    CHECK(got.pinned_last == got.shards + got.ring);
    CHECK(got.exact);
    CHECK(got.in_device == 0);     // it has left, and no copy of it stayed
    CHECK(got.other_cycles == 0);  // nor after the checkpoint in the middle
    CHECK(got.committed == 2);     // that one, and one at the end
    CHECK(got.grown == 0);
    CHECK(got.as_planned);  // so both residencies never were there at once: the plan has one
    if (!only_a_sample()) CHECK(got.resident_growth < std::size_t{1} << 20);  // a sanitizer's own memory grows
  }
}

TEST_CASE("a cache that takes a buffer for every offload is seen to grow by the same test") {
  const found got = run_cycles<cached_buffers>(on_host{2}, 10);
  CHECK(got.pinned_last > got.pinned_first);
  CHECK(got.pinned_first != got.shards + got.ring);
}

// The same of what moves between phases, which `phase_residency` does: each clause, and the policy that fails in it.
TEST_CASE(
    "what leaves between phases: pinned bytes are exactly its own, and a checkpoint in the middle changes nothing") {
  using namespace phase_cycles;
  const auto cycles = [](policy how) { return run_phases(how, tier::pinned, 12, 2, 10); };
  const auto right = cycles(policy::right);
  CHECK(right.leaves);
  CHECK(right.flat);
  CHECK(right.named);
  CHECK(right.checkpoints);
  CHECK(right.as_planned);
  // A buffer for every phase, rounded up: where their number is beyond the plan, an error says so.
  const auto stays_flat = [&](policy how) {
    try {
      return cycles(how).flat;
    } catch (const belay::budget_error&) {
      return false;
    }
  };
  CHECK_FALSE(stays_flat(policy::fresh_buffer));
  CHECK_FALSE(cycles(policy::discards_the_copy).leaves);
  const auto forgot = cycles(policy::forgets);
  CHECK_FALSE(forgot.checkpoints);  // what a checkpoint has loaded stays on the device
  CHECK(forgot.losses == right.losses);
}

TEST_CASE("a switch never holds both residencies; a copy of all before anything is given back does") {
  using namespace phase_cycles;
  constexpr std::size_t chunk = std::size_t{1} << 20;
  const auto right = run_phases(policy::right, tier::pinned, 65536, 1, 1);
  const auto both = run_phases(policy::copies_all_first, tier::pinned, 65536, 1, 1);
  CHECK(right.most_in_both <= right.bytes + chunk);
  CHECK(both.most_in_both > both.bytes + chunk);
}

TEST_CASE("what a phase forgets to give back is a named, signed difference in the transition's report") {
  forget_a_cache(on_host{2}, [](bool holds) { CHECK(holds); });
}
