// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/frame.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "belay/step.hpp"
#include "support/scaling.hpp"

using scaling_bench::bench;
using scaling_bench::scaling;

namespace {
// Asks for an extent that wraps round.
struct boundless : scaling {
  enum class of { kept, scratched, remembered } what = of::kept;
  template <class Frame>
  residue forward(Frame& frame, belay::view<const double, 3> x) {
    const belay::extents<2> shape{std::size_t{1} << 31, std::size_t{1} << 30};  // 2^64 bytes
    if (what == of::kept) static_cast<void>(frame.template keep<double>(shape));
    if (what == of::scratched) static_cast<void>(frame.template scratch<double>(shape));
    if (what == of::remembered) static_cast<void>(frame.template remember<double>(shape));
    return scaling::forward(frame, x);
  }
};

// Of another library: its text has lines.
struct foreign_error : std::runtime_error {
  foreign_error() : std::runtime_error("shapes differ\n  at frame 1\x1b") {}
};

// Throws where it is told to.
struct throwing : scaling {
  enum class from { forward, backward, discard, recompute, run, host } site = from::forward;
  void (*thrown)() = [] { throw foreign_error(); };

  void reach(from here) const {
    if (here == site) thrown();
  }
  residue forward(auto& frame, belay::view<const double, 3> x) {
    reach(frame.replaying() ? from::recompute : from::forward);
    if (site == from::run) frame.run([call = thrown] { call(); });
    if (site == from::host) frame.run_on_host([&] { thrown(); });
    return scaling::forward(frame, x);
  }
  void backward(auto& frame, residue&& r, belay::view<const double, 3> dout, belay::view<double, 3> dx) {
    reach(from::backward);
    scaling::backward(frame, std::move(r), dout, dx);
  }
  void discard(auto&, residue&&, const char*) { reach(from::discard); }
};

// One step of micro-batch 7 of the layer, wrapped in a recompute or not, ended by a discard or a backward.
template <class Layer>
void step_of(belay::host_engine& engine, Layer& layer, belay::view<const double, 3> x, const char* why = nullptr) {
  belay::step step{engine};
  auto one = belay::forward(step.micro_batch(7), layer, x);
  if (why != nullptr)
    std::move(one).discard(why);
  else
    static_cast<void>(std::move(one).backward(x));
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}
}  // namespace

TEST_CASE("extents whose bytes wrap round are refused in the words of their layer, and nothing stays leased") {
  bench b;
  boundless layer;
  const auto run = [&] {
    belay::step step{b.engine};
    static_cast<void>(belay::observe(step, layer, b.x));
    step.cut_off();
  };
  const char* const asked[] = {"kept memory", "scratch", "remembered memory"};
  for (const auto what : {boundless::of::kept, boundless::of::scratched, boundless::of::remembered}) {
    layer.what = what;
    const std::string words = std::string(asked[static_cast<int>(what)]) +
                              " of layer 'scaling' (micro-batch 0): 2147483648x1073741824 elements of 8 bytes are more";
    CHECK_THROWS_WITH_AS(run(), doctest::Contains(words.c_str()), belay::size_error);
    CHECK(b.meter.live_bytes() == 0);
  }
  CHECK_THROWS_AS(belay::ledger{SIZE_MAX}, belay::usage_error);  // its entries would be none
}

TEST_CASE("what a layer throws names layer, micro-batch and call first; foreign text keeps its lines and is nested") {
  using from = throwing::from;
  bench b;
  belay::tier_meter meter;
  belay::host_engine queued{belay::host_pages{1 << 16}, meter, {belay::stream_policy::queued}, 0};
  throwing layer;
  const auto tried = [&](from site, belay::host_engine& engine, const char* call) {
    CAPTURE(call);
    layer.site = site;
    bool caught = false;
    try {
      if (site == from::recompute) {
        belay::recompute again{layer};
        step_of(engine, again, b.x);
      } else {
        step_of(engine, layer, b.x, site == from::discard ? "a test" : nullptr);
      }
    } catch (const belay::layer_error& error) {
      caught = true;
      const std::string text = error.what(), wanted = ": belay: layer 0 'scaling' (micro-batch 7), " +
                                                      std::string(call) + ": shapes differ\n  at frame 1\\x1b";
      CHECK(text == error.at().text() + wanted);
      CHECK(error.at().text().find("frame.cpp:") != std::string::npos);  // the line of its forward
      CHECK(belay::printable_what(error) == text);
      CHECK_THROWS_AS(std::rethrow_if_nested(error), foreign_error);
    }
    CHECK(caught);
  };
  tried(from::forward, b.engine, "forward");
  tried(from::backward, b.engine, "backward");
  tried(from::discard, b.engine, "discard");
  tried(from::recompute, b.engine, "recompute");
  tried(from::run, b.engine, "forward");
  tried(from::host, b.engine, "forward");
  tried(from::forward, queued, "forward");
  tried(from::run, queued, "work that it has queued");
  tried(from::host, queued, "forward");

  const auto observed = [&] {
    belay::step step{b.engine};
    layer.site = from::forward;
    static_cast<void>(belay::observe(step.micro_batch(3), layer, b.x));
    step.cut_off();
  };
  CHECK_THROWS_WITH_AS(observed(), doctest::Contains("layer 0 'scaling' (micro-batch 3), forward: shapes differ"),
                       belay::layer_error);
}

TEST_CASE("Belay's errors stay what they are and name the call once; no memory and what is no exception pass") {
  using from = throwing::from;
  bench b;
  throwing layer;
  layer.thrown = [] { throw belay::usage_error("it is closed\n  a line", {"other.cpp", "", 9}); };
  layer.site = from::recompute;
  const auto recomputed = [&] {
    belay::recompute again{layer};
    step_of(b.engine, again, b.x);
  };
  CHECK_THROWS_WITH_AS(recomputed(),
                       "other.cpp:9: belay: layer 0 'scaling' (micro-batch 7), recompute: it is closed\n  a line",
                       belay::usage_error);
  layer.site = from::forward;
  layer.thrown = [] { throw belay::budget_error("host", 3, 2, {}); };
  CHECK_THROWS_WITH_AS(step_of(b.engine, layer, b.x),
                       doctest::Contains("belay: layer 0 'scaling' (micro-batch 7), forward: host tier: 3 bytes"),
                       belay::budget_error);
  layer.thrown = [] { throw std::bad_alloc(); };
  CHECK_THROWS_AS(step_of(b.engine, layer, b.x), std::bad_alloc);
  layer.thrown = [] { throw 7; };
  CHECK_THROWS_AS(step_of(b.engine, layer, b.x), int);
  CHECK(b.meter.live_bytes() == 0);
}
