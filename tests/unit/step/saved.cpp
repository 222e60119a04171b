// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "belay/step.hpp"
#include "support/scaling.hpp"

using scaling_bench::bench;
using scaling_bench::scaling;

TEST_CASE("two layers forward and backward give the chain rule, and nothing stays leased") {
  bench b;
  scaling first{2}, second{3};
  for (int repeat = 0; repeat < 3; ++repeat) {
    first.gradient = second.gradient = 0;
    belay::step step{b.engine};
    auto one = belay::forward(step, first, b.x);
    auto two = belay::forward(step, second, one.out());
    CHECK(two.out()(0, 1, 2) == 36);
    CHECK(b.engine.obligations().open_count() == 2);
    auto dtwo = std::move(two).backward(b.x);
    auto done = std::move(one).backward(dtwo);
    CHECK(done.values()(0, 0, 0) == 6);
    CHECK(second.gradient == 2 * 91);
    CHECK(first.gradient == 3 * 91);
    auto outcome = std::move(step).commit();
    REQUIRE(belay::committed(outcome) != nullptr);
    CHECK(belay::committed(outcome)->number() == static_cast<std::uint64_t>(repeat) + 1);
    CHECK(b.meter.live_bytes() == 0);
  }
}

TEST_CASE("the typed tape computes the same and ends empty") {
  bench b;
  scaling first{2}, second{3};
  belay::step step{b.engine};
  step.run([&](auto tape) {
    auto one = std::move(tape).forward(first, b.x);
    const auto hidden = one.out();
    auto two = std::move(one).forward(second, hidden);
    auto back = std::move(two).backward(b.x);
    return std::move(std::move(back).backward().rest);
  });
  CHECK(first.gradient == 3 * 91);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a recomputed layer gives the same gradients and keeps only its output") {
  bench b;
  scaling plain{2}, inner{2};
  belay::recompute checkpointed{inner};
  belay::step step{b.engine};
  auto one = belay::forward(step, plain, b.x);
  auto two = belay::forward(step, checkpointed, b.x);
  CHECK(two.out()(0, 1, 2) == one.out()(0, 1, 2));
  auto d2 = std::move(two).backward(b.x);
  auto d1 = std::move(one).backward(b.x);
  CHECK(plain.gradient == inner.gradient);
  CHECK(d1.values()(0, 0, 1) == d2.values()(0, 0, 1));
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("an observed forward owes nothing and gives its memory back when dropped") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  {
    auto seen = belay::observe(step, layer, b.x);
    CHECK(seen.out()(0, 0, 0) == 2);
    CHECK(b.meter.live_bytes() > 0);
    CHECK(b.engine.obligations().open_count() == 0);
  }
  CHECK(b.meter.live_bytes() == 0);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

namespace {
// Hides the handle from Clang's analysis, as a container would.
template <class Handle>
struct hidden {
  Handle handle;
};
}  // namespace

TEST_CASE("a lost handle keeps the step from committing, is named, and its memory is reclaimed") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  int line = 0;
  {
    auto lost = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
    line = __LINE__ - 1;
    CHECK(lost.handle.out()(0, 0, 0) == 2);
  }
  if constexpr (belay::checked(belay::check_level::local)) {
    try {
      auto outcome = std::move(step).commit();
      FAIL("a step with an open handle was committed");
    } catch (const belay::open_obligations& error) {
      const std::string text = error.what();
      CHECK(error.count() == 1);
      CHECK(text.find("saved activation of layer 0 'scaling' (micro-batch 3, 1x2x3, holds 64 bytes)") !=
            std::string::npos);
      CHECK(text.find("saved.cpp:" + std::to_string(line)) != std::string::npos);
    }
  } else {
    auto outcome = std::move(step).commit();
    REQUIRE(belay::refused(outcome) != nullptr);
    CHECK(belay::refused(outcome)->findings.open_obligations == 1);
    CHECK(belay::refused(outcome)->list.find("'scaling' (micro-batch 3") != std::string::npos);
  }
  CHECK(b.meter.live_bytes() == 0);
}

TEST_CASE("backward twice is a named error in checked builds and refused in release builds") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  auto twice = hidden{belay::forward(step, layer, b.x)};
  auto first = std::move(twice.handle).backward(b.x);
  if constexpr (belay::checked(belay::check_level::local)) {
    CHECK_THROWS_AS(static_cast<void>(std::move(twice.handle).backward(b.x)), belay::usage_error);
    step.cut_off();
  } else {
    auto second = std::move(twice.handle).backward(b.x);
    CHECK(layer.gradient == 91);
    auto outcome = std::move(step).commit();
    REQUIRE(belay::refused(outcome) != nullptr);
    CHECK(belay::refused(outcome)->findings.misused_handles == 1);
  }
}

TEST_CASE("a gradient that outlives its step does not disturb the next one") {
  bench b;
  scaling layer{2};
  auto run = [&] {
    belay::step step{b.engine};
    auto one = belay::forward(step, layer, b.x);
    auto dx = std::move(one).backward(b.x);
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
    return dx;
  };
  auto late = run();
  belay::step next{b.engine};
  auto one = belay::forward(next, layer, b.x);
  late = std::move(one).backward(b.x);
  auto outcome = std::move(next).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

// What `body` prints to standard error.
template <class Body>
std::string printed(Body&& body) {
  const int before = ::dup(2), file = ::memfd_create("printed", 0);
  ::dup2(file, 2), body(), ::dup2(before, 2);
  std::string out(static_cast<std::size_t>(::lseek(file, 0, SEEK_END)), '\0');
  CHECK(::pread(file, out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()));
  ::close(before), ::close(file);
  return out;
}

TEST_CASE("a step without commit reclaims its memory and the next step begins clean") {
  bench b;
  scaling layer{2};
  // What an exception leaves open is its doing: it alone is told.
  CHECK(printed([&] {
          try {
            belay::step step{b.engine};
            [[maybe_unused]] auto open = hidden{belay::forward(step, layer, b.x)};
            throw std::runtime_error("first error");
          } catch (const std::runtime_error& error) {
            CHECK(std::string(error.what()) == "first error");
          }
        }) == "");
  CHECK(b.meter.live_bytes() == 0);
  belay::step next{b.engine};
  const auto nested = [&] {
    belay::step second{b.engine};
    second.cut_off();
  };
  CHECK_THROWS_AS(nested(), belay::usage_error);
  auto outcome = std::move(next).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("discard and hand_over discharge a handle without a backward") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  auto open = [&] {
    auto handle = belay::forward(step, layer, b.x);
    return std::move(handle).hand_over();
  };
  auto handle = open();
  std::move(handle).discard("this branch takes no gradient");
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
  CHECK(layer.gradient == 0);
}

TEST_CASE("zero rows, and a vote that finds an overflow elsewhere") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  const belay::view<const double, 3> none{b.values, {0, 2, 3}};
  auto empty = belay::forward(step, layer, none);
  auto dx = std::move(empty).backward(none);
  CHECK(dx.values().size() == 0);
  auto outcome = std::move(step).commit([](belay::ballot all) {
    all.needed_rows = 17;
    return all;
  });
  REQUIRE(belay::replay(outcome) != nullptr);
  CHECK(belay::replay(outcome)->needed_rows == 17);
}

TEST_CASE("a rehearsal walks the same code, runs nothing, and reaches the same peak and extent") {
  bench b;
  scaling layer{2};
  belay::tier_meter planned;
  belay::host_engine rehearsal{belay::reserved_addresses(1 << 30), planned, {belay::stream_policy::rehearsal}, 0};
  auto body = [&](auto& engine) {
    belay::step step{engine};
    auto one = belay::forward(step, layer, b.x);
    auto two = belay::forward(step, layer, one.out());
    auto d = std::move(two).backward(one.out());
    auto dx = std::move(one).backward(d);
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
  };
  body(rehearsal);
  CHECK(layer.gradient == 0);
  body(b.engine);
  CHECK(layer.gradient != 0);
  CHECK(planned.peak_bytes() == b.meter.peak_bytes());
  CHECK(rehearsal.activations().offsets().extent_bytes() == b.engine.activations().offsets().extent_bytes());
}

namespace {
// Its residue owes something too, as that of a layer with experts does.
struct owing_inside : scaling {
  struct residue : scaling::residue {
    belay::obligation_id opened;
  };
  template <class Frame>
  residue forward(Frame& frame, belay::view<const double, 3> x) {
    const belay::obligation_id opened =
        frame.open(belay::obligation_kind::combined_tokens, 0, x.shape(), frame.call().at);
    return {scaling::forward(frame, x), opened};
  }
  template <class Frame>
  void backward(Frame& frame, residue&& r, belay::view<const double, 3> dout, belay::view<double, 3> dx) {
    frame.close(r.opened);
    scaling::backward(frame, std::move(r), dout, dx);
  }
};
struct discarding : owing_inside {
  std::string reason;
  template <class Frame>
  void discard(Frame& frame, residue&& r, const char* why) {
    frame.close(r.opened);
    reason = why;
  }
};
}  // namespace

TEST_CASE("a layer whose residue owes something ends that when its handle is discarded") {
  bench b;
  discarding layer;
  belay::step step{b.engine};
  auto handle = belay::forward(step, layer, b.x);
  std::move(handle).discard("no gradient here");
  CHECK(layer.reason == "no gradient here");
  CHECK(b.engine.obligations().open_count() == 0);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);

  owing_inside wrong_policy;  // without a discard of its own the inner obligation stays, and is seen
  belay::step second{b.engine};
  auto other = belay::forward(second, wrong_policy, b.x);
  std::move(other).discard("no gradient here");
  CHECK(b.engine.obligations().open_count() == 1);
  second.cut_off();
}

namespace {
// What asking for the output says; empty where it is given.
constexpr int asked = __LINE__ + 3;
std::string refusal(const auto& holder) {
  try {
    static_cast<void>(holder.handle.out());
    return {};
  } catch (const belay::usage_error& error) {
    return error.what();
  }
}
bool names(const std::string& text, int opened, const char* when) {
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  return has("the output of layer 0 'scaling' (micro-batch 3) opened at ") &&
         has("saved.cpp:" + std::to_string(opened)) && has("saved.cpp:" + std::to_string(asked)) && has(when);
}
}  // namespace

TEST_CASE("an output that is asked for after its backward, discard or hand_over is a named error in all builds") {
  bench b;
  scaling layer{2};
  belay::step step{b.engine};
  const int line = __LINE__ + 1;
  auto one = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
  auto two = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
  auto three = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
  CHECK(refusal(one).empty());
  auto dx = std::move(one.handle).backward(b.x);
  std::move(two.handle).discard("asked for too late");
  auto four = hidden{std::move(three.handle).hand_over()};
  CHECK(refusal(four).empty());
  CHECK(names(refusal(one), line, " is asked for after its backward"));
  CHECK(names(refusal(two), line + 1, "discard or hand_over"));
  CHECK(names(refusal(three), line + 2, "discard or hand_over"));
  step.cut_off();
}

TEST_CASE("an output that is asked for when its step has ended is a named error in all builds") {
  bench b;
  scaling layer{2};
  {
    belay::step step{b.engine};
    const int line = __LINE__ + 1;
    auto lost = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
    step.cut_off();
    CHECK(names(refusal(lost), line, " is asked for after its step has ended"));
    belay::step next{b.engine};  // whose memory may lie where the output was
    CHECK(names(refusal(lost), line, " is asked for after its step has ended"));
    auto outcome = std::move(next).commit();
    CHECK(belay::committed(outcome) != nullptr);
  }
  {
    belay::step step{b.engine};
    const int line = __LINE__ + 1;
    auto lost = hidden{belay::forward(step.micro_batch(3), layer, b.x)};
    try {
      auto outcome = std::move(step).commit();
      CHECK(belay::committed(outcome) == nullptr);
    } catch (const belay::open_obligations&) {
      CHECK(belay::checked(belay::check_level::local));
    }
    CHECK(names(refusal(lost), line, " is asked for after its step has ended"));
  }
}

namespace {
// Looks at the ledger in its backward.
struct watching : scaling {
  std::uint32_t parent_of_recompute = 0;
  template <class Frame>
  void backward(Frame& frame, residue&& r, belay::view<const double, 3> dout, belay::view<double, 3> dx) {
    frame.engine().obligations().for_each_open([&](const belay::obligation& found) {
      if (found.kind == belay::obligation_kind::recompute_frame) parent_of_recompute = found.parent;
    });
    scaling::backward(frame, std::move(r), dout, dx);
  }
};
}  // namespace

TEST_CASE("a recompute is recorded as the child of the invocation that it repeats") {
  bench b;
  watching layer;
  belay::recompute again{layer};
  belay::step step{b.engine};
  auto one = belay::forward(step, again, b.x);
  auto dx = std::move(one).backward(b.x);
  CHECK(layer.parent_of_recompute == 1);  // the first obligation of the step
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a step that a failure elsewhere cuts off gives everything back, and the next one begins") {
  bench b;
  scaling layer{2};
  {
    belay::step step{b.engine};
    [[maybe_unused]] auto lost = hidden{belay::forward(step, layer, b.x)};
    step.cut_off();
    step.cut_off();  // once is enough
  }
  CHECK(b.meter.live_bytes() == 0);
  belay::step step{b.engine};
  static_cast<void>(belay::forward(step, layer, b.x).backward(b.x));
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}
