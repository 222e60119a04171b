// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Parameters that were gathered for a layer stay whole, and memory grows: DeepSpeed's issues 6726, 6966, 7116, 7258. A
// counter of owed backwards gave them back, and was zeroed once a step, because a forward without gradient owes none.
// Under recompute, which runs the forward twice and one backward, it never came back to zero. See
// docs/explanation/field_failures/gathered_parameters.md.
#include "failures/support/gathered_parameters.hpp"

#include <doctest/doctest.h>

#include <cstddef>

#include "failures/support/on_host.hpp"

using namespace gathered_parameters;

TEST_CASE("whole parameters end with the calls that gathered them, whatever is called twice or without gradient") {
  for (const int ranks : {1, 2, 4})
    for (const how what : {how::plain_and_observed, how::recomputed, how::two_in_flight}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(what));
      const found result = train<belay::gathers>(on_host{ranks}, what, 50);
      CHECK(result.after_use == 0);
      CHECK(result.other_live == 0);
      CHECK(result.as_planned);
    }
}

TEST_CASE("and where they are offloaded to pinned memory") {
  for (const int ranks : {2, 4})
    for (const how what : {how::plain_and_observed, how::recomputed, how::two_in_flight}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(what));
      const found result = train<belay::gathers>(on_host{ranks}, what, 50, belay::tier::pinned);
      CHECK(result.after_use == 0);
      CHECK(result.other_live == 0);
      CHECK(result.as_planned);
    }
  CHECK(train<gathers_by_counter>(on_host{2}, how::recomputed, 2, belay::tier::pinned).after_use > 0);
}

TEST_CASE("a counter of owed backwards keeps them: under recompute, and where a forward owes nothing") {
  CHECK(train<gathers_by_counter>(on_host{2}, how::recomputed, 2).after_use > 0);
  CHECK(train<gathers_by_counter>(on_host{2}, how::plain_and_observed, 2).after_use > 0);
  CHECK(train<gathers_by_counter>(on_host{2}, how::two_in_flight, 2).after_use == 0);
}

TEST_CASE("what an exception has left gathered ends with its step, and the next one is as planned") {
  for (const belay::gather_by gathers : {belay::gather_by::reach, belay::gather_by::collectives})
    for (const belay::stream_policy policy : {belay::stream_policy::immediate, belay::stream_policy::queued})
      for (const thrown where : {thrown::between_calls, thrown::in_forward, thrown::in_backward}) {
        CAPTURE(static_cast<int>(gathers));
        CAPTURE(static_cast<int>(where));
        throw_in_a_step(on_host{3, {policy, 0}}, gathers, where, [](bool holds) { CHECK(holds); });
      }
}
