// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/engine.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/step.hpp"

using belay::stream_policy;

namespace {
struct queued_engine {
  belay::tier_meters meters;
  belay::host_engine engine{
      belay::host_pages(1 << 16), meters[belay::tier::device], {stream_policy::queued}, 0, 64, 64};
};

struct doubled {
  struct residue {
    belay::view<float, 1> out;
  };
  [[nodiscard]] static const char* name() { return "doubled"; }
  residue forward(auto& frame, belay::view<const float, 1> x) {
    const residue r{belay::keep<float>(frame, x.shape())};
    frame.each(x.size(), belay::kernel::copy<float>{x.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&&, belay::view<const float, 1> dy, belay::view<float, 1> dx) {
    frame.each(dx.size(), belay::kernel::copy<float>{dy.data(), dx.data()});
  }
};
struct calls_seen final : belay::call_listener {
  std::vector<std::string> seen;
  void begin(const belay::call_under_way& now) noexcept override {
    seen.push_back(std::string(now.layer) + " " + name(now.what) + " " + std::to_string(now.micro_batch));
  }
  void end() noexcept override { seen.emplace_back("end"); }
};
}  // namespace

TEST_CASE("a listener is told of each layer's call, in the order in which they are queued") {
  queued_engine with;
  calls_seen calls;
  with.engine.watch().tell_calls(calls);
  doubled layer;
  const float x[3] = {1, 2, 3};
  belay::step step{with.engine};
  step.micro_batches(2);
  for (std::size_t m = 0; m < 2; ++m) {
    auto y = belay::forward(step.micro_batch(m), layer, belay::view<const float, 1>{x, {3}});
    const auto dy = y.out();
    static_cast<void>(std::move(y).backward(dy));
  }
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
  CHECK(calls.seen == std::vector<std::string>{"doubled forward 0", "end", "doubled backward 0", "end",
                                               "doubled forward 1", "end", "doubled backward 1", "end"});
}

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

TEST_CASE("a step that is cut off skips nothing of before it, also where the host has waited meanwhile") {
  queued_engine with;
  auto& engine = with.engine;
  engine.synchronize();
  std::atomic<bool> begun{false}, released{false};
  int updated = 0;
  engine.compute().run([&] {
    begun = true;
    begun.notify_all();
    released.wait(false);
  });
  engine.compute().run([&] { updated = 1; });  // as an update that is behind the last wait
  std::jthread releases([&] {
    begun.wait(false);
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // the step below has no other work to wait for
    released = true;
    released.notify_all();
  });
  {
    belay::step step{engine};
    step.cut_off();
  }
  releases.join();
  engine.synchronize();
  CHECK(updated == 1);
}

TEST_CASE("a copy that has failed is told by the next step, once") {
  queued_engine with;
  with.engine.copies().run([] { throw std::runtime_error("the medium"); });
  CHECK_THROWS_WITH(with.engine.synchronize(), "the medium");
  belay::step step{with.engine};
  step.cut_off();
}
