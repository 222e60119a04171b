// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/engine.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <utility>

#include "belay/step.hpp"

using belay::stream_policy;

namespace {
struct queued_engine {
  belay::tier_meters meters;
  belay::host_engine engine{
      belay::host_pages(1 << 16), meters[belay::tier::device], {stream_policy::queued}, 0, 64, 64};
};
}  // namespace

TEST_CASE("an engine has a stream of copies from when it is first asked for, and the same one after that") {
  queued_engine with;
  CHECK(!with.engine.has_copies());
  with.engine.synchronize();
  CHECK(with.engine.times_of_copies().hidden_share() == 0);
  auto& copies = with.engine.copies();
  CHECK(with.engine.has_copies());
  CHECK(&copies == &with.engine.copies());
  CHECK(!copies.stream().immediate());
  belay::host_engine planned(belay::reserved_addresses(1 << 16), with.meters[belay::tier::device],
                             {stream_policy::rehearsal}, 0);
  planned.copies().copy(nullptr, nullptr, 8);  // nothing runs
  planned.synchronize();
}

TEST_CASE("copies of a committed step are finished; a step that is cut off skips those that have not begun") {
  int value = 0;
  const int seven = 7, eight = 8;
  queued_engine with;
  auto& engine = with.engine;
  {
    belay::step step{engine};
    engine.copies().copy(&value, &seven, sizeof value);
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
    CHECK(value == 7);
  }
  std::atomic<bool> released{false};
  belay::host_stream other({stream_policy::queued});
  other.run([&released] { released.wait(false); });
  {
    belay::step step{engine};
    engine.copies().wait(other.record());
    engine.copies().copy(&value, &eight, sizeof value);
    step.cut_off();
  }
  CHECK(value == 7);
  released = true;
  released.notify_all();
}

TEST_CASE("a copy that has failed is told by the next step, once") {
  queued_engine with;
  with.engine.copies().run([] { throw std::runtime_error("the medium"); });
  CHECK_THROWS_WITH(with.engine.synchronize(), "the medium");
  belay::step step{with.engine};
  step.cut_off();
}
