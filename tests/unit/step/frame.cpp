// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/frame.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

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
